"""Where a loader stands in an epoch, as plain facts: which order, dealt out to whom, and how far. Must not know torch.

Samples are counted over all ranks: `consumed` are the first samples of the epoch's order that were handed out by all of
them together, so that it means the same in a world of any size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

__all__ = ["DEALT", "ORDERS", "POSITION", "Position"]

POSITION: Final = "position"
"""The key of these facts in the saved state of a loader."""

ORDERS: Final[dict[str, str]] = {
    "in order": "the order of the dataset",
    "seeded": "shuffled by seed and epoch",
    "drawn": "shuffled by a random stream",
    "own": "the order of a sampler of its own",
    "stream": "the order of an iterable dataset",
}
"""What decides the order of an epoch, with the words of a report."""

DEALT: Final = ("whole", "samples", "batches", "parts")
"""How ranks share an epoch: each takes all of it, or takes turns by sample, by batch, or by parts of each batch."""


@dataclass(frozen=True, slots=True)
class Position:
    """The facts of one rank's loader.

    `kind` is who keeps the state: resumable (`unmoor.resumable`), stateful (torchdata's loader) or sampler (torchdata's
    sampler). `order` is a key of ORDERS and `sampler` the class that gives it; `length` are the samples of one epoch,
    over all ranks, -1 where it cannot be told. `dealt` is one of DEALT, to `replicas` of which this is number `rank`.
    `seed` and `epoch` are the sampler's, None where it has none; `even` is how the end is made even: "pad" (samples of
    the beginning again), "cut" or "" (not at all). `batch` are the samples of one batch of one rank, 0 where that
    differs from batch to batch, and `cut_short` tells that an incomplete last batch is left out. `unit` is what the
    state counts: sample, batch, or sample where there are no batches (single). A position within a unit is none that it
    could hold. `world` is the number of processes.

    Of a loader that was saved: `consumed` samples of the epoch over all ranks; `under_way` tells that it is within an
    epoch, `ended` that nothing of that epoch is left. `drawn` is a checksum of what the order was drawn from, or of
    what was handed out; equal on all ranks where they had one order.
    """

    kind: str
    order: str
    sampler: str
    length: int = -1
    dealt: str = "whole"
    replicas: int = 1
    rank: int = 0
    seed: int | None = None
    epoch: int | None = None
    even: str = ""
    batch: int = 0
    cut_short: bool = False
    unit: str = "sample"
    world: int = 1
    consumed: int = 0
    under_way: bool = False
    ended: bool = False
    drawn: int = 0

    @property
    def step(self) -> int:
        """Samples that one batch of every rank takes together, 0 where that is not the same for each batch."""
        return self.batch * (1 if self.dealt == "whole" else self.replicas)

    @property
    def each(self) -> int:
        """Samples that one rank takes in a whole epoch."""
        return self.share(0)

    def share(self, first: int) -> int:
        """Samples that one rank takes of what is left after `first` of all ranks, with those that make it even."""
        if self.dealt == "whole":
            return self.length - first
        left = self.length - first
        return left // self.replicas if self.even == "cut" else -(-left // self.replicas)

    def done(self, first: int, each: int) -> int:
        """Samples of all ranks that are done when one rank has taken `each` from `first` on; repeated ones left out."""
        if self.dealt == "whole":
            return min(first + each, self.length)
        most = min(first + self.share(first) * self.replicas, self.length) if self.dealt == "samples" else self.length
        return min(first + each * self.replicas, most)

    def uneven(self, first: int) -> int:
        """Samples that are repeated (or with "cut" left out) at the end, after `first`, to give all ranks as many."""
        return abs(self.share(first) * self.replicas - (self.length - first)) if self.dealt == "samples" else 0

    def setting(self) -> Position:
        """The facts of the loader alone: neither how far it came nor in which world."""
        return replace(self, epoch=None, world=1, consumed=0, under_way=False, ended=False, drawn=0)

    def to_plain(self) -> dict[str, Any]:
        """The facts as plain values, which any checkpoint can hold."""
        return asdict(self)

    @classmethod
    def from_plain(cls, value: Any) -> Position | None:
        """The facts that `to_plain` gave; None where they are none, or were not written by this version."""
        if not isinstance(value, Mapping):
            return None
        known = {field.name: value[field.name] for field in fields(cls) if field.name in value}
        if not {"kind", "order", "sampler"} <= known.keys() or known["order"] not in ORDERS:
            return None
        made = cls(**known)
        return made if made._is_sane() else None

    def _is_sane(self) -> bool:
        whole = (self.length, self.replicas, self.rank, self.batch, self.world, self.consumed, self.drawn)
        named = isinstance(self.kind, str) and isinstance(self.sampler, str) and self.even in ("", "pad", "cut")
        named = named and self.unit in ("sample", "single", "batch")
        known = all(value is None or type(value) is int for value in (self.seed, self.epoch))
        if not (named and known and self.dealt in DEALT and all(type(value) is int for value in whole)):
            return False
        return self.replicas > 0 and 0 <= self.rank < self.replicas and self.consumed >= 0 and self.batch >= 0
