"""Which tensors are written in another dtype, and as what. Pure.

Tensors that share a storage and a dtype go on sharing one. Only numbers with a fraction are cast: counters, masks and
random states never; of an optimizer, only what has the shape of a parameter (its counters keep their dtype).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from unmoor.errors import UsageError
from unmoor.values.catalog import Catalog, TensorEntry
from unmoor.values.dtypes import DTYPES, nbytes_of
from unmoor.values.nodes import Storage, TensorNode
from unmoor.values.optimizers import COUNTERS
from unmoor.values.plan import Change
from unmoor.values.strides import contiguous

from .taken import Keys, Made, Taken, replaced, with_tree
from .taking import places_of

__all__ = ["TARGETS", "cast", "wishes"]

TARGETS: Final = tuple(
    name for name, row in DTYPES.items() if row.family == "float" or name in ("float8_e4m3fn", "float8_e5m2")
)
"""What tensors can be written as."""

_BY_DEFAULT: Final = ("model", "ema")


def wishes(dtype: Any) -> dict[str, str]:
    """Role or key path -> dtype. One dtype alone is for models and their averages.

    Raises UsageError for anything else.
    """
    given = dict.fromkeys(_BY_DEFAULT, dtype) if isinstance(dtype, str) else dtype
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not given or not all(isinstance(w, str) and w for w in given):
        raise UsageError(
            f"dtype={dtype!r} is no dtype, nor a dict of them by role or key path",
            remedy='dtype="bfloat16" is for models and their averages; dtype={"optimizer": "float32"} says what for.',
        )
    found = {word: str(name).removeprefix("torch.") for word, name in given.items()}
    wrong = [name for name in found.values() if name not in TARGETS]
    if wrong:
        raise UsageError(f"dtype={wrong[0]!r} is none of {', '.join(TARGETS)}")
    return found


@dataclass(frozen=True, slots=True)
class _Wish:
    """The dtype that is asked for where it stands."""

    places: tuple[Keys, ...]
    role: str
    dtype: str

    def meets(self, entry: TensorEntry) -> bool:
        if self.role:
            return entry.role == self.role
        return any(entry.keys[: len(keys)] == keys for keys in self.places)


def cast(taken: Taken, asked: Mapping[str, str], catalog: Catalog) -> tuple[Taken, tuple[Change, ...]]:
    """The tree with nodes of other dtypes, and which those are: label, name, dtype before, dtype after, bytes after.

    Raises MismatchError for a role or a key path that the tree lacks.
    """
    if not asked:
        return taken, ()
    rules = list(_rules(taken, asked, catalog))
    chosen: dict[int, tuple[TensorNode, str]] = {}
    changes: list[Change] = []
    for entry in taken.tensors:
        to = next((rule.dtype for rule in reversed(rules) if rule.meets(entry)), None)
        node = entry.node
        if to is None or node is None or node.storage is None or not _castable(entry, node) or node.dtype == to:
            continue
        if entry.layout != "strided":
            changes.append(Change(entry.role, entry.path, f"{node.dtype} ({entry.layout})", "left as it is"))
            continue
        chosen.setdefault(id(node), (node, to))
        changes.append(Change(entry.role, entry.path, node.dtype, to, nbytes_of(to, node.numel)))
    new, made = _new(taken, chosen)
    if not new:
        return taken, tuple(changes)
    return with_tree(taken, replaced(taken.tree, new), new, made={**taken.made, **made}), tuple(changes)


def _rules(taken: Taken, asked: Mapping[str, str], catalog: Catalog) -> Iterator[_Wish]:
    """Roles first, so that a key path within one has the last word."""
    roles = {entry.role for entry in taken.tensors}
    default = set(asked) == set(_BY_DEFAULT) and len(set(asked.values())) == 1
    for word, dtype in sorted(asked.items(), key=lambda item: item[0] not in roles):
        if word in roles:
            yield _Wish((), word, dtype)
        elif not (default and roles & set(_BY_DEFAULT)):
            places = places_of(replace(catalog, tree=taken.tree, parts=taken.parts), word, "dtype")
            yield _Wish(tuple(places), "", dtype)


def _castable(entry: TensorEntry, node: TensorNode) -> bool:
    row = DTYPES[node.dtype]
    counter = entry.role == "optimizer" and bool(entry.keys) and entry.keys[-1] in COUNTERS
    return (row.family == "float" or node.dtype in TARGETS) and node.quantizer is None and not counter


def _new(taken: Taken, chosen: Mapping[int, tuple[TensorNode, str]]) -> tuple[dict[int, TensorNode], dict[str, Made]]:
    groups: dict[tuple[str, str, str], list[TensorNode]] = {}
    for node, to in chosen.values():
        if node.storage is not None:
            groups.setdefault((node.storage.key, node.dtype, to), []).append(node)
    new: dict[int, TensorNode] = {}
    made: dict[str, Made] = {}
    for (key, _, to), nodes in groups.items():
        source, first = _source(taken, nodes)
        name = f"{key}>{to}" if f"{key}>{to}" not in made else f"{key}>{nodes[0].dtype}>{to}"
        storage = Storage(name, to, nbytes_of(to, source.numel), nodes[0].device, None, None)
        made[name] = Made(source, to)
        for node in nodes:
            new[id(node)] = replace(node, storage=storage, offset=node.offset - first, dtype=to)
    return new, made


def _source(taken: Taken, nodes: list[TensorNode]) -> tuple[TensorNode, int]:
    """All elements from the first to the last that the tensors reach, as one tensor, and where it begins."""
    storage = nodes[0].storage
    known = taken.made.get(storage.key) if storage is not None else None
    if known is not None:
        return known.node, 0
    if storage is not None and storage.chunks:
        return TensorNode(storage, 0, storage.shape, contiguous(storage.shape), storage.dtype, storage.device), 0
    low = min(node.offset for node in nodes)
    high = max(node.offset + _reach(node) for node in nodes)
    return TensorNode(storage, low, (high - low,), (1,), nodes[0].dtype, nodes[0].device), low


def _reach(node: TensorNode) -> int:
    return 1 + sum((size - 1) * step for size, step in zip(node.shape, node.stride, strict=True)) if node.numel else 0
