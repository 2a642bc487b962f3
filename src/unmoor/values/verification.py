"""What became of a check of a whole checkpoint: every checksum that did not hold, and what none vouches for.

`text` is the sentence form, made by the report stage. Must not know torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from .finding import Finding
from .nodes import Span, deflated

__all__ = ["BadData", "Record", "Unchecked", "Verification"]

_GRAVE: Final = frozenset({"error", "danger"})


@dataclass(frozen=True, slots=True)
class Record:
    """A run of bytes of a file and the CRC-32 that they should have; None where the file holds none.

    `name` is what the container calls it: the record of a zip, the tensor of a file without checksums.
    """

    name: str
    span: Span
    crc32: int | None


@dataclass(frozen=True, slots=True)
class BadData:
    """One fault: data that is not what was saved, or a structure that contradicts itself.

    `kind` is checksum (the bytes are others), unreadable (they cannot be read at all) or structure (lists, headers or
    sizes contradict each other). `place` is the record or the file, `tensors` the paths of the tensors on it. `saved`
    and `read` are CRC-32 values; `start` and `end` the bytes of `file`, -1 for a structure. `message` says it in words,
    `details` are one fact each.
    """

    kind: str
    place: str
    message: str
    tensors: tuple[str, ...] = ()
    file: str = ""
    start: int = -1
    end: int = -1
    saved: int | None = None
    read: int | None = None
    details: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The fault as plain JSON values; checksums as eight hexadecimal digits."""
        return {
            "kind": self.kind,
            "place": self.place,
            "message": self.message,
            "tensors": list(self.tensors),
            "file": (deflated(self.file) or (self.file,))[0],
            "bytes": None if self.start < 0 else [self.start, self.end],
            "saved": None if self.saved is None else f"{self.saved:08x}",
            "read": None if self.read is None else f"{self.read:08x}",
            "details": list(self.details),
        }


@dataclass(frozen=True, slots=True)
class Unchecked:
    """Bytes that no checksum vouches for, and why: `tensors` of them, `nbytes` in all."""

    reason: str
    tensors: int
    nbytes: int

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"reason": self.reason, "tensors": self.tensors, "nbytes": self.nbytes}


@dataclass(frozen=True, slots=True, eq=False)
class Verification:
    """All that a checkpoint can say of its own soundness, held against its bytes.

    `faults` are all there are, in the order of the files. `records` checksums were held against `nbytes` bytes in
    `seconds`; `tensors` tensors lie on records whose checksum held. `unchecked` is what no checksum vouches for.
    `newest` is the newest checkpoint beside a bad one that is whole in structure, "" for none; `newest_holds` tells
    that its data was verified too, which is done where it is small.
    """

    path: str
    format: str
    faults: tuple[BadData, ...]
    records: int
    tensors: int
    nbytes: int
    seconds: float
    unchecked: tuple[Unchecked, ...] = ()
    findings: tuple[Finding, ...] = ()
    newest: str = ""
    newest_holds: bool = False
    text: str = field(default="", repr=False)

    def __str__(self) -> str:
        return self.text

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong: no fault, and no finding of severity error or danger."""
        return not self.faults and not _GRAVE.intersection(finding.severity for finding in self.findings)

    @property
    def complete(self) -> bool:
        """Whether every byte of tensor data has a checksum that held."""
        return not self.faults and not any(row.nbytes for row in self.unchecked)

    @property
    def damaged(self) -> tuple[str, ...]:
        """The paths of all tensors whose data is not what was saved."""
        return tuple(dict.fromkeys(path for fault in self.faults for path in fault.tensors))

    def to_json(self) -> dict[str, Any]:
        """The verification as plain JSON values."""
        return {
            "path": self.path,
            "format": self.format,
            "ok": self.ok,
            "complete": self.complete,
            "records": self.records,
            "tensors": self.tensors,
            "nbytes": self.nbytes,
            "seconds": self.seconds,
            "newest": self.newest,
            "newest_holds": self.newest_holds,
            "damaged": list(self.damaged),
            "faults": [fault.to_json() for fault in self.faults],
            "unchecked": [row.to_json() for row in self.unchecked],
            "findings": [finding.to_json() for finding in self.findings],
        }
