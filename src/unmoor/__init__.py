"""Carry a PyTorch training run from the devices and layout it was saved on to any others, exactly.

The public names are resolved on first use, so that `import unmoor` imports neither torch nor rich.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import describe, device_fallback, plan, restore, save, snapshot
    from .api_files import convert, load, relocate, repartition, undo_relocate
    from .api_folders import latest, runs
    from .api_looks import diff, doctor, page, verify
    from .api_runs import device_context, diagnose, explain, preflight, prove, to_device
    from .carried import gradients, resumable
    from .distributed.reader import CheckpointReader
    from .errors import (
        AmbiguousError,
        ArgumentConflict,
        CorruptFile,
        DeviceError,
        DeviceMismatch,
        FileError,
        FitError,
        HostileFile,
        KindError,
        MachineError,
        MismatchError,
        NotACheckpoint,
        RankError,
        RanksDiffer,
        ReadError,
        RestoreError,
        SaveError,
        TrustError,
        UnmoorError,
        UnsupportedFile,
        UsageError,
    )
    from .training import Run
    from .values.catalog import Catalog, Part, TensorEntry
    from .values.conversion import Conversion
    from .values.diagnosis import Diagnosis
    from .values.difference import Difference
    from .values.explanation import Explanation
    from .values.finding import Finding
    from .values.listing import Listing, Saved
    from .values.machine import Machine
    from .values.nodes import Opaque
    from .values.plan import Plan
    from .values.preflight import Preflight
    from .values.proof import Proof
    from .values.relocation import Relocation
    from .values.report import Receipt, Report
    from .values.run_events import Event
    from .values.verification import Verification
    from .version import __version__

_HOMES = {
    "api": ("describe", "device_fallback", "plan", "restore", "save", "snapshot"),
    "api_files": ("convert", "load", "relocate", "repartition", "undo_relocate"),
    "api_folders": ("latest", "runs"),
    "api_looks": ("diff", "doctor", "page", "verify"),
    "api_runs": ("device_context", "diagnose", "explain", "preflight", "prove", "to_device"),
    "errors": (
        "AmbiguousError",
        "ArgumentConflict",
        "CorruptFile",
        "DeviceError",
        "DeviceMismatch",
        "FileError",
        "FitError",
        "HostileFile",
        "KindError",
        "MachineError",
        "MismatchError",
        "NotACheckpoint",
        "RankError",
        "RanksDiffer",
        "ReadError",
        "RestoreError",
        "SaveError",
        "TrustError",
        "UnmoorError",
        "UnsupportedFile",
        "UsageError",
    ),
    "distributed.reader": ("CheckpointReader",),
    "carried": ("gradients", "resumable"),
    "training": ("Run",),
    "values.catalog": ("Catalog", "Part", "TensorEntry"),
    "values.conversion": ("Conversion",),
    "values.diagnosis": ("Diagnosis",),
    "values.difference": ("Difference",),
    "values.explanation": ("Explanation",),
    "values.finding": ("Finding",),
    "values.listing": ("Listing", "Saved"),
    "values.nodes": ("Opaque",),
    "values.plan": ("Plan",),
    "values.preflight": ("Preflight",),
    "values.proof": ("Proof",),
    "values.machine": ("Machine",),
    "values.relocation": ("Relocation",),
    "values.report": ("Receipt", "Report"),
    "values.run_events": ("Event",),
    "values.verification": ("Verification",),
    "version": ("__version__",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AmbiguousError",
    "ArgumentConflict",
    "Catalog",
    "CheckpointReader",
    "Conversion",
    "CorruptFile",
    "DeviceError",
    "DeviceMismatch",
    "Diagnosis",
    "Difference",
    "Event",
    "Explanation",
    "FileError",
    "Finding",
    "FitError",
    "HostileFile",
    "KindError",
    "Listing",
    "Machine",
    "MachineError",
    "MismatchError",
    "NotACheckpoint",
    "Opaque",
    "Part",
    "Plan",
    "Preflight",
    "Proof",
    "RankError",
    "RanksDiffer",
    "ReadError",
    "Receipt",
    "Relocation",
    "Report",
    "RestoreError",
    "Run",
    "SaveError",
    "Saved",
    "TensorEntry",
    "TrustError",
    "UnmoorError",
    "UnsupportedFile",
    "UsageError",
    "Verification",
    "__version__",
    "convert",
    "describe",
    "device_context",
    "device_fallback",
    "diagnose",
    "diff",
    "doctor",
    "explain",
    "gradients",
    "latest",
    "load",
    "page",
    "plan",
    "preflight",
    "prove",
    "relocate",
    "repartition",
    "restore",
    "resumable",
    "runs",
    "save",
    "snapshot",
    "to_device",
    "undo_relocate",
    "verify",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """Keeps a verb callable where a stage bears the same name: `unmoor.describe` is the function, never the folder."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and name in _HOME):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
