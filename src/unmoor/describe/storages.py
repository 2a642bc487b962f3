"""The tensors that an inert tree holds, and the storages that they look into."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unmoor.values.nodes import CompositeTensor, Opaque, Storage, TensorNode

__all__ = ["nodes_of", "storages_of"]


def nodes_of(tree: Any) -> Iterator[TensorNode | CompositeTensor]:
    """The tensors of a tree, also of what stands for objects in it."""
    left, seen = [tree], set()
    while left:
        item = left.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, TensorNode | CompositeTensor):
            yield item
        else:
            left += _inside(item)


def storages_of(tree: Any) -> Iterator[Storage]:
    """What the strided tensors of a tree look into."""
    return (node.storage for node in nodes_of(tree) if isinstance(node, TensorNode) and node.storage is not None)


def _inside(item: Any) -> Sequence[Any]:
    if isinstance(item, Mapping):
        return list(item.values())
    if type(item) is Opaque:
        return [item.args, item.kwargs, item.state, item.items, item.entries]
    return item if isinstance(item, list | tuple) else ()
