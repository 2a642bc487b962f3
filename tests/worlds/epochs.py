"""Worlds of loaders in one process: each rank's loader with an explicit DistributedSampler, and what they are given.

A run is cut after some batches of an epoch; its states are carried to the loaders of another world as a restore does
it, by the plan of each rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler

import unmoor
from unmoor.live.loaders import give_state, loader_setting, saved_loader
from unmoor.plan.positions import PositionPlan, plan_position
from unmoor.values.target import TargetObject

__all__ = ["EPOCH", "batches", "carry", "distributed", "flat", "left", "order", "stateful", "stop"]

EPOCH = 3


def distributed(size: int, ranks: int, batch: int | None, **options: Any) -> list[Any]:
    """The loaders of all ranks: a stock DataLoader over a DistributedSampler, with unmoor's position."""
    return _all(size, ranks, batch, lambda *given, **more: unmoor.resumable(DataLoader(*given, **more)), **options)


def stateful(size: int, ranks: int, batch: int | None, **options: Any) -> list[Any]:
    """The same with torchdata's loader; `own` takes torchdata's sampler too."""
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    kind = StatefulDistributedSampler if options.pop("own", False) else DistributedSampler
    return _all(size, ranks, batch, StatefulDataLoader, sampler_class=kind, **options)


def _all(
    size: int,
    ranks: int,
    batch: int | None,
    make: Callable[..., Any],
    sampler_class: Any = DistributedSampler,
    shuffle: bool = True,
    seed: int = 0,
    cut: bool = False,
    **options: Any,
) -> list[Any]:
    made = []
    for rank in range(ranks):
        sampler = sampler_class(range(size), ranks, rank, shuffle=shuffle, seed=seed, drop_last=cut)
        sampler.set_epoch(EPOCH)
        made.append(make(range(size), batch_size=batch, sampler=sampler, **options))
    return made


def order(size: int, *, shuffle: bool = True, seed: int = 0, epoch: int = EPOCH) -> list[int]:
    """The order of an epoch over all ranks, as DistributedSampler documents it."""
    if not shuffle:
        return list(range(size))
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed + epoch)).tolist()


def batches(loader: Any, number: int | None = None) -> list[list[int]]:
    """What a loader gives, batch by batch: all that is left, or its first `number`, with the loop left there."""
    given: list[list[int]] = []
    if number == 0:
        return given
    for batch in loader:
        given.append(torch.as_tensor(batch).reshape(-1).tolist())
        if len(given) == number:
            break
    return given


def stop(loaders: Sequence[Any], number: int) -> tuple[list[list[list[int]]], list[Any]]:
    """Every rank's first `number` batches, and its state then as it is saved."""
    given, states = [], []
    for loader in loaders:
        given.append(batches(loader, number))
        states.append(saved_loader(loader))
    return given, states


def carry(states: Sequence[Any], loaders: Sequence[Any], mode: str = "exact") -> list[PositionPlan]:
    """Hand the saved states of all ranks to the loaders of another world, each by its own plan."""
    plans = []
    for rank, loader in enumerate(loaders):
        target = TargetObject("loader", "loader", type(loader).__name__, "user", "cpu", position=loader_setting(loader))
        node = states[rank] if rank < len(states) else states[0]
        made = plan_position(target, node, states, mode, rank=rank, world=len(loaders))
        plans.append(made)
        if not made.faults and made.state is not None:
            give_state(loader, made.state)
    return plans


def left(loaders: Sequence[Any]) -> list[list[list[int]]]:
    """What is left for each rank, batch by batch."""
    return [batches(loader) for loader in loaders]


def flat(given: Any) -> list[int]:
    """All samples of nested lists."""
    return [given] if isinstance(given, int) else [sample for part in given for sample in flat(part)]
