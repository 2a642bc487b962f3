"""Names with wrappers' segments anywhere in them, told by the tree that the names span.

A wrapper puts one segment between a module and what it holds, so in the tree of names it is a node with one child and
no tensor of its own. Leaving such nodes out on both sides must give the same tree; then each saved leaf stands for one
live leaf and no other. A submodule that bears a wrapper's name and has neighbours is never such a node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

__all__ = ["wrapped_pairs"]


@dataclass(slots=True, eq=False)
class _Node:
    """A place in the tree of names: the name that ends here, if one does, and what is below."""

    name: str | None = None
    below: dict[str, _Node] = field(default_factory=dict)
    leaves: int = 0


def wrapped_pairs(
    saved: Iterable[str], live: Collection[str], segments: Collection[str]
) -> Iterator[tuple[str, dict[str, str]]]:
    """For each subtree of the saved names that is the live tree but for `segments`: its prefix, and live -> saved name.

    >>> list(wrapped_pairs(["net.a._orig_mod.w", "net.a._orig_mod.b"], ["a.w", "a.b"], ["_orig_mod"]))
    [('net.', {'a.w': 'net.a._orig_mod.w', 'a.b': 'net.a._orig_mod.b'})]
    """
    theirs, ours = _tree(saved), _tree(live)
    tried: set[int] = set()
    left = [("", theirs)]
    while left:
        prefix, node = left.pop()
        if node.leaves == ours.leaves and id(bare := _bare(node, segments)) not in tried:
            tried.add(id(bare))
            pairs = _pairs(bare, ours, segments)
            if pairs is not None:
                yield prefix, pairs
        left += [(f"{prefix}{part}.", child) for part, child in node.below.items() if child.leaves >= ours.leaves]


def _tree(names: Iterable[str]) -> _Node:
    root = _Node()
    for name in names:
        node = root
        node.leaves += 1
        for part in name.split("."):
            below = node.below.get(part)
            if below is None:
                below = node.below[part] = _Node()
            node = below
            node.leaves += 1
        node.name = name
    return root


def _bare(node: _Node, segments: Collection[str]) -> _Node:
    """The node inside all wrappers that stand here."""
    while node.name is None and len(node.below) == 1:
        part, child = next(iter(node.below.items()))
        if part not in segments or not child.below:
            break
        node = child
    return node


def _pairs(saved: _Node, live: _Node, segments: Collection[str]) -> dict[str, str] | None:
    pairs: dict[str, str] = {}
    left = [(saved, live)]
    while left:
        theirs, ours = (_bare(node, segments) for node in left.pop())
        if theirs.below.keys() != ours.below.keys() or (theirs.name is None) != (ours.name is None):
            return None
        if theirs.name is not None and ours.name is not None:
            pairs[ours.name] = theirs.name
        left += [(theirs.below[part], child) for part, child in reversed(ours.below.items())]
    return pairs
