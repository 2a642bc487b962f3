"""Pickled modules and optimizers as the state dicts that they would have given, so that a restore takes either.

Read from the attributes that every nn.Module and every torch optimizer has; no class is needed, and none is built.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from unmoor.values.catalog import Catalog, Part
from unmoor.values.nodes import Opaque

__all__ = ["with_states"]


def with_states(catalog: Catalog) -> Catalog:
    """The same catalog, with the node of each pickled module and optimizer as its state dict."""
    if not any(isinstance(part.node, Opaque) for part in catalog.parts):
        return catalog
    return replace(catalog, parts=tuple(_with_state(part) for part in catalog.parts))


def _with_state(part: Part) -> Part:
    state = part.node.state if isinstance(part.node, Opaque) else None
    if not isinstance(state, Mapping):
        return part
    if part.role == "model" and "_modules" in state:
        return replace(part, kind="state_dict", node=dict(_module_items(part.node, "", frozenset())))
    if part.role == "optimizer" and "param_groups" in state:
        return replace(part, kind="state_dict", node=_optimizer_state(state))
    return part


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
