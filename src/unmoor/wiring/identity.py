"""What a rank saw under the path of a checkpoint, in few words: two ranks that saw one checkpoint say the same."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from unmoor import places
from unmoor.urls import is_url
from unmoor.values.catalog import Catalog
from unmoor.values.nodes import CompositeTensor, NumpyArray, Opaque, TensorNode
from unmoor.values.text import format_shape

__all__ = ["identity", "place"]


def identity(catalog: Catalog) -> dict[str, str]:
    """Format, size in bytes, number of tensors, and a digest of names, shapes, plain values and checksums."""
    digest = hashlib.sha256()
    for line in _lines(catalog):
        digest.update(line.encode("utf-8", "surrogatepass"))
        digest.update(b"\n")
    return {
        "format": catalog.format,
        "size": f"{catalog.size:,} bytes",
        "tensors": f"{len(catalog.tensors):,}",
        "contents": digest.hexdigest()[:12],
    }


def place(path: str) -> str:
    """What the file system says of a file, or of all files of a folder: equal only where ranks read the same bytes.

    Copies on the disks of several nodes have other inodes or times, and each may be damaged for itself.
    """
    if is_url(path):
        return _place_behind(path)
    files = [path]
    if os.path.isdir(path):
        files = sorted(os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    elif not os.path.lexists(path):  # `*` and what the names of one step's files end in
        folder, name = os.path.split(path)
        files = sorted(os.path.join(folder, other) for other in os.listdir(folder or ".") if other.endswith(name[1:]))
    digest = hashlib.sha256()
    for file in files:
        found = os.stat(file)
        line = (os.path.relpath(file, path), found.st_ino, found.st_mtime_ns, found.st_size)
        digest.update(repr(line).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _place_behind(url: str) -> str:
    """The same of a URL: all ranks that open it ask one store."""
    rows = [(entry.name, entry.nbytes, entry.changed) for entry in places.entries(url)] if places.is_folder(url) else []
    return hashlib.sha256(repr((url, rows)).encode("utf-8", "surrogatepass")).hexdigest()


def _lines(catalog: Catalog) -> Iterator[str]:
    for entry in catalog.tensors:
        storage = entry.node.storage if entry.node is not None else None
        sums = [f"{part.nbytes}/{part.crc32}" for part in storage.sources()] if storage is not None else []
        yield f"{entry.path} {format_shape(entry.shape)} {entry.dtype} {entry.offset} {' '.join(sums)}"
    if catalog.manifest is not None:
        yield repr(catalog.manifest.get("created"))
    yield from _values(catalog.tree)


def _values(tree: Any) -> Iterator[str]:
    """The plain values of a tree, each container once."""
    seen: set[int] = set()
    left = [tree]
    while left:
        value = left.pop()
        if isinstance(value, Mapping | list | tuple | set | frozenset | Opaque):
            if id(value) not in seen:
                seen.add(id(value))
                left.extend(_below(value))
        elif isinstance(value, NumpyArray):
            yield f"{value.dtype} {value.shape} {hashlib.sha256(value.data).hexdigest()}"
        elif not isinstance(value, TensorNode | CompositeTensor):
            yield repr(value)


def _below(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from (key, item)
    elif isinstance(value, Opaque):
        yield from (value.name, value.args, value.state, value.items, value.entries)
    else:
        yield from sorted(value, key=repr) if isinstance(value, set | frozenset) else value
