"""What a proof of a resumed run found, as a frozen value. `text` is the sentence form, made by the report stage."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["ABSENT", "VERDICTS", "Compared", "Difference", "Proof"]

ABSENT: Final = "not there"
"""A side of a difference that has nothing."""

VERDICTS: Final = ("equal", "within", "different", "undetermined")
"""equal: bit for bit. within: the restored state bit for bit, the steps after it within the tolerance, where they are
taken on another kind of device, wrapper or number of ranks. undetermined: the uninterrupted run does not repeat itself.
"""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing that differs: after which step, what, and both sides. `step` is the cut itself for the restore.

    `component` is a word of the table, `name` the thing in it ("" for all of it), `more` how many others of the same
    component differ there too. `rank` is -1 where there is one process.
    """

    step: int
    component: str
    name: str
    resumed: str
    uninterrupted: str
    more: int = 0
    rank: int = -1

    def to_json(self) -> dict[str, Any]:
        """The difference as plain JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Compared:
    """One row of the table: a component, whether it was equal right after the restore, and after how many steps.

    `restored` is None where the restore alone says nothing of it. `first` is the first step after which it differs, 0
    where none. `things` are how many things it consists of.
    """

    component: str
    restored: bool | None
    equal: int
    steps: int
    first: int = 0
    things: int = 0
    verdict: str = "equal"

    def to_json(self) -> dict[str, Any]:
        """The row as plain JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, eq=False)
class Proof:
    """Whether a run that is cut and resumed is the run that was never cut, and what differs first if not.

    `build` names the function, `steps` were taken, `cut` after. `setting` are words and values on how the run was
    saved and resumed where that is not the same. `losses` are step by step those of the uninterrupted run, `resumed`
    those of the run that was resumed, from step `cut` + 1 on; None where a step gave none. `largest` is the largest
    relative difference of two losses. `cause` and `fix` say why and what to do, "" where nothing differs or nothing
    is known. `notes` are words and sentences on what else a reader should know. `pictures` are the files that were
    written.
    """

    ok: bool
    verdict: str
    build: str
    steps: int
    cut: int
    difference: Difference | None = None
    cause: str = ""
    fix: str = ""
    table: tuple[Compared, ...] = ()
    losses: tuple[float | None, ...] = ()
    resumed: tuple[float | None, ...] = ()
    largest: float = 0.0
    tolerance: float = 0.0
    setting: tuple[tuple[str, str], ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    seconds: float = 0.0
    pictures: tuple[str, ...] = ()
    text: str = field(default="", repr=False)

    def __str__(self) -> str:
        return self.text

    def __bool__(self) -> bool:
        return self.ok

    def to_json(self) -> dict[str, Any]:
        """The proof as plain JSON values."""
        return {
            "ok": self.ok,
            "verdict": self.verdict,
            "build": self.build,
            "steps": self.steps,
            "cut": self.cut,
            "setting": [list(row) for row in self.setting],
            "difference": None if self.difference is None else self.difference.to_json(),
            "cause": self.cause,
            "fix": self.fix,
            "table": [row.to_json() for row in self.table],
            "losses": [_number(loss) for loss in self.losses],
            "resumed": [_number(loss) for loss in self.resumed],
            "largest": _number(self.largest),
            "tolerance": self.tolerance,
            "notes": [list(note) for note in self.notes],
            "seconds": self.seconds,
            "pictures": list(self.pictures),
        }


def _number(value: float | None) -> float | str | None:
    """A number that JSON has; NaN and the infinities, which it lacks, as text."""
    return value if value is None or math.isfinite(value) else str(value)
