"""Whether a checkpoint fits a live run, and the call that resumes it, as a frozen value. `text` is the report's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .plan import Change, Plan

__all__ = ["Explanation", "Trial"]


@dataclass(frozen=True, slots=True)
class Trial:
    """A call that was tried because the plain one does not fit: the keywords added to it, and what it leaves out.

    `cost` are lines on what is not restored, or not as it was saved, that the plain call would have had.
    """

    added: tuple[tuple[str, str], ...]
    cost: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The trial as plain JSON values."""
        return {"added": dict(self.added), "cost": list(self.cost)}


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """What restore would do with a checkpoint and a live run, before anything moves.

    `fits` tells that the call with the run's own objects and nothing else would restore. `call` is the line that
    resumes the run, with the keywords that it takes; "" where none was found. `plan` is what that call does. `error` is
    the class and the lines of what the plain call says, `faults` each of its faults, `remedy` what it advises. `trial`
    are the keywords that were added. `saved_only` are parts of the file that the run has no object for, `live_only`
    objects of the run that the file has nothing for.
    """

    path: str
    build: str
    fits: bool
    call: str
    plan: Plan | None = None
    error: str = ""
    faults: tuple[str, ...] = ()
    remedy: str = ""
    trial: Trial | None = None
    saved_only: tuple[Change, ...] = ()
    live_only: tuple[Change, ...] = ()
    about: Mapping[str, str] = field(default_factory=dict)
    text: str = field(default="", repr=False)

    def __str__(self) -> str:
        return self.text

    def __bool__(self) -> bool:
        return self.fits

    def to_json(self) -> dict[str, Any]:
        """The explanation as plain JSON values."""
        return {
            "path": self.path,
            "build": self.build,
            "fits": self.fits,
            "call": self.call,
            "error": self.error,
            "faults": list(self.faults),
            "remedy": self.remedy,
            "trial": None if self.trial is None else self.trial.to_json(),
            "saved_only": [change.to_json() for change in self.saved_only],
            "live_only": [change.to_json() for change in self.live_only],
            "about": dict(self.about),
            "plan": None if self.plan is None else self.plan.to_json(),
        }
