"""What a restore and a save did, as frozen values. `text` is the sentence form, made by the report stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .finding import Finding
from .plan import Change, Plan, Step

__all__ = ["Receipt", "Report"]


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """A plan as carried out.

    `plan` is what was done. `counts` is role -> (tensors, bytes). `nbytes` were read in `seconds`; `verified` storages
    had a checksum that held, `unverified` had none, and `in_part` tensors were read in part, which no checksum vouches
    for. `extra` are the file's plain values, as Python values.
    """

    plan: Plan
    extra: Mapping[str, Any]
    counts: Mapping[str, tuple[int, int]]
    nbytes: int
    seconds: float
    verified: int
    unverified: int
    text: str = field(default="", repr=False)
    in_part: int = 0

    def __str__(self) -> str:
        return self.text

    @property
    def path(self) -> str:
        """The file that was restored from."""
        return self.plan.path

    @property
    def restored(self) -> tuple[str, ...]:
        """The labels of what was restored."""
        return self.plan.restored

    @property
    def steps(self) -> tuple[Step, ...]:
        """What was done, step by step."""
        return self.plan.steps

    @property
    def renamed(self) -> tuple[Change, ...]:
        """Names that differ between the file and the live run."""
        return self.plan.renamed

    @property
    def moved(self) -> tuple[Change, ...]:
        """Tensors whose device differs between the file and the live run."""
        return self.plan.moved

    @property
    def cast(self) -> tuple[Change, ...]:
        """Tensors whose dtype differs between the file and the live run."""
        return self.plan.cast

    @property
    def fresh(self) -> tuple[Change, ...]:
        """Live things left as they are because the file holds nothing for them."""
        return self.plan.fresh

    @property
    def missing(self) -> tuple[Change, ...]:
        """Live tensors that the file lacks, let through by policy."""
        return self.plan.missing

    @property
    def unexpected(self) -> tuple[Change, ...]:
        """Saved tensors that nothing took."""
        return self.plan.unexpected

    @property
    def not_restored(self) -> tuple[Change, ...]:
        """Roles and streams that were asked for or saved, and not restored, with the reason."""
        return self.plan.not_restored

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What a reader should know."""
        return self.plan.findings

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return {
            **self.plan.to_json(),
            "counts": {role: {"tensors": n, "nbytes": b} for role, (n, b) in self.counts.items()},
            "nbytes": self.nbytes,
            "seconds": self.seconds,
            "verified": self.verified,
            "unverified": self.unverified,
            "in_part": self.in_part,
        }


@dataclass(frozen=True, slots=True, eq=False)
class Receipt:
    """What a save wrote: the file, its size, tensors and bytes by role, and what was written in another form.

    `converted` names values that a checkpoint without code cannot hold as they are (a numpy array is kept as a
    tensor and comes back as an array). `findings` are what a reader should know of what was saved. `notes` are a word
    and a sentence each, on the ranks that saved together.
    """

    path: str
    nbytes: int
    seconds: float
    counts: Mapping[str, tuple[int, int]]
    converted: tuple[Change, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    text: str = field(default="", repr=False)

    def __str__(self) -> str:
        return self.text

    def to_json(self) -> dict[str, Any]:
        """The receipt as plain JSON values."""
        return {
            "path": self.path,
            "nbytes": self.nbytes,
            "seconds": self.seconds,
            "counts": {role: {"tensors": n, "nbytes": b} for role, (n, b) in self.counts.items()},
            "converted": [change.to_json() for change in self.converted],
            "findings": [finding.to_json() for finding in self.findings],
            "notes": [list(note) for note in self.notes],
        }
