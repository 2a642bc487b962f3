"""Recordings made of literals, for the judge and the texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from unmoor.diagnose.resumed import Runs
from unmoor.values.recording import Batch, Mark, Moment, Recording, State

__all__ = ["mark", "moment", "recording", "runs", "state"]


def mark(value: float, *, sketch: bool = False) -> Mark:
    """A number as a mark."""
    return Mark(f"{value!r}", f"{value:g}", (abs(value), value, -value) if sketch else (), value)


def state(weight: float = 1.0, *, sketch: bool = False, **components: Mapping[str, float]) -> State:
    """A state of one parameter and of other components by name -> number; `rng_torch` is the component `rng torch`."""
    found = {"parameters": {"weight": mark(weight, sketch=sketch)}}
    for name, things in components.items():
        own = name.replace("clue_", "clue ").replace("rng_", "rng ")
        found[own] = {thing: mark(value, sketch=sketch) for thing, value in things.items()}
    return found


def moment(step: int, loss: float | None = 0.5, samples: Sequence[int] = (), made: State | None = None) -> Moment:
    """A moment with one batch of such samples."""
    names = tuple(map(str, samples))
    batches = (Batch(",".join(names), names, known=True),) if samples else ()
    return Moment(step, loss, batches, state() if made is None else made)


def recording(moments: Sequence[Moment], *, rank: int = 0, device: str = "cpu", **facts: object) -> Recording:
    return replace(Recording(rank, device, tuple(moments)), **facts)


def runs(whole: Sequence[Recording], first: Sequence[Recording], resumed: Sequence[Recording], **how: object) -> Runs:
    """Four steps, cut after the second."""
    return replace(Runs("train:build", 4, 2, whole, first, resumed), **how)
