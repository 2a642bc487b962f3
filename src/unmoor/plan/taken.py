"""What a conversion writes: an inert tree, its tensors by their place, and where the data of each comes from. Pure.

A step of a conversion gives a new tree; `with_tree` tells its tensors again, each with the role that it had.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from unmoor.values.catalog import Part, TensorEntry
from unmoor.values.dtypes import nbytes_of
from unmoor.values.nodes import CompositeTensor, Opaque, TensorNode
from unmoor.values.text import key_text

__all__ = ["Keys", "Made", "Taken", "remade", "replaced", "with_tree"]

Keys = tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """The data of a storage that no file holds: the values of `node` in the order of its dimensions, as `dtype`."""

    node: TensorNode
    dtype: str


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """The tree to write, inert, and its tensors by their place in it.

    `root` are the keys that led to it in the file: those of the one part that was taken, else none. `manifest` is the
    file's own, as far as it tells of this tree. `read` are the tensors as the file has them. `made` is storage key ->
    what its data is made of, for storages that the file lacks; `shares` storage key -> key in the file, for a storage
    that is written in several. `origins` is id of a node -> the node of the file of which it has the values. `parts`
    are those of the run that are in the tree.
    """

    tree: Any
    tensors: tuple[TensorEntry, ...]
    root: Keys = ()
    manifest: Mapping[str, Any] | None = None
    read: tuple[TensorEntry, ...] = ()
    made: Mapping[str, Made] = field(default_factory=dict)
    shares: Mapping[str, str] = field(default_factory=dict)
    origins: Mapping[int, TensorNode] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()

    def origin(self, node: TensorNode) -> TensorNode:
        """The node of the file of which a node of the tree has the values."""
        return self.origins.get(id(node), node)


def remade(like: Mapping[Any, Any], items: Iterable[tuple[Any, Any]]) -> Any:
    """A mapping of the class of another, with its `_metadata`."""
    made: Any = OrderedDict() if isinstance(like, OrderedDict) else Counter() if isinstance(like, Counter) else {}
    for key, item in items:
        made[key] = item
    if isinstance(like, OrderedDict) and hasattr(like, "_metadata"):
        made._metadata = like._metadata
    return made


def with_tree(taken: Taken, tree: Any, new: Mapping[int, TensorNode] | None = None, **facts: Any) -> Taken:
    """The same with another tree, made of the same nodes, or of ones that stand for them.

    `new` is id of a node of the tree before -> the node in its place. `facts` are other fields that change.
    """
    known = {id(entry.node): entry for entry in reversed(taken.tensors) if entry.node is not None}
    origins = dict(taken.origins)
    kept = {id(entry.node): entry.node for entry in taken.tensors if entry.node is not None}
    for old, node in (new or {}).items():
        known[id(node)] = known[old]
        origins[id(node)] = taken.origins.get(old, kept[old])
    found = ((known.get(id(node)), keys, node) for keys, node in _tensors(tree))
    rows = tuple(_entry(entry, keys, node) for entry, keys, node in found if entry is not None)
    parts = facts.pop("parts", taken.parts)
    seen = tuple(replace(part, node=node) for part in parts if (node := _at(tree, part.keys)) is not None)
    return replace(taken, tree=tree, tensors=rows, origins=origins, parts=seen, **facts)


def _at(tree: Any, keys: Keys) -> Any:
    for key in keys:
        if isinstance(tree, Mapping):
            tree = tree.get(key)
        elif isinstance(tree, list | tuple) and isinstance(key, int) and key < len(tree):
            tree = tree[key]
        elif isinstance(tree, Opaque):
            tree = next((item for name, item in _children(tree) if name == key), None)
        else:
            return None
    return tree


def _entry(entry: TensorEntry, keys: Keys, node: TensorNode) -> TensorEntry:
    if entry.node is not node:
        storage = node.storage
        entry = replace(
            entry,
            dtype=node.dtype,
            stride=node.stride,
            nbytes=nbytes_of(node.dtype, node.numel),
            storage="" if storage is None else storage.key,
            span=None if storage is None else storage.span,
            offset=node.offset,
            node=node,
        )
    return entry if entry.keys == keys else replace(entry, keys=keys, path=key_text(keys))


def _tensors(tree: Any) -> Iterator[tuple[Keys, TensorNode]]:
    """Every strided tensor at every place, in the order of the tree; objects that know each other once."""
    left: list[tuple[Any, Keys, frozenset[int]]] = [(tree, (), frozenset())]
    objects: set[int] = set()
    while left:
        value, keys, above = left.pop()
        if isinstance(value, TensorNode):
            yield keys, value
            parts = zip(("scales", "zero_points"), value.quantizer[1:3] if value.quantizer else (), strict=False)
            yield from (((*keys, name), part) for name, part in parts if isinstance(part, TensorNode))
        elif isinstance(value, CompositeTensor):
            yield from (((*keys, name), part) for name, part in value.children.items() if isinstance(part, TensorNode))
        elif isinstance(value, dict | list | tuple | Opaque) and id(value) not in above and id(value) not in objects:
            if isinstance(value, Opaque):
                objects.add(id(value))
            inside = above | {id(value)}
            left += [(item, (*keys, key), inside) for key, item in reversed(list(_children(value)))]


def _children(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, Opaque):
        yield from value.state.items() if isinstance(value.state, dict) else ()
        yield from value.entries
        yield from enumerate(value.items)
    else:
        yield from enumerate(value)


def replaced(tree: Any, new: Mapping[int, Any]) -> Any:
    """The tree with other values in the place of some, by id; what holds none of them is the same object."""
    return _Replacing(new)(tree) if new else tree


class _Replacing:
    def __init__(self, new: Mapping[int, Any]) -> None:
        self._new = new
        self._done: dict[int, Any] = {}

    def __call__(self, value: Any) -> Any:
        if id(value) in self._new:
            return self._new[id(value)]
        if not isinstance(value, dict | list | tuple):
            return value
        if id(value) in self._done:
            return self._done[id(value)]
        if isinstance(value, tuple):
            items = tuple(map(self, value))
            same = all(a is b for a, b in zip(items, value, strict=True))
            return self._done.setdefault(id(value), value if same else items)
        made: Any = remade(value, ()) if isinstance(value, dict) else []
        self._done[id(value)] = made
        if isinstance(value, dict):
            for key, item in value.items():
                made[key] = self(item)
        else:
            made.extend(map(self, value))
        return made
