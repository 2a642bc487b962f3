"""What checkpoints lie in a folder: the newest first, what each tells of itself, and why some cannot be resumed from.

`text` is the sentence form, made by the report stage. Must not know torch, nor files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .progress import is_name_of_run

__all__ = ["Listing", "Saved", "newest_first"]


@dataclass(frozen=True, slots=True)
class Saved:
    """One checkpoint of a folder. It is a path too: `unmoor.restore(saved, ...)` works.

    `path` is what `unmoor.restore` takes, `name` what it is called in the folder. `step` is how far the run was, None
    where nothing tells; `unit` what is counted: step, or epoch where only those are. `number` counts the saves of
    unmoor.Run into its folder from 1 on, 0 for any other file. `metrics` are what the run noted with it. `nbytes` is
    what it takes on the disk, `written` when it was last changed (Unix seconds; for people, nothing is ordered by it
    but what nothing else orders).

    `verified` is True where every byte that has a checksum was read back and held, False where one did not, None where
    nobody has looked since it was written. `complete` tells that it can be resumed from, as far as was looked; `why`
    says why not. `dialect` is who wrote it. `finished` tells that the run had reached its end. `notes` are what else
    to know, in words. `passed` are the newer ones that `unmoor.latest` passed over for this one.
    """

    path: str
    name: str
    step: int | None
    number: int = 0
    metrics: Mapping[str, Any] = field(default_factory=dict)
    nbytes: int = 0
    written: float = 0.0
    verified: bool | None = None
    complete: bool = True
    why: str = ""
    dialect: str = "plain"
    finished: bool = False
    unit: str = "step"
    notes: tuple[str, ...] = ()
    passed: tuple[Saved, ...] = ()

    def __fspath__(self) -> str:
        return self.path

    def __str__(self) -> str:
        words = [self.path]
        words += [f"{self.unit} {self.step:,}"] if self.step is not None else []
        words += ["verified"] if self.verified else []
        words += [] if self.complete else [f"cannot be resumed from: {self.why}"]
        passed = [f"  passed over {row.name}: {row.why}" for row in self.passed]
        return "\n".join(map(_shown, [", ".join(words), *passed]))

    def to_json(self) -> dict[str, Any]:
        """The checkpoint as plain JSON values."""
        return {
            "path": self.path,
            "name": self.name,
            "step": self.step,
            "unit": self.unit,
            "number": self.number,
            "metrics": dict(self.metrics),
            "nbytes": self.nbytes,
            "written": self.written,
            "verified": self.verified,
            "complete": self.complete,
            "why": self.why,
            "dialect": self.dialect,
            "finished": self.finished,
            "notes": list(self.notes),
            "passed": [row.to_json() for row in self.passed],
        }


@dataclass(frozen=True, slots=True)
class Listing:
    """The checkpoints of a folder, newest first; iterating gives them. `notes` are what to know of the folder itself.

    Newest is by the number of the save where unmoor.Run wrote them, else by step, else by time; never by a clock where
    anything else tells.
    """

    folder: str
    rows: tuple[Saved, ...]
    notes: tuple[str, ...] = ()
    text: str = field(default="", repr=False)

    def __str__(self) -> str:
        return self.text

    def __iter__(self) -> Iterator[Saved]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def newest(self) -> Saved | None:
        """The newest one that can be resumed from, None where there is none."""
        return next((row for row in self.rows if row.complete), None)

    def to_json(self) -> dict[str, Any]:
        """The listing as plain JSON values."""
        newest = self.newest
        return {
            "folder": self.folder,
            "newest": newest.path if newest is not None else None,
            "rows": [row.to_json() for row in self.rows],
            "notes": list(self.notes),
        }


def _shown(text: str) -> str:
    """`text` with what does not print as escapes: names of files may hold what a terminal would obey."""
    return "".join([c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text])


def newest_first(rows: Iterable[Saved]) -> tuple[Saved, ...]:
    """Rows by the number of their save, then by step, then by time, the newest first.

    One of unmoor.Run's own that is broken has no number: it stands where its step belongs among those that have one.
    """
    rows = list(rows)
    steps = sorted((row.step, row.number) for row in rows if row.number and row.step is not None)

    def place(row: Saved) -> float:
        if row.number or not steps or not is_name_of_run(row.name):
            return row.number
        return max((number for step, number in steps if row.step is not None and step <= row.step), default=0) + 0.5

    def rank(row: Saved) -> tuple[Any, ...]:
        return place(row), row.step is not None, row.step or 0, row.written, row.name

    return tuple(sorted(rows, key=rank, reverse=True))
