"""The storages that an inert tree refers to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unmoor.values.nodes import Opaque, Storage, TensorNode

__all__ = ["storages_of"]


def storages_of(tree: Any) -> Iterator[Storage]:
    """What the tensors of a tree look into."""
    left, seen = [tree], set()
    while left:
        item = left.pop()
        if type(item) is TensorNode and item.storage is not None:
            yield item.storage
        elif id(item) not in seen:
            seen.add(id(item))
            left += _inside(item)


def _inside(item: Any) -> Sequence[Any]:
    if isinstance(item, Mapping):
        return list(item.values())
    if type(item) is Opaque:
        return [item.args, item.kwargs, item.state, item.items, item.entries]
    return item if isinstance(item, list | tuple) else ()
