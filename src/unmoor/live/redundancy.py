"""torch's ZeroRedundancyOptimizer: each rank has the state of some parameters, whole, and steps those alone.

Its own state_dict wants all state on one rank first, by collectives. Here a rank's state is seen where it is: as Held,
with all elements on the rank that steps the parameter.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch.optim import Optimizer

from unmoor.errors import UsageError
from unmoor.values.boxes import Box

from .held import Held

__all__ = ["is_redundancy", "own_parts", "present_state", "stepping"]


def is_redundancy(optimizer: Any) -> bool:
    """Whether an optimizer is torch's ZeroRedundancyOptimizer, or of a class that derives from it."""
    return _is_of_redundancy(type(optimizer))  # type: ignore[arg-type]


@lru_cache(maxsize=64)
def _is_of_redundancy(kind: type) -> bool:
    names = [cls.__name__ for cls in kind.__mro__ if cls.__module__.startswith("torch.distributed.optim")]
    return "ZeroRedundancyOptimizer" in names


def stepping(optimizer: Any) -> Optimizer:
    """The optimizer that keeps the state on this rank: the local one of a ZeroRedundancyOptimizer, else itself.

    Raises UsageError for one that steps inside of the backward pass: its local one is none of torch.optim.
    """
    if not is_redundancy(optimizer):
        return optimizer  # type: ignore[no-any-return]
    if optimizer._overlap_with_ddp:
        raise UsageError(
            "ZeroRedundancyOptimizer with overlap_with_ddp=True keeps its state in a functional optimizer, which "
            "cannot be saved or restored",
            remedy="Build it without overlap_with_ddp.",
        )
    return optimizer.optim  # type: ignore[no-any-return]


def present_state(optimizer: Any) -> dict[str, Any]:
    """The state dict of an optimizer as far as this rank has it, in the numbering of all its parameters."""
    if not is_redundancy(optimizer):
        return optimizer.state_dict()  # type: ignore[no-any-return]
    local = stepping(optimizer).state
    params = [param for group in optimizer.param_groups for param in group["params"]]
    numbers = iter(range(len(params)))
    groups = [{**group, "params": [next(numbers) for _ in group["params"]]} for group in optimizer.param_groups]
    state = {number: dict(local[param]) for number, param in enumerate(params) if local.get(param)}
    return {"state": state, "param_groups": groups}


def own_parts(optimizer: Any) -> dict[str, Any]:
    """The same with the tensors of state as Held, where other ranks have the state of other parameters."""
    packed = present_state(optimizer)
    size = optimizer.world_size
    if size == 1:
        return packed
    replicated = size < torch.distributed.get_world_size()
    state = {
        number: {key: _held(value, replicated=replicated) for key, value in entry.items()}
        for number, entry in packed["state"].items()
    }
    return {**packed, "state": state}


def _held(value: Any, *, replicated: bool) -> Any:
    """All of a tensor as the part of it that is here; a counter or a number as it is."""
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return value
    whole = Box((0,) * value.dim(), tuple(value.shape))
    local = value.detach()
    return Held(value.shape, value.dtype, value.device, ((whole, local),), local=local, replicated=replicated)
