"""Facts of live optimizers, schedulers and scalers: groups, state by key path, who follows whom. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from unmoor.values.run_facts import GroupFacts, OptimizerFacts, ParamFacts, ScalerFacts, ScheduleFacts, TensorFact

from .devices import tag
from .optimizers import family_of, find_optimizer
from .redundancy import stepping
from .run_facts_modules import tensor_fact
from .schedulers import find_scheduler
from .shards import local_of

__all__ = ["capturable_types", "fused_types", "optimizer_facts", "scaler_facts", "schedule_facts"]

_FLAGS: Final = ("capturable", "fused", "foreach", "differentiable", "momentum", "amsgrad", "centered")
_COPIES: Final = ("deepspeed", "apex", "megatron", "fairscale", "colossalai")
"""Packages whose optimizers step copies of the parameters, flat or in another dtype."""

_DEPTH: Final = 3


def capturable_types() -> frozenset[str]:
    """The device types on which a class with capturable=True steps."""
    from torch.optim import optimizer

    ask = getattr(optimizer, "_get_capturable_supported_devices", None)
    return frozenset(map(str, ask())) if ask else frozenset({"cuda", "xpu", "hpu", "xla"})


def fused_types() -> frozenset[str]:
    """The device types that have kernels for fused=True."""
    from torch.optim import optimizer

    ask = getattr(optimizer, "_get_fused_kernels_supported_devices", None)
    return frozenset(map(str, ask())) if ask else frozenset({"cpu", "cuda", "xpu", "mps", "hpu"})


def optimizer_facts(label: str, at: str, item: Any) -> OptimizerFacts | None:
    """An optimizer, or what wraps one; None where no optimizer of torch is in it."""
    optimizer = find_optimizer(item)
    if optimizer is None:
        return None
    own = stepping(optimizer)
    chain = [*_chain(item), optimizer, own]
    return OptimizerFacts(
        label=label,
        at=at,
        class_name=type(optimizer).__name__,
        family=family_of(optimizer),
        groups=tuple(_group(group, own.state) for group in optimizer.param_groups),
        made=_made(optimizer),
        keys=frozenset(map(id, (*chain, *optimizer.param_groups))),
        stale=_stale(item, optimizer),
        copies=any(type(one).__module__.partition(".")[0] in _COPIES for one in chain),
    )


def _chain(item: Any) -> Iterator[Any]:
    """An object and the optimizers that it wraps, from the outside in."""
    seen: set[int] = set()
    while item is not None and id(item) not in seen:
        seen.add(id(item))
        yield item
        item = getattr(item, "optimizer", None)


def _stale(item: Any, optimizer: Optimizer) -> str:
    """The class of a wrapper that keeps groups of its own which are no longer the optimizer's."""
    live = {id(group) for group in optimizer.param_groups}
    for one in _chain(item):
        kept = vars(one).get("param_groups") if hasattr(one, "__dict__") and one is not optimizer else None
        if isinstance(kept, list) and kept and live.isdisjoint(map(id, kept)):
            return type(one).__name__
    return ""


def _made(optimizer: Optimizer) -> str:
    cls = type(optimizer)
    name = f"torch.optim.{cls.__name__}" if f"{cls.__module__}.".startswith("torch.optim.") else cls.__name__
    rate = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
    first = optimizer.param_groups[0].get("initial_lr", rate) if optimizer.param_groups else None
    return f"{name}({{}}, lr={first!r})" if isinstance(first, int | float) else f"{name}({{}})"


def _group(group: Mapping[str, Any], state: Mapping[Any, Any]) -> GroupFacts:
    flags = {key: bool(group[key]) if group[key] is not None else None for key in _FLAGS if key in group}
    options = {key: value for key, value in group.items() if key != "params"}
    tensors = [fact for key, value in options.items() for fact in _tensors(key, value, "option")]
    named = group.get("param_names") or [""] * len(group["params"])
    pairs = zip(group["params"], named, strict=False)
    return GroupFacts(flags, tuple(tensors), tuple(_param(param, str(name), state) for param, name in pairs))


def _param(param: torch.Tensor, name: str, state: Mapping[Any, Any]) -> ParamFacts:
    own = state.get(param) or {}
    plain = own if isinstance(own, Mapping) else vars(own)
    tensors = [fact for key, value in plain.items() for fact in _tensors(str(key), value, "state")]
    return ParamFacts(tensor_fact(name, param, "parameter"), tuple(tensors), frozenset(map(str, plain)))


def _tensors(name: str, value: Any, kind: str, depth: int = _DEPTH) -> Iterator[TensorFact]:
    """The tensors of one entry of state; LBFGS keeps lists of them."""
    if isinstance(value, torch.Tensor):
        fact = tensor_fact(name, value, kind)
        yield fact if local_of(value) is value else tensor_fact(name, value, "shard")
    elif depth > 0 and isinstance(value, Mapping | list | tuple):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _tensors(f"{name}[{key!r}]", item, kind, depth - 1)


def schedule_facts(label: str, at: str, item: Any) -> Iterator[ScheduleFacts]:
    """A scheduler of torch and those that it holds; nothing for others."""
    scheduler = find_scheduler(item)
    if scheduler is None:
        return
    optimizer = getattr(scheduler, "optimizer", None)
    held = getattr(scheduler, "_schedulers", None) or ()
    groups = getattr(optimizer, "param_groups", None) or ()
    yield ScheduleFacts(
        label=label,
        at=at,
        class_name=type(scheduler).__name__,
        follows=id(optimizer),
        optimizer=type(optimizer).__name__,
        size=sum(len(group["params"]) for group in groups),
        last=_numbers(getattr(scheduler, "_last_lr", None)),
        rates=_numbers([group.get("lr") for group in groups]),
        groups=frozenset(map(id, groups)),
    )
    for index, inner in enumerate(held):
        if isinstance(inner, LRScheduler):
            for fact in schedule_facts(f"{label}._schedulers[{index}]", f"{at}._schedulers[{index}]", inner):
                yield replace(fact, last=(), rates=())


def _numbers(values: Any) -> tuple[float, ...]:
    """Rates as numbers; nothing where one of them is on a device, which reading would wait for."""
    if not isinstance(values, list | tuple):
        return ()
    found = []
    for value in values:
        if isinstance(value, torch.Tensor) and (value.device.type != "cpu" or value.numel() != 1):
            return ()
        if not isinstance(value, torch.Tensor | int | float):
            return ()
        found.append(float(value))
    return tuple(found)


def scaler_facts(label: str, at: str, scaler: Any) -> ScalerFacts | None:
    """A gradient scaler of torch; None for anything else."""
    if not callable(getattr(scaler, "unscale_", None)) or not callable(getattr(scaler, "is_enabled", None)):
        return None
    scale = getattr(scaler, "_scale", None)
    kind = getattr(scaler, "_device", "cuda")
    return ScalerFacts(
        label=label,
        at=at,
        enabled=bool(scaler.is_enabled()),
        device_type=str(kind),
        scale=tag(scale.device) if isinstance(scale, torch.Tensor) else "",
    )
