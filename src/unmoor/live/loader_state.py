"""Where a pass over a loader is and where it began, and the form in which that is saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from unmoor.values.positions import POSITION, Position

from . import rng
from .loader_order import Indices

__all__ = ["Before", "Place", "Saved", "Start"]


@dataclass(slots=True)
class Place:
    """Where a pass over the loader is: its start, the indices that it draws, and the batches handed out."""

    start: Start
    indices: Indices
    batches: int = 0
    done: bool = False
    first: int = 0
    anew: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """What decides the order of an epoch, as it was when the epoch began. `again`: with workers that were there."""

    host: Mapping[str, Any] = field(default_factory=dict)
    generators: Mapping[str, Any] = field(default_factory=dict)
    epochs: Mapping[str, int] = field(default_factory=dict)
    again: bool = False

    def completed(self, now: Start) -> Start:
        """With the states of `now` where none were saved: of a rank that did not exist, or whose order needs none."""
        generators = {name: self.generators.get(name, state) for name, state in now.generators.items()}
        return replace(self, host=self.host or now.host, generators=generators, epochs={**now.epochs, **self.epochs})

    def setters(self, generators: Mapping[str, Any], epochs: Mapping[str, Any]) -> list[Callable[[], Any]]:
        """One call for each state."""
        own = [rng.generator_setter(generators[name], state) for name, state in self.generators.items()]
        return [*rng.host_setters(self.host), *own, *self.epoch_setters(epochs)]

    def epoch_setters(self, epochs: Mapping[str, Any]) -> list[Callable[[], Any]]:
        """One call for each sampler that is told its epoch."""
        known = [(epochs[name], epoch) for name, epoch in self.epochs.items() if name in epochs]
        return [partial(sampler.set_epoch, epoch) for sampler, epoch in known]


@dataclass(frozen=True, slots=True)
class Before:
    """What a rank of another world was given of an epoch: its batches from sample `first` on, and their checksum."""

    position: Position
    first: int
    batches: int
    digest: int


@dataclass(frozen=True, slots=True)
class Saved:
    """A position as it is written: `now` are the loader's generators at the save, None to leave those it has.

    `first` are samples of the epoch that all ranks had done before the batches began to be counted. `anew` tells that
    nothing was drawn since: what the order is drawn from stands at the start of the epoch.
    """

    batches: int
    digest: int
    start: Start
    now: Mapping[str, Any] | None
    first: int = 0
    before: Before | None = None
    anew: bool = False

    @property
    def within(self) -> bool:
        """Whether an epoch is under way."""
        return bool(self.start.host or self.first or self.batches)

    def in_epoch(self, epochs: Mapping[str, int]) -> Saved:
        """The same with other epochs for its samplers, by place."""
        return replace(self, start=replace(self.start, epochs=epochs))

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Saved:
        """A position out of what `state` gave, or what a plan made of it for a world of another size."""
        before, position = state.get("before"), Position.from_plain(state.get(POSITION))
        proof = None if before is None or position is None else Before(position, **before)
        start = Start(**state["start"])
        made = cls(state["batches"], state["digest"], start, state["generators"], state.get("first", 0), proof)
        return replace(made, anew=bool(state.get("anew", False)))

    def state(self) -> dict[str, Any]:
        """The position as plain values and tensors."""
        start = {"host": dict(self.start.host), "generators": dict(self.start.generators)}
        return {
            "batches": self.batches,
            "digest": self.digest,
            "first": self.first,
            "anew": self.anew,
            "start": {**start, "epochs": dict(self.start.epochs), "again": self.start.again},
            "generators": None if self.now is None else dict(self.now),
        }
