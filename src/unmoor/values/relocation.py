"""What a relocation did to the device tags of a checkpoint, as frozen values. `text` is made by the report stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .finding import Finding

__all__ = ["Kept", "Move", "RelocatedFile", "Relocation"]


@dataclass(frozen=True, slots=True)
class Move:
    """Tensors whose tag became another one: `tensors` of them, `nbytes` in all, with the roles that they play."""

    old: str
    new: str
    tensors: int
    nbytes: int
    roles: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The move as plain JSON values."""
        return {
            "old": self.old,
            "new": self.new,
            "tensors": self.tensors,
            "nbytes": self.nbytes,
            "roles": list(self.roles),
        }


@dataclass(frozen=True, slots=True)
class Kept:
    """Tensors that a rule put elsewhere than was asked for: what they are, where they are now, and the rule."""

    what: str
    device: str
    tensors: int
    why: str

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"what": self.what, "device": self.device, "tensors": self.tensors, "why": self.why}


@dataclass(frozen=True, slots=True)
class RelocatedFile:
    """One file: `how` is appended (new records behind the old bytes), rewritten, copied, cut (an undo) or unchanged.

    `before` and `after` are its length in bytes.
    """

    path: str
    how: str
    before: int
    after: int

    @property
    def appended(self) -> int:
        """How many bytes it grew by; below zero where it shrank."""
        return self.after - self.before

    def to_json(self) -> dict[str, Any]:
        """The file as plain JSON values."""
        return {"path": self.path, "how": self.how, "before": self.before, "after": self.after}


@dataclass(frozen=True, slots=True, eq=False)
class Relocation:
    """What became of the device tags of a checkpoint.

    `path` was given, `target` was written: another path where a copy was asked for. `moves` are old to new tags with
    tensors and bytes; none where there was nothing to do. `kept` is what a rule put elsewhere. `values` are the key
    paths of the user's own values that name a tag that moved, which are left as they are. `undo` is the command that
    brings the old file back, "" where none does.
    """

    path: str
    target: str
    format: str
    moves: tuple[Move, ...]
    kept: tuple[Kept, ...] = ()
    values: tuple[str, ...] = ()
    files: tuple[RelocatedFile, ...] = ()
    devices: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    seconds: float = 0.0
    undo: str = ""
    findings: tuple[Finding, ...] = ()
    text: str = field(default="", repr=False)

    def __str__(self) -> str:
        return self.text

    @property
    def changed(self) -> bool:
        """Whether any file holds other tags now."""
        return any(file.how not in ("unchanged", "copied") for file in self.files)

    @property
    def appended(self) -> int:
        """How many bytes all files grew by."""
        return sum(file.appended for file in self.files)

    def to_json(self) -> dict[str, Any]:
        """The relocation as plain JSON values."""
        return {
            "path": self.path,
            "target": self.target,
            "format": self.format,
            "changed": self.changed,
            "moves": [move.to_json() for move in self.moves],
            "kept": [kept.to_json() for kept in self.kept],
            "values": list(self.values),
            "devices": {tag: {"tensors": n, "nbytes": b} for tag, (n, b) in self.devices.items()},
            "files": [file.to_json() for file in self.files],
            "appended": self.appended,
            "seconds": self.seconds,
            "undo": self.undo,
            "findings": [finding.to_json() for finding in self.findings],
        }
