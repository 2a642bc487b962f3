"""The tensors of a file as a tree of tiles by bytes, cut to what a person can see and a browser can draw. Pure.

Law: tiles that have the same parent hold together exactly the bytes of that parent, whatever was cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count as counter
from typing import Final

__all__ = ["Tile", "tiles"]

_DEPTH: Final = 24
"""Names have at most this many segments, the last one keeps what is left."""

_BUDGET: Final = 1500
"""Tiles at most: more than a screen has room for, and drawn at once."""

_CHILDREN: Final = 64
"""The most tiles beside each other; the smallest of more share one."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One tile: its label, the number of its parent's tile (-1 for the first), tensors and bytes of all below it.

    `path` is the common beginning of their names. `kind` is the kind that most of its bytes have, `whole` tells a tile
    that no others lie in.
    """

    label: str
    parent: int
    path: str
    tensors: int
    nbytes: int
    kind: int
    whole: bool


@dataclass(slots=True, eq=False)
class _Node:
    """A segment of names. `kinds` is kind -> bytes; first of the tensors that end here, later of all below."""

    path: str
    below: dict[str, _Node] = field(default_factory=dict)
    kinds: dict[int, int] = field(default_factory=dict)
    tensors: int = 0
    nbytes: int = 0


def tiles(tensors: Iterable[tuple[str, int, int]], *, budget: int = _BUDGET) -> list[Tile]:
    """At most about `budget` tiles for (name, bytes, kind) of each tensor: the largest modules are opened first.

    >>> [(tile.label, tile.parent, tile.nbytes) for tile in tiles([("a.w", 4, 0), ("a.b", 2, 0), ("c", 1, 0)])]
    [('all', -1, 7), ('a', 0, 6), ('c', 0, 1), ('w', 1, 4), ('b', 1, 2)]
    """
    root = _grown(tensors)
    made = [_tile("all", -1, root)]
    order, waiting = counter(), [(-root.nbytes, -1, 0, root)]
    while waiting and len(made) < budget:
        *_, number, node = heappop(waiting)
        inner = list(_inner(node))
        made[number] = Tile(**{**_fields(made[number]), "whole": not inner})
        for label, child in inner:
            if child.below:
                heappush(waiting, (-child.nbytes, next(order), len(made), child))
            made.append(_tile(label, number, child))
    return made


def _fields(tile: Tile) -> dict[str, object]:
    return {name: getattr(tile, name) for name in Tile.__dataclass_fields__}


def _tile(label: str, parent: int, node: _Node) -> Tile:
    kind = max(node.kinds, key=node.kinds.__getitem__, default=0)
    return Tile(label, parent, node.path, node.tensors, node.nbytes, kind, whole=True)


def _grown(tensors: Iterable[tuple[str, int, int]]) -> _Node:
    root = _Node("")
    for name, nbytes, kind in tensors:
        node = root
        for segment in name.split(".", _DEPTH - 1):
            below = node.below.get(segment)
            if below is None:
                path = f"{node.path}.{segment}" if node is not root else segment
                below = node.below[segment] = _Node(path)
            node = below
        node.tensors += 1
        node.nbytes += nbytes
        node.kinds[kind] = node.kinds.get(kind, 0) + nbytes
    _sum(root)
    return root


def _sum(node: _Node) -> None:
    """Add up what lies below. What ends at a node that others lie below becomes a child of its own."""
    if node.below and node.tensors:
        own = _Node(node.path, {}, dict(node.kinds), node.tensors, node.nbytes)
        node.below = {"": own, **node.below}
        node.kinds, node.tensors, node.nbytes = {}, 0, 0
    for child in node.below.values():
        _sum(child)
        node.tensors += child.tensors
        node.nbytes += child.nbytes
        for kind, nbytes in child.kinds.items():
            node.kinds[kind] = node.kinds.get(kind, 0) + nbytes


def _inner(node: _Node) -> Iterator[tuple[str, _Node]]:
    """The tiles inside one, the smallest of many together; a chain of modules that hold one module each is one tile."""
    children = [_chained(label, child) for label, child in node.below.items()]
    if len(children) > _CHILDREN:
        children.sort(key=lambda pair: -pair[1].nbytes)
        rest = children[_CHILDREN - 1 :]
        others = _Node(node.path)
        for _, child in rest:
            others.tensors += child.tensors
            others.nbytes += child.nbytes
            for kind, nbytes in child.kinds.items():
                others.kinds[kind] = others.kinds.get(kind, 0) + nbytes
        children = [*children[: _CHILDREN - 1], (f"{len(rest):,} others", others)]
    yield from children


def _chained(label: str, node: _Node) -> tuple[str, _Node]:
    label = label or "(itself)"
    while len(node.below) == 1:
        segment, node = next(iter(node.below.items()))
        label = f"{label}.{segment}"
    return label, node
