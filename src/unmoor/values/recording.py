"""What one process of a proof saw of its run, step by step, as plain values that another process can read.

A mark stands for one thing of the run's state: its digest decides, the text shows it. Components are words of `PARTS`,
the keyword of an object, or a random stream; clues are state that no keyword of `save` reaches, which explains a
difference and is none by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["CLUES", "PARTS", "RNG", "Batch", "Failure", "Mark", "Moment", "Recording", "State"]

PARTS: Final = ("parameters", "buffers", "gradients", "optimizer", "options")
"""The parts of models and optimizers, each a component of its own. `options` are those of an optimizer's groups."""

RNG: Final = "rng "
"""What the components of random streams begin with: `rng torch`, `rng numpy`, `rng python`, `rng cuda`, `rng noise`."""

CLUES: Final = "clue "
"""What components begin with that only explain: `clue generator`, `clue value`, `clue mode`."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One thing of a state: its digest, how it reads, and where arithmetic may differ a sketch of its values.

    The distance of two sketches estimates that of the tensors (see live/sketches). `number` is a plain number's value.
    """

    digest: str
    shown: str
    sketch: tuple[float, ...] = ()
    number: float | None = None

    def to_json(self) -> list[Any]:
        """The mark as plain JSON values."""
        return [self.digest, self.shown, list(self.sketch), self.number]

    @classmethod
    def of(cls, row: Any) -> Mark:
        """A mark out of what `to_json` gave."""
        return cls(row[0], row[1], tuple(row[2]), row[3])


State = Mapping[str, Mapping[str, Mark]]
"""Component -> name of a thing in it -> its mark."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch that was drawn: the digest of its values, and its samples, by index where `known`, else by digest."""

    digest: str
    samples: tuple[str, ...] = ()
    known: bool = False

    def to_json(self) -> dict[str, Any]:
        """The batch as plain JSON values."""
        return {"digest": self.digest, "samples": list(self.samples), "known": self.known}


@dataclass(frozen=True, slots=True)
class Moment:
    """The run after a step: the loss that the step gave, the batches that it drew, the state that it left.

    `epoch` is the pass over the loader, `first` tells that the step drew the first batch of one.
    """

    step: int
    loss: float | None
    batches: tuple[Batch, ...]
    state: State
    epoch: int = 0
    first: bool = False

    def to_json(self) -> dict[str, Any]:
        """The moment as plain JSON values; the loss exactly, as Python writes floats in hexadecimal."""
        return {
            "step": self.step,
            "loss": None if self.loss is None else float(self.loss).hex(),
            "batches": [batch.to_json() for batch in self.batches],
            "state": _plain(self.state),
            "epoch": self.epoch,
            "first": self.first,
        }

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Moment:
        """A moment out of what `to_json` gave."""
        batches = tuple(Batch(b["digest"], tuple(b["samples"]), b["known"]) for b in row["batches"])
        loss = None if row["loss"] is None else float.fromhex(row["loss"])
        return cls(row["step"], loss, batches, _state(row["state"]), row["epoch"], row["first"])


@dataclass(frozen=True, slots=True)
class Failure:
    """An error that ended a process: where (build, step, save, resume), its class, and what it said."""

    where: str
    kind: str
    headline: str
    details: tuple[str, ...] = ()
    remedy: str = ""
    path: str = ""
    fault: str = ""

    def to_json(self) -> dict[str, Any]:
        """The failure as plain JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Failure:
        """A failure out of what `to_json` gave."""
        return cls(**{**row, "details": tuple(row["details"])})


@dataclass(frozen=True, slots=True)
class Recording:
    """All that one process saw. `restored` is the state right after the restore, `saved` that right after the save.

    `unsaved` are keywords of the run that were not handed to save, with the reason. `facts` are words on the run that
    explain differences: `batchnorm`, `dropout`, `train_step draws`.
    """

    rank: int
    device: str
    moments: tuple[Moment, ...] = ()
    restored: State | None = None
    saved: State | None = None
    unsaved: Mapping[str, str] = field(default_factory=dict)
    facts: frozenset[str] = frozenset()
    failure: Failure | None = None

    def at(self, step: int) -> Moment | None:
        """The moment after a step."""
        return next((moment for moment in self.moments if moment.step == step), None)

    def to_json(self) -> dict[str, Any]:
        """The recording as plain JSON values."""
        return {
            "rank": self.rank,
            "device": self.device,
            "moments": [moment.to_json() for moment in self.moments],
            "restored": None if self.restored is None else _plain(self.restored),
            "saved": None if self.saved is None else _plain(self.saved),
            "unsaved": dict(self.unsaved),
            "facts": sorted(self.facts),
            "failure": None if self.failure is None else self.failure.to_json(),
        }

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Recording:
        """A recording out of what `to_json` gave."""
        return cls(
            row["rank"],
            row["device"],
            tuple(map(Moment.of, row["moments"])),
            None if row["restored"] is None else _state(row["restored"]),
            None if row["saved"] is None else _state(row["saved"]),
            row["unsaved"],
            frozenset(row["facts"]),
            None if row["failure"] is None else Failure.of(row["failure"]),
        )


def _plain(state: State) -> dict[str, Any]:
    return {part: {name: mark.to_json() for name, mark in found.items()} for part, found in state.items()}


def _state(row: Mapping[str, Any]) -> State:
    return {part: {name: Mark.of(mark) for name, mark in found.items()} for part, found in row.items()}
