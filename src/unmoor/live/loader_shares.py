"""How a loader's index sampler deals the order of an epoch out to ranks, and the rest of an epoch from any sample on.

An index sampler is read in three layers: what shares batches among ranks (accelerate's BatchSamplerShard), what makes
batches, and the sampler that gives the order. DistributedSampler is order and share in one; dealt to one rank, it is
the order of all.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from unmoor.values.positions import Position

__all__ = ["Layers", "handed_out", "layers", "owner", "rest"]

_SHARDS: Final = ("accelerate.data_loader.BatchSamplerShard",)
_BATCHES: Final = ("torch.utils.data.sampler.BatchSampler", "torchdata.stateful_dataloader.sampler.BatchSampler")
_DISTRIBUTED: Final = (
    "torch.utils.data.distributed.DistributedSampler",
    "torchdata.stateful_dataloader.sampler.StatefulDistributedSampler",
)


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers of an index sampler: `shard` and `batches` are None where it has none, `base` gives the order."""

    shard: Any
    batches: Any
    base: Any

    @property
    def distributed(self) -> bool:
        """Whether the order itself is dealt out to ranks, sample by sample."""
        return owner(self.base) in _DISTRIBUTED


def owner(sampler: Any) -> str:
    """The class that gives a sampler its iteration, by its full name."""
    for kind in type(sampler).__mro__:
        if "__iter__" in vars(kind):
            return f"{kind.__module__}.{kind.__qualname__}"
    return ""


def layers(index: Any) -> Layers:
    """The layers of an index sampler."""
    shard = index if owner(index) in _SHARDS else None
    inner = index.batch_sampler if shard is not None else index
    batches = inner if owner(inner) in _BATCHES else None
    return Layers(shard, batches, inner.sampler if batches is not None else inner)


def rest(index: Any, first: int) -> Any:
    """An index sampler that gives what is left of an epoch once all ranks together have taken its first samples.

    Batches are cut from there, and the samples are dealt out to ranks from there.
    """
    found = layers(index)
    made: Any = _Rest(found.base, first, dealt=found.distributed)
    if found.batches is not None:
        made = _with(found.batches, "sampler", made)
    return made if found.shard is None else _with(found.shard, "batch_sampler", made)


def _with(sampler: Any, name: str, inner: Any) -> Any:
    made = copy.copy(sampler)
    setattr(made, name, inner)
    return made


class _Rest:
    """A sampler's order from one sample on, dealt out to ranks where the sampler does so."""

    def __init__(self, sampler: Any, first: int, *, dealt: bool) -> None:
        self._sampler, self._first, self._dealt = sampler, first, dealt

    def __len__(self) -> int:
        if not self._dealt:
            return max(len(self._sampler) - self._first, 0)
        left = max(len(self._sampler.dataset) - self._first, 0)
        replicas: int = self._sampler.num_replicas
        return left // replicas if self._sampler.drop_last else -(-left // replicas)

    def __iter__(self) -> Iterator[Any]:
        if not self._dealt:
            yield from islice(iter(self._sampler), self._first, None)
            return
        whole = list(_whole(self._sampler))
        mine = whole[self._first :][self._sampler.rank :: self._sampler.num_replicas]
        yield from mine[: len(self)]
        if len(mine) < len(self):  # made even as DistributedSampler does, with samples of the epoch's beginning
            place = self._sampler.rank - (len(whole) - self._first) % self._sampler.num_replicas
            yield whole[place % len(whole)]


def _whole(sampler: Any) -> Iterator[Any]:
    """The order of an epoch that a DistributedSampler deals out."""
    made = copy.copy(sampler)
    made.num_replicas, made.rank = 1, 0
    made.num_samples = made.total_size = len(made.dataset)
    if hasattr(made, "next_yielded"):
        made.next_yielded = None
    return iter(made)


def handed_out(index: Any, first: int, saved: Position, batches: int) -> Iterator[Any]:
    """The batches that a rank was given from sample `first` on, drawn again from the order of this index sampler.

    How the order was dealt out, and in what batches, is that of the `saved` position.
    """
    found = layers(index)
    order = _whole(found.base) if found.distributed else iter(found.base)
    taken = list(islice(order, first, first + saved.step * batches))
    for number in range(batches):
        turn = taken[number * saved.step : (number + 1) * saved.step]
        start = 0 if saved.dealt in ("whole", "samples") else saved.rank * saved.batch
        batch = turn[saved.rank :: saved.replicas] if saved.dealt == "samples" else turn[start : start + saved.batch]
        yield batch if found.batches is not None else batch[0]
