"""The tensors of a file as a tree of tiles by bytes, cut to what a person can see and a browser can draw. Pure.

Law: tiles that have the same parent hold together exactly the bytes of that parent, whatever was cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count as counter
from typing import Final

__all__ = ["Tile", "tiles"]

_DEPTH: Final = 24
"""Names have at most this many segments, the last one keeps what is left."""

_BUDGET: Final = 2500
"""Tiles at most: more than a screen has room for, and drawn at once."""

_CHILDREN: Final = 160
"""The most tiles beside each other."""

_RUNS: Final = 64
"""Where there would be more: so many tiles, each of neighbours; what is larger than such a tile stands alone."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One tile: its label, the number of its parent's tile (-1 for the first), tensors and bytes of all below it.

    `path` is the common beginning of their names. `kind` is the kind that most of its bytes have.
    """

    label: str
    parent: int
    path: str
    tensors: int
    nbytes: int
    kind: int


@dataclass(slots=True, eq=False)
class _Node:
    """A segment of names. `kinds` is kind -> bytes; first of the tensors that end here, later of all below.

    `itself` stands for the tensors that end here, where others lie below.
    """

    path: str
    below: dict[str, _Node] = field(default_factory=dict)
    kinds: dict[int, int] = field(default_factory=dict)
    tensors: int = 0
    nbytes: int = 0
    itself: _Node | None = None


def tiles(tensors: Iterable[tuple[str, int, int]], *, budget: int = _BUDGET) -> list[Tile]:
    """At most `budget` tiles for (name, bytes, kind) of each tensor. Of neighbours all are opened, or none.

    >>> [(tile.label, tile.parent, tile.nbytes) for tile in tiles([("a.w", 4, 0), ("a.b", 2, 0), ("c", 1, 0)])]
    [('all', -1, 7), ('a', 0, 6), ('c', 0, 1), ('w', 1, 4), ('b', 1, 2)]
    """
    root = _grown(tensors)
    made = [_tile("all", -1, root)]
    order, waiting = counter(), [(-root.nbytes, -1, [(0, root)])]
    while waiting:
        *_, family = heappop(waiting)
        opened = [(number, node, _inner(node)) for number, node in family if node.below]
        if len(made) + sum(len(inner) for *_, inner in opened) > budget:
            continue
        for number, node, inner in opened:
            heappush(
                waiting, (-node.nbytes, next(order), [(len(made) + i, child) for i, (_, child) in enumerate(inner)])
            )
            made += [_tile(label, number, child) for label, child in inner]
    return made


def _tile(label: str, parent: int, node: _Node) -> Tile:
    kind = max(node.kinds, key=node.kinds.__getitem__, default=0)
    return Tile(label, parent, node.path, node.tensors, node.nbytes, kind)


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
        node.itself = _Node(node.path, {}, dict(node.kinds), node.tensors, node.nbytes)
        node.kinds, node.tensors, node.nbytes = {}, 0, 0
    for child in node.below.values():
        _sum(child)
    _add_up(node)


def _add_up(node: _Node) -> None:
    for child in [*node.below.values(), *([node.itself] if node.itself else [])]:
        node.tensors += child.tensors
        node.nbytes += child.nbytes
        for kind, nbytes in child.kinds.items():
            node.kinds[kind] = node.kinds.get(kind, 0) + nbytes


def _inner(node: _Node) -> list[tuple[str, _Node]]:
    """The tiles inside one. A chain of modules that hold one module each is one tile; too many are drawn by runs."""
    children = [("itself", node.itself)] if node.itself else []
    children += [_chained(label, child) for label, child in node.below.items()]
    if len(children) <= _CHILDREN:
        return children
    large = {id(child) for _, child in children if child.nbytes * _RUNS > node.nbytes}
    alone = [pair for pair in children if id(pair[1]) in large]
    rest = [pair for pair in children if id(pair[1]) not in large]
    each = -(-len(rest) // max(_RUNS - len(alone), 2))
    return alone + [_run(node, rest[i : i + each]) for i in range(0, len(rest), each)]


def _run(parent: _Node, children: list[tuple[str, _Node]]) -> tuple[str, _Node]:
    """Neighbours as one tile, named by the first and the last of them."""
    if len(children) == 1:
        return children[0]
    run = _Node(parent.path, dict(children))
    _add_up(run)
    return f"{children[0][0]}..{children[-1][0]}", run


def _chained(label: str, node: _Node) -> tuple[str, _Node]:
    while len(node.below) == 1 and node.itself is None:
        segment, node = next(iter(node.below.items()))
        label = f"{label}.{segment}"
    return label, node
