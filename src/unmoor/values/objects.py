"""Pickled objects of other libraries: which of their attributes play which role. One row a class.

Read from the libraries' own code: hippynn 0.1.3 moves model and training loss to the device, keeps the evaluator's
losses and the metrics on the CPU (`hippynn.experiment.device.set_devices`), and pickles a recipe for its
database. A scheduler of torch holds its optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from .schedulers import SCHEDULERS

__all__ = ["ALL", "OBJECT_ROLES"]

ALL: Final = "*"
"""Stands for every attribute without a row of its own."""


def _scheduler_classes() -> Iterator[str]:
    for family in SCHEDULERS:
        for name in (family.name, *family.also):
            yield f"torch.optim.{'swa_utils' if name == 'SWALR' else 'lr_scheduler'}.{name}"


OBJECT_ROLES: Final[dict[str, Mapping[str | int, str]]] = {
    "hippynn.experiment.assembly.TrainingModules": {0: "model", 1: "loss", 2: "metrics"},
    "hippynn.experiment.evaluator.Evaluator": {"model": "model", ALL: "metrics"},
    "hippynn.experiment.metric_tracker.MetricTracker": {ALL: "metrics"},
    "hippynn.experiment.controllers.Controller": {"optimizer": "optimizer", ALL: "scheduler"},
    "hippynn.experiment.controllers.PatienceController": {"optimizer": "optimizer", ALL: "scheduler"},
    "hippynn.databases.restarter.RestartDB": {ALL: "loader"},
    **{name: {"optimizer": "optimizer", ALL: "scheduler"} for name in _scheduler_classes()},
}
"""Class -> attribute, or position among its arguments -> role of what it holds."""
