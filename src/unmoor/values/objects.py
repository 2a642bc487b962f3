"""Pickled objects of other libraries: which of their attributes play which role. One row a class.

Read from the libraries' own code: hippynn 0.1.3 moves model and training loss to the device, keeps the evaluator's
losses and the metrics on the CPU (`hippynn.experiment.device.set_devices`), and pickles a recipe for its database.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["ALL", "OBJECT_ROLES"]

ALL: Final = "*"
"""Stands for every attribute without a row of its own."""

OBJECT_ROLES: Final[dict[str, Mapping[str | int, str]]] = {
    "hippynn.experiment.assembly.TrainingModules": {0: "model", 1: "loss", 2: "metrics"},
    "hippynn.experiment.evaluator.Evaluator": {"model": "model", ALL: "metrics"},
    "hippynn.experiment.metric_tracker.MetricTracker": {ALL: "metrics"},
    "hippynn.experiment.controllers.Controller": {"optimizer": "optimizer", ALL: "scheduler"},
    "hippynn.experiment.controllers.PatienceController": {"optimizer": "optimizer", ALL: "scheduler"},
    "hippynn.databases.restarter.RestartDB": {ALL: "loader"},
}
"""Class -> attribute, or position among its arguments -> role of what it holds."""
