"""The facts of a loader's position, as they are saved beside its state: see `unmoor.values.positions`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final
from zlib import crc32

import torch
from torch.utils.data import DataLoader, IterableDataset

from unmoor.values.positions import POSITION, Position

from . import rng
from .loader_parts import counts_epochs, held
from .loader_shares import Layers, layers, owner

__all__ = [
    "checksum",
    "drawn_from",
    "generators_of",
    "is_stateful_sampler",
    "order_generators",
    "setting",
    "stateful_state",
    "take_epoch",
]

_ORDERS: Final = {
    "torch.utils.data.sampler.SequentialSampler": "in order",
    "torch.utils.data.distributed.DistributedSampler": "seeded",
    "torchdata.stateful_dataloader.sampler.StatefulDistributedSampler": "seeded",
    "accelerate.data_loader.SeedableRandomSampler": "seeded",
    "torch.utils.data.sampler.RandomSampler": "drawn",
    "torch.utils.data.sampler.SubsetRandomSampler": "drawn",
    "torch.utils.data.sampler.WeightedRandomSampler": "drawn",
    "torchdata.stateful_dataloader.sampler.RandomSampler": "drawn",
}
"""The class that gives a sampler its iteration -> what decides its order, a key of `values.positions.ORDERS`."""

_STATEFUL_BATCHES: Final = "torchdata.stateful_dataloader.sampler.BatchSampler"
_STATEFUL_SAMPLER: Final = "torchdata.stateful_dataloader.sampler.StatefulDistributedSampler"


def is_stateful_sampler(value: Any) -> bool:
    """Whether a value is torchdata's distributed sampler, which keeps its position itself."""
    return owner(value) == _STATEFUL_SAMPLER


def setting(value: Any, kind: str) -> Position:
    """What decides a loader's order and how ranks share it. `value` is a DataLoader, or a sampler on its own."""
    if not isinstance(value, DataLoader):
        return _of_sampler(Layers(None, None, value), kind)
    if isinstance(value.dataset, IterableDataset):
        return Position(kind, "stream", _name(value.dataset), batch=value.batch_size or 1, world=_world())
    found = layers(value._index_sampler)
    by_batch = found.shard is not None or (found.batches is not None and owner(found.batches) != _STATEFUL_BATCHES)
    unit = "batch" if kind == "stateful" and by_batch else "single" if found.batches is None else "sample"
    return replace(_of_sampler(found, kind), unit=unit)


def _of_sampler(found: Layers, kind: str) -> Position:
    base = found.base
    order = _ORDERS.get(owner(base), "own")
    if order == "own" or (found.distributed and found.shard is not None):
        return Position(kind, "own", _name(base), world=_world())
    made = Position(kind, order, _name(base), length=_length(base), batch=1, world=_world())
    if found.distributed:
        even = "cut" if base.drop_last else "pad"
        made = replace(made, dealt="samples", replicas=base.num_replicas, rank=base.rank, even=even)
        made = replace(made, order="seeded" if base.shuffle else "in order", seed=base.seed if base.shuffle else None)
    elif order == "seeded":
        made = replace(made, seed=base.initial_seed)
    if counts_epochs(base):
        made = replace(made, epoch=base.epoch)
    if found.batches is not None:
        made = replace(made, batch=found.batches.batch_size, cut_short=found.batches.drop_last)
    if found.shard is not None:
        split = found.shard.split_batches
        made = replace(
            made,
            dealt="parts" if split else "batches",
            replicas=found.shard.num_processes,
            rank=found.shard.process_index,
            batch=made.batch // found.shard.num_processes if split else made.batch,
        )
    return made


def _length(base: Any) -> int:
    try:
        return len(base.dataset) if hasattr(base, "num_replicas") else len(base)
    except TypeError:
        return -1


def _name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _world() -> int:
    """The number of processes: a question to this one alone, no collective."""
    grouped = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if grouped else 1


def drawn_from(loader: Any, generators: Mapping[str, Any], host: Mapping[str, Any]) -> int:
    """A checksum of the states at the start of an epoch that its order is drawn from, 0 where it is drawn from none.

    `generators` are those of the loader by place, `host` the streams of the process.
    """
    base = layers(loader._index_sampler).base
    if _ORDERS.get(owner(base)) != "drawn":
        return 0
    states = [generators[name] for name in order_generators(loader) if name in generators]
    return checksum(states[0] if states else host.get("torch"))


def generators_of(loader: Any) -> dict[str, Any]:
    """The generators that a loader, its samplers and its dataset hold, by place.

    Without the one that a sampler makes for itself and seeds anew in each epoch: it has no state of its own.
    """
    base = layers(loader._index_sampler).base
    seeded = getattr(base, "generator", None) if _ORDERS.get(owner(base)) == "seeded" else None
    anew = seeded if seeded is not loader.generator else None
    return held(loader, lambda part: rng.is_generator(part) and part is not anew)


def order_generators(loader: Any) -> tuple[str, ...]:
    """The places at which a loader holds the generator that its order is drawn from; none where it has no own."""
    own = getattr(layers(loader._index_sampler).base, "generator", None)
    return () if own is None else tuple(held(loader, lambda part: part is own))


def checksum(value: Any, start: int = 0) -> int:
    """A checksum of plain values and CPU tensors, equal in every process for equal values."""
    if isinstance(value, torch.Tensor):
        return crc32(value.contiguous().view(torch.uint8).numpy().tobytes(), start)
    if isinstance(value, Mapping):
        for key, item in value.items():
            start = checksum(item, crc32(repr(key).encode(), start))
        return start
    return crc32(repr(value).encode(), start)


def stateful_state(value: Any, state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of torchdata's loader, or of its sampler on its own, with the facts of its position."""
    return {**state, POSITION: _stateful(value, state).to_plain()}


def _stateful(value: Any, state: Mapping[str, Any]) -> Position:
    if not isinstance(value, DataLoader):
        made = setting(value, "sampler")
        done = int(state["yielded"])
        return _at(made, done, under_way=done > 0, drawn=0)
    made = setting(value, "stateful")
    main = state.get("_snapshot", {}).get("_main_snapshot", state)
    since = int(state.get("_steps_since_snapshot", 0))
    batches = int(main.get("_sampler_iter_yielded", 0)) + since
    own = main.get("_sampler_iter_state")
    samples = own.get("samples_yielded") if isinstance(own, Mapping) else None
    done = made.batch * batches if samples is None else int(samples) + made.batch * since
    under_way = batches > 0 and not state.get("_iterator_finished")
    generators = {**held(value, lambda part: isinstance(part, torch.Generator))}
    source = own.get("sampler_iter_state", own) if isinstance(own, Mapping) else {}
    drawn = checksum(source["generator"]) if "generator" in source else 0
    if made.order == "drawn" and not drawn:
        drawn = checksum({name: generator.get_state() for name, generator in generators.items()})
    return _at(made, done, under_way=under_way, drawn=drawn)


def _at(made: Position, done: int, *, under_way: bool, drawn: int) -> Position:
    """A position after `done` samples of this rank."""
    if made.order in ("own", "stream"):
        return replace(made, under_way=under_way, consumed=done if under_way else 0, drawn=drawn)
    each = done * (1 if made.dealt == "whole" else made.replicas)
    left = made.each - done if made.dealt in ("whole", "samples") else made.length - each
    ended = under_way and (left <= 0 or (made.cut_short and left < made.batch))
    consumed = made.done(0, done) if under_way else 0
    return replace(made, consumed=consumed, under_way=under_way, ended=ended, drawn=drawn)


def take_epoch(loader: Any, epoch: int | None) -> None:
    """Tell the samplers of a loader, or a sampler itself, the epoch of a saved position."""
    if epoch is None:
        return
    counting = {"": loader} if counts_epochs(loader) else {}
    for sampler in (held(loader, counts_epochs) if isinstance(loader, DataLoader) else counting).values():
        sampler.set_epoch(epoch)
