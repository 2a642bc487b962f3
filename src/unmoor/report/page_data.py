"""The tensors of a catalog as one compact JSON text for the scripts of a page. Pure.

Law: the text is ASCII and holds no `<`, `>` or `&`, so that nothing in it can end the element that it stands in.
Columns of few different values are lists of their numbers; a name is a module and a leaf.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from unmoor.values.catalog import Catalog, TensorEntry
from unmoor.values.text import format_shape

from .about import dtypes
from .content import role_rank
from .layout import plain
from .page_tree import tiles

__all__ = ["PALETTE", "data_text", "page_data"]

PALETTE: Final = 8
"""Colours of the page; the last one is for all that has none of its own."""

_COLOURS: Final = {
    "model": 0,
    "optimizer": 1,
    "rng": 2,
    "scheduler": 3,
    "metrics": 3,
    "ema": 4,
    "loss": 5,
    "scaler": 6,
    "loader": 6,
}
"""A role has the same colour on every page."""

_UNKNOWN: Final = "not recorded"

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _Numbered(Generic[K]):
    """Values in the order in which they were first seen."""

    known: dict[K, int] = field(default_factory=dict)

    def __call__(self, value: K) -> int:
        return self.known.setdefault(value, len(self.known))


def data_text(data: Any) -> str:
    """JSON that may stand inside an element of a page."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def page_data(catalog: Catalog) -> dict[str, Any]:
    """Columns of all tensors, their storages, the tiles of the treemap and the legends of its colours."""
    modules, leaves, shapes, kinds = _Numbered[str](), _Numbered[str](), _Numbered[tuple[int, ...]](), _Numbered[Any]()
    sharing = _sharing(catalog.tensors)
    rows, named = [], []
    for entry in catalog.tensors:
        name = plain(entry.path)
        module, dot, leaf = name.rpartition(".")
        kind = kinds((entry.role, entry.dtype, entry.device, entry.layout))
        storage = sharing.get((entry.span.file if entry.span else "", entry.storage), -1) if entry.storage else -1
        rows.append((modules(module + dot), leaves(leaf), kind, shapes(entry.shape), entry.nbytes, storage))
        named.append((name, entry.nbytes, kind))
    columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * 6
    return {
        "modules": list(modules.known),
        "leaves": list(leaves.known),
        "kinds": [[plain(word) or _UNKNOWN for word in kind] for kind in kinds.known],
        "shapes": [[format_shape(shape), _numel(shape)] for shape in shapes.known],
        "columns": dict(zip(("module", "leaf", "kind", "shape", "bytes", "storage"), columns, strict=True)),
        "storages": _storages(catalog.tensors, sharing),
        "tiles": _tiles(named),
        "legends": {
            "role": _legend(dict(sorted(catalog.roles().items(), key=_by_role)), _COLOURS),
            "device": _legend(catalog.devices(), {}),
            "dtype": _legend(dtypes(catalog), {}),
        },
    }


def _by_role(item: tuple[str, Any]) -> tuple[int, str]:
    return role_rank(item[0])


def _numel(shape: tuple[int, ...]) -> int:
    numel = 1
    for size in shape:
        numel *= size
    return numel


_Key = tuple[str, str]


def _sharing(tensors: tuple[TensorEntry, ...]) -> dict[_Key, int]:
    """A number for each storage that has several tensors, or more bytes than its tensor."""
    seen: dict[_Key, int] = {}
    several: dict[_Key, int] = {}
    for entry in tensors:
        if not entry.storage:
            continue
        span = entry.span
        key = (span.file if span else "", entry.storage)
        seen[key] = seen.get(key, 0) + 1
        if seen[key] > 1 or (span is not None and span.nbytes > entry.nbytes):
            several.setdefault(key, len(several))
    return several


def _storages(tensors: tuple[TensorEntry, ...], sharing: dict[_Key, int]) -> list[list[int]]:
    """Tensors and bytes of each storage that `sharing` numbers; -1 bytes where the file does not hold it in one run."""
    found = [[0, -1] for _ in sharing]
    for entry in tensors:
        number = sharing.get((entry.span.file if entry.span else "", entry.storage), -1) if entry.storage else -1
        if number >= 0:
            found[number][0] += 1
            found[number][1] = entry.span.nbytes if entry.span else -1
    return found


def _tiles(named: list[tuple[str, int, int]]) -> dict[str, list[Any]]:
    made = tiles(named)
    return {
        "label": [tile.label for tile in made],
        "parent": [tile.parent for tile in made],
        "path": [tile.path for tile in made],
        "tensors": [tile.tensors for tile in made],
        "bytes": [tile.nbytes for tile in made],
        "kind": [tile.kind for tile in made],
    }


def _legend(sums: dict[str, tuple[int, int]], colours: dict[str, int]) -> list[list[Any]]:
    """Name, tensors, bytes and colour of each, those without a colour of their own with the last one."""
    legend = []
    for i, (name, (number, nbytes)) in enumerate(sums.items()):
        colour = colours.get(name, PALETTE - 1) if colours else min(i, PALETTE - 1)
        legend.append([plain(name) or _UNKNOWN, number, nbytes, colour])
    return legend
