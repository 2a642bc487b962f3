"""What a run does at the end of a step: go on, save, end. Pure: what each rank brings, and what is known of the run.

One rank decides, and all do the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from unmoor.values.run_policy import Every

__all__ = ["Decision", "Facts", "Verdict", "Wish", "judge", "pace"]

_MEETING_SECONDS = 1.0
"""How long a signal on one rank may take to reach the others, if steps are short."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What one rank brings to the end of a step: the signal it caught, "" for none, and what its caller asked for."""

    signal: str = ""
    stop: bool = False
    save: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """What the deciding rank knows: steps done, the step that was saved last, seconds since that save was begun.

    `last` tells that there is no step after this. `best` that a metric is better than those that are kept. `busy` that
    an earlier save is still under way.
    """

    step: int
    saved: int | None
    since: float
    last: bool
    best: bool = False
    busy: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all ranks do now: `save` is why they save, "" for not; `ending` why the run ends, "" for going on.

    `ending` is "finished" (no step is left), "stopped" (the caller asked for it) or "signal". `signal` names the signal
    that any rank caught, whatever the ending. `skipped` is why a save was due that is not made.
    """

    save: str = ""
    ending: str = ""
    signal: str = ""
    skipped: str = ""

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to be done."""
        return self.ending in ("finished", "stopped")


@dataclass(frozen=True, slots=True)
class Decision:
    """What all ranks do at the end of a step, and the step at whose end they meet `next`.

    Where they save: the `name` of the checkpoint, and the `record` that goes into it.
    """

    verdict: Verdict
    next: int
    name: str = ""
    record: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As ranks tell each other."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Decision:
        """As it was told."""
        return cls(**{**fields, "verdict": Verdict(**fields["verdict"])})


def judge(wishes: Sequence[Wish], facts: Facts, every: Every, background: str) -> Verdict:
    """What is done at the end of a step, by what any rank wishes and by the policy."""
    signal = next((wish.signal for wish in wishes if wish.signal), "")
    stop = any(wish.stop for wish in wishes)
    new = facts.saved is None or facts.step != facts.saved
    if facts.last or stop:
        ending = "finished" if facts.last else "stopped"
        return Verdict(save="the end", ending=ending, signal=signal)
    if signal:
        return Verdict(save=signal if new else "", ending="signal", signal=signal)
    why = "asked for" if any(wish.save for wish in wishes) else _due(facts, every) if new else ""
    if why and facts.busy and background == "skip":
        return Verdict(skipped=why)
    return Verdict(save=why)


def _due(facts: Facts, every: Every) -> str:
    if every.steps is not None and facts.step % every.steps == 0:
        return f"every {every.text}"
    if every.seconds is not None and facts.since >= every.seconds:
        return f"every {every.text}"
    return "a new best" if every.best and facts.best else ""


def pace(step: int, seconds: float, every: Every) -> int:
    """The step at whose end ranks next meet, where one takes so many seconds; never past one that must be saved."""
    ahead = max(1, int(_MEETING_SECONDS / seconds)) if seconds > 0 else 1
    if every.steps is not None:
        ahead = min(ahead, every.steps - step % every.steps)
    return step + ahead
