"""The `.metadata` of a torch.distributed.checkpoint folder, read inertly: what is stored, and where.

A pickle of dataclasses of torch.distributed.checkpoint.metadata (torch 2.4 to 2.13): none of them is imported, their
fields are taken from the inert stand-ins. Every number in it is a claim, which others hold against the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final, NamedTuple

from unmoor.errors import CorruptFile, HostileFile, UnsupportedFile
from unmoor.values.boxes import Box
from unmoor.values.dangers import danger_of
from unmoor.values.dtypes import DTYPES
from unmoor.values.frames import DEEPEST
from unmoor.values.nodes import Opaque, TorchValue, kind_of
from unmoor.values.text import listing

from .reading import Reading

__all__ = ["Folder", "Place", "Stored", "own_names_left_out", "read_folder"]

_OWN: Final = "torch.distributed."
_LIMIT: Final = 1 << 62
_MOST: Final = 1000
"""Dimensions of a tensor, at most."""

_SHOWN: Final = 12


class Place(NamedTuple):
    """Where an item lies: `nbytes` bytes from `at` of `file`."""

    file: str
    at: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Stored:
    """One entry: a tensor in boxes, each with its place; or, with dtype "", the place of any other value."""

    dtype: str
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Folder:
    """All entries by their flat key, and the key path of each in the state dict that was saved.

    `save_id` is the name that the save gave itself, "" where it gave none.
    """

    entries: Mapping[str, Stored]
    paths: Mapping[str, tuple[str | int, ...]]
    version: str
    save_id: str = ""


class _Broken(Exception):
    """What is wrong with one entry, in words."""


def own_names_left_out(reading: Reading) -> Reading:
    """The reading without the classes of torch's own that every such file names; of these none is dangerous."""
    names = tuple(name for name in reading.globals if not _is_own(name))
    return replace(reading, globals=names, calls=[call for call in reading.calls if not _is_own(call.name)])


def _is_own(name: str) -> bool:
    return name.startswith(_OWN) and not danger_of(name)


def read_folder(value: Any, path: str) -> Folder:
    """The entries that the root of a `.metadata` tells of. Raises CorruptFile naming all that are broken."""
    fields = _fields(value, "Metadata")
    if fields is None or type(fields.get("state_dict_metadata")) is not dict:
        found = value.name if type(value) is Opaque else type(value).__name__
        raise CorruptFile(f"{path} holds no metadata of torch.distributed.checkpoint, but {found[:200]}", path=path)
    places = _places(fields.get("storage_data"), path)
    entries, faults = {}, []
    for key, entry in fields["state_dict_metadata"].items():
        try:
            entries[_text(key)] = _stored(key, entry, places)
        except _Broken as broken:
            faults.append(f"{str(key)[:200]}: {broken}")
    if faults:
        more = [f"and {len(faults) - _SHOWN:,} more"] if len(faults) > _SHOWN else []
        raise CorruptFile(f"{path} is damaged", details=[*faults[:_SHOWN], *more], path=path)
    paths = _paths(fields.get("planner_data"), entries, path)
    storage_meta = _fields(fields.get("storage_meta"), "StorageMeta") or {}
    return Folder(entries, paths, _word(fields.get("version"))[:40], _word(storage_meta.get("save_id"))[:80])


def _fields(value: Any, name: str) -> Mapping[str, Any] | None:
    """The fields of a dataclass of that name; None for anything else."""
    known = type(value) is Opaque and value.name.startswith(_OWN) and value.name.endswith("." + name)
    return value.state if known and type(value.state) is dict else None


def _word(value: Any) -> str:
    """Text as it is, and what any other value is: such values may be of any depth."""
    return value if type(value) is str else "" if value is None else kind_of(value)


def _text(key: Any) -> str:
    if type(key) is not str:
        raise _Broken("its key is no text")
    return key


def _numbers(value: Any) -> tuple[int, ...]:
    """A torch.Size, or what older versions wrote in its place."""
    numbers = value.value if type(value) is TorchValue and value.kind == "size" else value
    if type(numbers) not in (tuple, list) or not all(type(n) is int and 0 <= n < _LIMIT for n in numbers):
        raise _Broken("its sizes or offsets are no whole numbers")
    if len(numbers) > _MOST:
        raise _Broken(f"it has {len(numbers):,} dimensions")
    return tuple(numbers)


def _shape(value: Any) -> tuple[int, ...]:
    sizes = _numbers(value)
    if prod(size or 1 for size in sizes) >= 2 * _LIMIT:
        raise _Broken("its sizes multiply to more than any tensor has")
    return sizes


def _places(value: Any, path: str) -> dict[tuple[str, tuple[int, ...] | None], Place]:
    """(key, offset of the box or None) -> place of the item."""
    if type(value) is not dict:
        raise CorruptFile(f"{path} does not say where anything is stored", path=path)
    places = {}
    for index, info in value.items():
        at, where = _fields(index, "MetadataIndex"), _fields(info, "_StorageInfo")
        if at is None or where is None:
            raise CorruptFile(f"{path} holds a place that is none of torch's own", path=path)
        try:
            offset = None if at.get("offset") is None else _numbers(at["offset"])
            key = _text(at.get("fqn"))
            places[key, offset] = _place(where, key, path)
        except _Broken as broken:
            raise CorruptFile(f"{path}: {_word(at.get('fqn'))[:200]}: {broken}", path=path) from None
    return places


def _place(where: Mapping[str, Any], key: str, path: str) -> Place:
    file, at, nbytes = where.get("relative_path"), where.get("offset"), where.get("length")
    if type(file) is not str or type(at) is not int or type(nbytes) is not int or at < 0 or nbytes < 0:
        raise _Broken("its place is no file, offset and length")
    if where.get("transform_descriptors"):
        told = where["transform_descriptors"]
        names = listing([_word(name)[:40] for name in told] if type(told) in (list, tuple) else [])
        raise UnsupportedFile(
            f"{path}: {key[:200]} went through stream transforms ({names}), which only their own code undoes",
            remedy="Load and save the folder again without extensions.",
            path=path,
        )
    parts = file.replace("\\", "/").split("/")
    if not file or file.startswith(("/", "\\")) or ":" in parts[0] or ".." in parts or "\0" in file:
        raise HostileFile(f"{path} points out of its folder, to {file[:200]!r}", path=path)
    return Place(file, at, nbytes)


def _stored(key: str, entry: Any, places: Mapping[Any, Place]) -> Stored:
    if type(entry) is Opaque and entry.name.startswith(_OWN) and entry.name.endswith(".BytesStorageMetadata"):
        return Stored("", (), (), (_found(places, key, None),))
    fields = _fields(entry, "TensorStorageMetadata")
    if fields is None or type(fields.get("chunks")) is not list:
        raise _Broken("it is neither a tensor nor bytes")
    shape, dtype = _shape(fields.get("size")), _dtype(fields.get("properties"))
    boxes = tuple(_boxes(fields["chunks"]))
    return Stored(dtype, shape, boxes, tuple(_found(places, key, box.start) for box in boxes))


def _boxes(chunks: list[Any]) -> Iterator[Box]:
    for chunk in chunks:
        fields = _fields(chunk, "ChunkStorageMetadata")
        if fields is None:
            raise _Broken("one of its chunks is none")
        yield Box(_numbers(fields.get("offsets")), _shape(fields.get("sizes")))


def _found(places: Mapping[Any, Place], key: str, start: tuple[int, ...] | None) -> Place:
    place = places.get((key, start))
    if place is None:
        raise _Broken(f"no file is named for it{'' if start is None else f' at {start}'}")
    return place


def _dtype(properties: Any) -> str:
    state = properties.state if type(properties) is Opaque else None
    parts = state.values() if type(state) is dict else state if type(state) is tuple else ()
    dtype = next((part.value for part in parts if type(part) is TorchValue and part.kind == "dtype"), None)
    if dtype not in DTYPES:
        raise _Broken("its dtype is none")
    return str(dtype)


def _paths(value: Any, entries: Mapping[str, Stored], path: str) -> dict[str, tuple[str | int, ...]]:
    """Flat key -> key path, in the order of the state dict; a key without one is its own path."""
    given = value if type(value) is dict else {}
    paths: dict[str, tuple[str | int, ...]] = {}
    for key, keys in given.items():
        if key in entries:
            parts = keys if type(keys) is tuple else ()
            if not parts or len(parts) > DEEPEST or not all(type(part) in (str, int) for part in parts):
                raise CorruptFile(f"{path}: the key path of {str(key)[:200]} is none", path=path)
            paths[key] = parts
    return paths | {key: (key,) for key in entries if key not in paths}
