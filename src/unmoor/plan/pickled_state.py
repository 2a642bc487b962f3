"""Pickled modules, optimizers and schedulers as the state dicts that they would have given; a restore takes either.

Read from the attributes that every nn.Module, torch optimizer and torch scheduler has; no class is needed or built.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from unmoor.values.catalog import Catalog, Part
from unmoor.values.dtypes import dtype_bytes
from unmoor.values.nodes import CompositeTensor, Opaque, TensorNode
from unmoor.values.schedulers import CHILDREN, DERIVED

__all__ = ["unpickled", "with_states"]

_SCRIPT: Final = "__torch__."
"""How TorchScript names the classes of its modules."""


def with_states(catalog: Catalog) -> Catalog:
    """The same catalog, with the node of each pickled module, optimizer and scheduler as its state dict."""
    if not any(isinstance(part.node, Opaque) for part in catalog.parts):
        return catalog
    parts = tuple(_with_state(part) for part in catalog.parts)
    inner = () if any(catalog.part("optimizer")) else _optimizers_within(catalog)
    return replace(catalog, parts=(*parts, *inner))


def _optimizers_within(catalog: Catalog) -> tuple[Part, ...]:
    """The optimizer that a pickled scheduler holds, for files that hold no other."""
    found: dict[int, Part] = {}
    for part in catalog.part("scheduler"):
        node = part.node.state.get("optimizer") if isinstance(part.node, Opaque) else None
        if isinstance(node, Opaque) and isinstance(node.state, Mapping) and "param_groups" in node.state:
            state = _optimizer_state(node.state)
            tensors = [t for entry in state["state"].values() for t in entry.values() if isinstance(t, TensorNode)]
            params = sum(len(group["params"]) for group in state["param_groups"])
            found[id(node)] = Part(
                role="optimizer",
                kind="state_dict",
                keys=(*part.keys, "optimizer"),
                tensors=len(tensors),
                nbytes=sum(t.numel * dtype_bytes(t.dtype) for t in tensors),
                devices=Counter(t.device for t in tensors),
                detail={"class": node.name, "params": params, "family": ""},
                node=state,
            )
    return tuple(found.values())


def _with_state(part: Part) -> Part:
    state = part.node.state if isinstance(part.node, Opaque) else None
    if not isinstance(state, Mapping):
        return part
    if "_parameters" in state and "_modules" in state:
        return replace(part, kind="state_dict", node=dict(_module_items(part.node, "", frozenset())))
    if part.role == "model" and part.node.name.startswith(_SCRIPT):
        return replace(part, kind="state_dict", node=dict(_script_items(part.node, "", frozenset())))
    if part.role == "optimizer" and "param_groups" in state:
        return replace(part, kind="state_dict", node=_optimizer_state(state))
    if part.role == "scheduler":
        return replace(part, kind="state_dict", node=_scheduler_state(state))
    return part


_CALLED: Final = ("lr_lambdas", "_scale_fn_custom")
"""Where schedulers keep what they call: a state dict holds None for a function, and the state of an object."""


def _scheduler_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes without the optimizer and what the class makes anew; schedulers within in the same way."""
    kept = {key: unpickled(value) for key, value in state.items() if key not in DERIVED}
    for key in _CALLED:
        if isinstance(kept.get(key), list | tuple):
            kept[key] = [_called(value) for value in kept[key]]
        elif key in kept:
            kept[key] = _called(kept[key])
    if isinstance(kept.get(CHILDREN), list | tuple):
        children = [child.state if isinstance(child, Opaque) else child for child in kept[CHILDREN]]
        kept[CHILDREN] = [_scheduler_state(child) if isinstance(child, Mapping) else child for child in children]
    return kept


def unpickled(value: Any) -> Any:
    """The state of a pickled scheduler that another goes on to; anything else as it is."""
    state = value.state if isinstance(value, Opaque) else None
    is_scheduler = isinstance(state, Mapping) and "last_epoch" in state and isinstance(state.get("optimizer"), Opaque)
    return _scheduler_state(state) if isinstance(state, Mapping) and is_scheduler else value


def _called(value: Any) -> Any:
    """What a state dict holds of a callable; objects without attributes pickle as nothing."""
    if not isinstance(value, Opaque) or value.how == "global":
        return None
    return value.state if isinstance(value.state, Mapping) else {}


def _module_items(module: Any, prefix: str, above: frozenset[int]) -> Iterator[tuple[str, Any]]:
    """Name and tensor of parameters and persistent buffers, in the order of a state dict."""
    state = module.state if isinstance(module, Opaque) else None
    if not isinstance(state, Mapping) or id(module) in above:
        return
    hidden = state.get("_non_persistent_buffers_set") or ()
    yield from _named(state.get("_parameters"), prefix)
    yield from (
        (name, value) for name, value in _named(state.get("_buffers"), prefix) if name[len(prefix) :] not in hidden
    )
    for name, child in _named(state.get("_modules"), prefix):
        yield from _module_items(child, f"{name}.", above | {id(module)})


def _script_items(module: Any, prefix: str, above: frozenset[int]) -> Iterator[tuple[str, Any]]:
    """Name and tensor of what a TorchScript module holds; its attributes are parameters, buffers and modules alike."""
    state = module.state if isinstance(module, Opaque) and module.name.startswith(_SCRIPT) else None
    if not isinstance(state, Mapping) or id(module) in above:
        return
    for name, value in state.items():
        if isinstance(value, TensorNode | CompositeTensor):
            yield f"{prefix}{name}", value
        else:
            yield from _script_items(value, f"{prefix}{name}.", above | {id(module)})


def _named(values: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(values, Mapping):
        yield from ((f"{prefix}{name}", value) for name, value in values.items() if value is not None)


def _optimizer_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters by number, counted through the groups, in the place of the tensors themselves."""
    numbers: dict[int, int] = {}
    groups = []
    for group in state["param_groups"]:
        own = [numbers.setdefault(id(parameter), len(numbers)) for parameter in group["params"]]
        groups.append({**group, "params": own})
    by_number = {numbers[id(key)]: entry for key, entry in state["state"].items() if id(key) in numbers}
    return {"state": dict(sorted(by_number.items())), "param_groups": groups}
