"""Ways to carry a run from one process to another, behind one pair of calls, so that matrices can compare them.

A carrier that cannot do a cell raises; what it raises is the cell's reason. Every carrier brings the process's random
streams along, as its users do.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

import unmoor

__all__ = ["CARRIERS", "Carrier", "PlainTorch", "Unmoor", "set_streams", "streams"]


class Carrier(Protocol):
    """Saves live objects by role (`model=`, `optimizer=`, ...) and fills others of the same classes from the file."""

    name: str

    def save(self, path: Path, **objects: Any) -> None:
        """Write the state of all objects, and of the process's random streams, to `path` (a file or a folder)."""

    def restore(self, path: Path, **objects: Any) -> None:
        """Fill the live objects where they are, and the process's random streams."""


class Unmoor:
    """unmoor.save and unmoor.restore, with their defaults."""

    name = "unmoor"

    def save(self, path: Path, **objects: Any) -> None:
        unmoor.save(path, **objects)

    def restore(self, path: Path, **objects: Any) -> None:
        unmoor.restore(path, **objects)


def streams() -> dict[str, Any]:
    """The states of all random streams of the process."""
    found = {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": np.random.get_state()}
    if torch.accelerator.is_available():
        found["devices"] = torch.get_device_module().get_rng_state_all()
    return found


def set_streams(saved: Mapping[str, Any]) -> None:
    """Put the streams into states that may have been loaded onto a device."""
    torch.set_rng_state(saved["torch"].cpu())
    if "devices" in saved:
        torch.get_device_module().set_rng_state_all([state.cpu() for state in saved["devices"]])
    random.setstate(saved["python"])
    np.random.set_state(saved["numpy"])


class PlainTorch:
    """torch.save of state dicts, torch.load with map_location, load_state_dict: the recipe of the tutorials.

    The whole file is loaded to the model's device, as most do, or to the CPU, whence load_state_dict moves the rest.
    Random states are taken to the CPU by hand, which a careful user does.
    """

    def __init__(self, *, first_to_cpu: bool = False) -> None:
        self._first_to_cpu = first_to_cpu
        self.name = f"torch.load{' to cpu' if first_to_cpu else ''} + load_state_dict"

    def save(self, path: Path, **objects: Any) -> None:
        states = {role: item.state_dict() for role, item in objects.items()}
        torch.save({**states, "rng": streams()}, path)

    def restore(self, path: Path, **objects: Any) -> None:
        model: nn.Module = objects["model"]
        place = "cpu" if self._first_to_cpu else next(model.parameters()).device
        found = torch.load(path, map_location=place, weights_only=False)
        for role, item in objects.items():
            item.load_state_dict(found[role])
        set_streams(found["rng"])


CARRIERS: dict[str, Carrier] = {
    carrier.name: carrier for carrier in (Unmoor(), PlainTorch(), PlainTorch(first_to_cpu=True))
}
