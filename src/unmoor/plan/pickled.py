"""Roles of the tensors inside pickled objects: by the table of known classes, and by what every nn.Module is made of.

One visit to each object for each role that reaches it: objects that hold each other many times over cost no more than
they are large. What a module holds beside its parameters, buffers and submodules decides nothing that they decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from unmoor.values.catalog import Catalog
from unmoor.values.nodes import CompositeTensor, Opaque, TensorNode
from unmoor.values.objects import ALL, OBJECT_ROLES
from unmoor.values.optimizers import COUNTERS, counts_on_device, guess_family

__all__ = ["STEP", "pickled_roles"]

STEP: Final = "step"
"""Stands for the role of an optimizer's counter that lives on the host."""

_MODULE: Final = ("_parameters", "_buffers", "_modules")


class _Visit(NamedTuple):
    """A value to look at: the role that reaches it, "" for none, and whether that role is its own for certain."""

    value: Any
    role: str
    sure: bool


def pickled_roles(catalog: Catalog) -> dict[str, frozenset[str]]:
    """Storage key -> roles of its tensors, for files that hold an object of a known class; else nothing."""
    if not any(name in OBJECT_ROLES for name in catalog.globals):
        return {}
    sure: dict[str, set[str]] = {}
    likely: dict[str, set[str]] = {}
    own = {id(part.node): part.role for part in catalog.parts if part.role != "extra"}
    for node, role, certain in _visits(catalog.tree, own):
        if node.storage is not None and role:
            (sure if certain else likely).setdefault(node.storage.key, set()).add(role)
    return {key: frozenset(roles) for key, roles in {**likely, **sure}.items()}


def _visits(tree: Any, own: Mapping[int, str]) -> Iterator[_Visit]:
    """Every tensor with each role that reaches it. `own` is the role of each part of the catalog by id of its node."""
    seen: set[tuple[int, str, bool]] = set()
    left = [_Visit(tree, "", sure=False)]
    while left:
        value, role, sure = left.pop()
        if not role and id(value) in own:
            role, sure = own[id(value)], True
        if (id(value), role, sure) in seen:
            continue
        seen.add((id(value), role, sure))
        if isinstance(value, TensorNode):
            yield _Visit(value, role, sure)
        else:
            left += _inside(_Visit(value, role, sure))


def _inside(visit: _Visit) -> Iterator[_Visit]:
    value = visit.value
    if isinstance(value, Opaque):
        yield from _inside_object(visit)
    elif isinstance(value, Mapping):
        yield from _inside_mapping(visit)
    elif isinstance(value, CompositeTensor):
        yield from (visit._replace(value=part) for part in value.children.values())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from (visit._replace(value=part) for part in value)


def _inside_mapping(visit: _Visit) -> Iterator[_Visit]:
    value = visit.value
    if visit.role == "optimizer" and "param_groups" in value and isinstance(value.get("state"), Mapping):
        on_device = set(_device_params(value["param_groups"], _family(value)))
        for parameter, state in value["state"].items():
            yield from _inside_state(state, host=parameter not in on_device)
        yield visit._replace(value=value["param_groups"])
    else:
        yield from (visit._replace(value=part) for part in value.values())


def _family(value: Mapping[Any, Any]) -> str:
    """The class that the state dict of an optimizer most looks like."""
    keys = {key for entry in value["state"].values() if isinstance(entry, Mapping) for key in entry}
    groups = [group for group in value["param_groups"] if isinstance(group, Mapping)]
    return guess_family(keys, {key for group in groups for key in group})


def _device_params(groups: Iterable[Any], family: str) -> Iterator[Any]:
    """The parameters of groups that keep their counters on the device."""
    for group in groups:
        if isinstance(group, Mapping) and counts_on_device(family, group):
            yield from group.get("params", ())


def _inside_state(state: Any, *, host: bool) -> Iterator[_Visit]:
    if isinstance(state, Mapping):
        for key, part in state.items():
            yield _Visit(part, STEP if host and key in COUNTERS else "optimizer", sure=True)


def _inside_object(visit: _Visit) -> Iterator[_Visit]:
    value, role, sure = visit
    roles = OBJECT_ROLES.get(value.name, {})
    named = value.state if isinstance(value.state, Mapping) else {}
    if role == "optimizer" and "param_groups" in named:
        yield from _inside_mapping(visit._replace(value=named))
        return
    is_module = "_parameters" in named and "_modules" in named
    for key, part in _attributes(value):
        known = roles.get(key, roles.get(ALL)) if isinstance(key, str | int) else None
        if known is not None:
            yield _Visit(part, known, sure=True)
        elif is_module:
            yield _Visit(part, role or "model", sure=(sure or not role) and key in _MODULE)
        else:
            yield visit._replace(value=part)


def _attributes(value: Opaque) -> Iterator[tuple[Any, Any]]:
    """What an object holds: arguments by position, attributes by name, elements and entries."""
    yield from enumerate(value.args)
    states = value.state if isinstance(value.state, tuple) and len(value.state) == 2 else (value.state,)
    for state in states:
        yield from state.items() if isinstance(state, Mapping) else (("__state__", state),)
    yield "__items__", value.items
    yield from value.entries
    yield from (value.kwargs or {}).items()
