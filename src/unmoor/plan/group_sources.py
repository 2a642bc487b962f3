"""Which saved groups the parameters of each live group came from, and what those groups say together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unmoor.values.nodes import TensorNode
from unmoor.values.target import TargetOptimizer

from .optimizer_match import OptimizerMatch
from .saved_optimizer import FROZEN, SavedOptimizer

__all__ = ["Merged", "group_sources", "merge"]

Group = Mapping[str, Any]


def group_sources(target: TargetOptimizer, saved: SavedOptimizer, match: OptimizerMatch) -> list[list[Group]]:
    """For each live group the saved groups of its parameters, in the order in which they are met.

    A group of parameters that were frozen when the file was written counts only where there is no other. An empty live
    group stands for the empty saved one at its place.
    """
    homes = saved.homes()
    same = len(target.groups) == len(saved.groups)
    sources: list[list[Group]] = []
    position = 0
    for index, group in enumerate(target.groups):
        ids = [match.ids[i] for i in range(position, position + len(group.params)) if i in match.ids]
        position += len(group.params)
        awake = [identity for identity in ids if not (isinstance(identity, tuple) and identity[0] == FROZEN)]
        found = {id(homes[identity]): homes[identity] for identity in awake or ids if identity in homes}
        if not group.params and same and not saved.ids[index]:
            found = {0: saved.groups[index]}
        sources.append(list(found.values()))
    return sources


@dataclass(frozen=True, slots=True)
class Merged:
    """What several groups say together: the options of the first, and the values of each in which they differ."""

    options: Group
    differing: Mapping[str, list[Any]]


def merge(sources: Sequence[Group], same: Callable[[Any, Any], bool]) -> Merged:
    """`same` tells whether two plain values are equal. An option that a group lacks is None there."""
    options = {key: value for group in reversed(sources) for key, value in group.items()}
    differing: dict[str, list[Any]] = {}
    for key in options:
        values: list[Any] = []
        for group in sources:
            value = group.get(key)
            if not any(_equal(value, other, same) for other in values):
                values.append(value)
        if len(values) > 1 and key not in ("params", "param_names"):
            differing[key] = values
    return Merged(options, differing)


def _equal(a: Any, b: Any, same: Callable[[Any, Any], bool]) -> bool:
    if isinstance(a, TensorNode) and isinstance(b, TensorNode):
        return _bytes(a) == _bytes(b) and (a.shape, a.dtype, a.offset) == (b.shape, b.dtype, b.offset)
    return a is b or same(a, b)


def _bytes(node: TensorNode) -> tuple[Any, ...]:
    """What tells the data of two tensors apart without reading it: their checksum, else their place."""
    storage = node.storage
    if storage is None or storage.crc32 is None:
        return (id(storage),)
    return storage.crc32, storage.nbytes
