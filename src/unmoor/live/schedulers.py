"""Live learning rate schedulers: what they follow, as values; and taking them further along their own schedule.

A scheduler writes into its optimizer's groups when it is built and when it steps. What is tried here is tried on a
copy of it over a scratch optimizer, so that nothing of the run changes before all of it can.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from unmoor.values.schedulers import DERIVED, SCHEDULERS
from unmoor.values.target import TargetSchedule

from .optimizers import set_options

__all__ = [
    "advanced",
    "find_scheduler",
    "group_options",
    "load_state",
    "put_back",
    "saved_state",
    "set_groups",
    "target_schedule",
]

Groups = tuple[dict[str, Any], ...]


def find_scheduler(value: Any) -> LRScheduler | None:
    """The torch scheduler that `value` is or wraps as its `scheduler` attribute, else None."""
    seen: set[int] = set()
    while not isinstance(value, LRScheduler):
        if value is None or id(value) in seen or isinstance(value, torch.nn.Module):
            return None
        seen.add(id(value))
        value = getattr(value, "scheduler", None)
    return value


def target_schedule(scheduler: LRScheduler) -> TargetSchedule:
    """What a live scheduler follows, as plain values."""
    return TargetSchedule(
        family=_family(scheduler),
        state=_plain(saved_state(scheduler)),
        groups=tuple(_plain(group) for group in group_options(scheduler)),
    )


def _family(scheduler: LRScheduler) -> str:
    known = {name for family in SCHEDULERS for name in (family.name, *family.also)}
    return next((cls.__name__ for cls in type(scheduler).__mro__ if cls.__name__ in known), "")


def _plain(value: Any) -> Any:
    """Plain values as they are, a tensor of one number as that number; None in the place of anything else."""
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else None
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str) else None


def group_options(scheduler: LRScheduler) -> Groups:
    """The options of each group of the scheduler's optimizer, without its parameters."""
    skip = ("params", "param_names")
    return tuple({k: v for k, v in group.items() if k not in skip} for group in scheduler.optimizer.param_groups)


def saved_state(scheduler: Any) -> Any:
    """The state dict of a scheduler without what its class makes anew; a scheduler that it holds likewise."""
    state = scheduler.state_dict()
    if not isinstance(state, Mapping):
        return state
    kept = {key: value for key, value in state.items() if key not in DERIVED}
    return {key: saved_state(value) if isinstance(value, LRScheduler) else value for key, value in kept.items()}


def load_state(scheduler: Any, state: Any) -> None:
    """Hand a scheduler its state; one that it holds stays the object that it is and takes its own."""
    found = find_scheduler(scheduler)
    held = {
        key: own
        for key, value in (state.items() if isinstance(state, Mapping) else ())
        if isinstance(value, Mapping) and isinstance(own := vars(found).get(key), LRScheduler)
    }
    if not held:
        scheduler.load_state_dict(state)
        return
    scheduler.load_state_dict({**state, **held})
    for key, own in held.items():
        load_state(own, state[key])


def set_groups(scheduler: LRScheduler, groups: Sequence[Mapping[str, Any]]) -> None:
    """Set options of the groups of the scheduler's optimizer, in the groups that it has."""
    for group, options in zip(scheduler.optimizer.param_groups, groups, strict=True):
        set_options(group, options)


def put_back(scheduler: LRScheduler, before: Groups) -> None:
    """The options of the groups as they were; options that were not there are gone."""
    set_groups(scheduler, before)
    for group, options in zip(scheduler.optimizer.param_groups, before, strict=True):
        for key in set(group) - set(options) - {"params", "param_names"}:
            del group[key]


def advanced(scheduler: LRScheduler, steps: int) -> tuple[dict[str, Any], Groups]:
    """The state of the scheduler and the options of its groups `steps` further on; changes neither."""
    twin = copy.deepcopy(scheduler, {id(scheduler.optimizer): _scratch(scheduler)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that its optimizer takes no step is the very point
        for _ in range(steps):
            twin.step()
    return saved_state(twin), group_options(twin)


def _scratch(scheduler: LRScheduler) -> torch.optim.Optimizer:
    """An optimizer with the groups' options over parameters of no size."""
    groups = [{"params": [torch.nn.Parameter(torch.empty(0))]} for _ in scheduler.optimizer.param_groups]
    scratch = torch.optim.SGD(groups, lr=0.0)
    for group, options in zip(scratch.param_groups, group_options(scheduler), strict=True):
        for name in set(group) - {"params"}:
            del group[name]  # SGD's own options are none of the live optimizer's
        group.update(copy.deepcopy(options))
    scratch.defaults = dict(scheduler.optimizer.defaults)
    return scratch
