"""The programs that the integrations are for, which the package itself never needs."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from unmoor.errors import MachineError

__all__ = ["library", "modules_there"]


def library(name: str, *, install: str, why: str) -> ModuleType:
    """A module of another program. Raises MachineError where that is not installed."""
    found = modules_there(name)
    if not found:
        raise MachineError(f"{why} needs {install}, which is not installed here", remedy=f"pip install {install}")
    return found[0]


def modules_there(*names: str) -> tuple[ModuleType, ...]:
    """Those of the modules whose programs are imported already; where none is, all that are installed.

    An error within a program that is installed is its own.
    """
    begun = [name for name in names if name.split(".")[0] in sys.modules]
    found = []
    for name in begun or names:
        try:
            found.append(importlib.import_module(name))
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] != name.split(".")[0]:
                raise
    return tuple(found)
