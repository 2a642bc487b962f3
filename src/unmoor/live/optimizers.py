"""Live optimizers as values, and the one place where their state is set.

Groups and their dictionaries stay the same objects: schedulers and wrappers that hold them keep working.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]
from torch.optim import Optimizer

from unmoor.values.optimizers import FAMILIES
from unmoor.values.target import TargetGroup, TargetOptimizer, TargetParam

from .devices import tag
from .modules import is_dense, slot_of

__all__ = ["apply_state", "find_optimizer", "is_direct", "live_params", "target_optimizer"]


def find_optimizer(value: Any) -> Optimizer | None:
    """The torch optimizer that `value` is or wraps as its `optimizer` attribute, else None."""
    seen: set[int] = set()
    while not isinstance(value, Optimizer):
        if value is None or id(value) in seen:
            return None
        seen.add(id(value))
        value = getattr(value, "optimizer", None)
    return value


def is_direct(optimizer: Optimizer) -> bool:
    """Whether state can be placed without the class's own load_state_dict: it has none, and no hooks are registered."""
    return (
        type(optimizer).load_state_dict is Optimizer.load_state_dict
        and not optimizer._optimizer_load_state_dict_pre_hooks
        and not optimizer._optimizer_load_state_dict_post_hooks
    )


def live_params(optimizer: Optimizer) -> list[torch.Tensor]:
    """All parameters of an optimizer, group by group."""
    return [param for group in optimizer.param_groups for param in group["params"]]


def family_of(optimizer: Optimizer) -> str:
    """The row of the optimizer table that the class, or a class it derives from, stands in; "" for none."""
    for cls in type(optimizer).__mro__:
        for family in FAMILIES.values():
            if cls.__name__ in (family.name, *family.also):
                return family.name
    return ""


def target_optimizer(
    label: str,
    optimizer: Optimizer,
    names: Mapping[int, str],
    moves: Mapping[int, torch.device],
) -> TargetOptimizer:
    """A live optimizer as a target. `names` and `moves` go by id of the parameter: canonical name, new device."""
    groups = []
    shared = _shared_storages(optimizer)
    for g, group in enumerate(optimizer.param_groups):
        own = group.get("param_names") or [""] * len(group["params"])
        params = tuple(
            _target_param(f"{label}/{g}/{i}", optimizer, p, names.get(id(p)) or own[i], moves.get(id(p)), shared)
            for i, p in enumerate(group["params"])
        )
        options = {k: v for k, v in group.items() if k not in ("params", "param_names")}
        groups.append(TargetGroup(options=options, params=params))
    return TargetOptimizer(
        role="optimizer",
        label=label,
        class_name=type(optimizer).__name__,
        family=family_of(optimizer),
        groups=tuple(groups),
        direct=is_direct(optimizer),
    )


def _shared_storages(optimizer: Optimizer) -> frozenset[int]:
    """Storages that more than one state tensor looks into: those are never filled where they are."""
    seen: set[int] = set()
    twice: set[int] = set()
    for state in optimizer.state.values():
        for value in state.values() if isinstance(state, dict) else ():
            if isinstance(value, torch.Tensor) and value.layout == torch.strided:
                storage = value.untyped_storage()._cdata
                (twice if storage in seen else seen).add(storage)
    return frozenset(twice)


def _target_param(
    identity: str,
    optimizer: Optimizer,
    param: torch.Tensor,
    name: str,
    device: torch.device | None,
    shared: frozenset[int],
) -> TargetParam:
    state = optimizer.state.get(param, {}) if not isinstance(param, UninitializedTensorMixin) else {}
    stays = device is None or device == param.device
    slots = {k: slot_of(f"{identity}/{k}", v) for k, v in state.items() if stays and _can_be_filled(v, shared)}
    return TargetParam(
        name=name,
        shape=tuple(param.shape),
        dtype=str(param.dtype).removeprefix("torch."),
        device=tag(device or param.device),
        stride=tuple(param.stride()),
        dense=is_dense(param),
        state=slots,
    )


def _can_be_filled(value: Any, shared: frozenset[int]) -> bool:
    plain = isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.requires_grad
    return plain and value.untyped_storage()._cdata not in shared


def apply_state(
    optimizer: Optimizer,
    options: tuple[Mapping[str, Any], ...],
    state: Mapping[int, Mapping[str, Any]],
    build: Callable[[Any], Any],
) -> None:
    """Set options and state in place. `build` turns the plan's values (slots among them) into live ones.

    The class's own __setstate__ runs last, so that it adds the options and converts the counters that it wants.
    """
    params = live_params(optimizer)
    fresh = {params[position]: {key: build(value) for key, value in entry.items()} for position, entry in state.items()}
    settings = [{key: build(value) for key, value in group.items()} for group in options]
    optimizer.state.clear()
    optimizer.state.update(fresh)
    for group, values in zip(optimizer.param_groups, settings, strict=True):
        _set_options(group, values)
    optimizer.__setstate__({})


def _set_options(group: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Set options, writing into a tensor learning rate rather than replacing it: compiled steps hold that tensor."""
    for key, value in values.items():
        live = group.get(key)
        if isinstance(live, torch.Tensor):
            with torch.no_grad():
                live.copy_(torch.as_tensor(value))
        elif isinstance(live, tuple) and isinstance(value, list):
            group[key] = tuple(value)
        else:
            group[key] = value
