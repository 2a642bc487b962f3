"""What a damaged safetensors file still says: every entry of its header that holds, and its data where it is there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from unmoor.errors import CorruptFile, FileError
from unmoor.filing import Reader, read
from unmoor.values.nodes import Storage, TensorNode
from unmoor.values.text import count

from .assemble import Contents
from .safetensors import tensor_of
from .wreck import Wreck

__all__ = ["read_wrecked_flat"]

_PREFIX: Final = 8
_MAX_HEADER: Final = 100_000_000
_METADATA: Final = "__metadata__"
_ALIGN: Final = 8
_ENTRY: Final = re.compile(r'"((?:[^"\\]|\\.){1,512})"\s{0,8}:\s{0,8}(\{"[^{}]{1,2048}\})')


def read_wrecked_flat(reader: Reader, file: str = "") -> Wreck:
    """What of a safetensors file can be had. Raises CorruptFile where that is no entry of its header."""
    wreck = Wreck(Contents("safetensors", {}, (), 0, {}))
    entries, start = _header(reader, wreck)
    entries.pop(_METADATA, None)
    tree: dict[str, TensorNode] = {}
    reached = start
    for name, entry in sorted(entries.items(), key=_offset):
        try:
            node = tensor_of(reader.path, file, name, entry, start)
        except FileError as fault:
            wreck.entries[name] = fault.headline.removeprefix(f"{name[:200]}: ")
            continue
        storage = node.storage
        if storage is None or storage.span is None:
            continue
        if storage.span.offset < reached:
            wreck.entries[name] = "its bytes are those of the tensor before it, too"
            continue
        reached = storage.span.end
        short = storage.span.end - reader.size
        if short > 0:
            wreck.faults[storage.key] = f"its data is short by {count(min(short, storage.nbytes), 'byte')}"
            node = replace(node, storage=replace(storage, span=None))
        tree[name] = node
    if not tree and not wreck.entries:
        raise CorruptFile(
            f"nothing can be rescued from {reader.path}: no entry of its safetensors header can be read",
            path=reader.path,
        )
    ordered = {name: tree[name] for name in entries if name in tree}
    storages: dict[str, Storage] = {node.storage.key: node.storage for node in ordered.values() if node.storage}
    wreck.contents = replace(
        wreck.contents,
        tree=ordered,
        structure=min(start, reader.size),
        storages=storages,
        facts={"byteorder": "little"},
    )
    return wreck


def _header(reader: Reader, wreck: Wreck) -> tuple[dict[str, Any], int]:
    """The entries of the header, and where the data begins."""
    length = int.from_bytes(read(reader, 0, _PREFIX), "little")
    told = length <= min(_MAX_HEADER, reader.size - _PREFIX)
    raw = read(reader, _PREFIX, length if told else min(_MAX_HEADER, reader.size - _PREFIX))
    text = raw.decode("utf-8", "replace")
    try:
        found, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        found, end = dict(_entries(text)), len(text)
        wreck.notes.append(
            f"the header is damaged: {count(len(found), 'entry')} of it can be read; names may be wrong, as nothing "
            "vouches for them"
        )
        wreck.unnamed = True
    if type(found) is not dict:
        found = {}
    return found, _PREFIX + length if told else _begin(reader, raw, len(text[:end].encode()), found, wreck)


def _begin(reader: Reader, raw: bytes, end: int, found: dict[str, Any], wreck: Wreck) -> int:
    """Where the data begins in a file whose length of the header is damaged."""
    wreck.notes.append("the length of the header is damaged: the data is taken to begin behind it")
    last = max((_stop(entry) for entry in found.values()), default=0)
    fits = reader.size - last
    padded = end + len(raw[end : end + _ALIGN]) - len(raw[end : end + _ALIGN].lstrip(b" "))
    return fits if _PREFIX + end <= fits < _PREFIX + end + _ALIGN else _PREFIX + padded


def _entries(text: str) -> Iterator[tuple[str, Any]]:
    """Names and entries that stand in a header which is no JSON as a whole."""
    for found in _ENTRY.finditer(text):
        try:
            name, entry = json.loads(f'"{found[1]}"'), json.loads(found[2])
        except ValueError:
            continue
        if name != _METADATA:
            yield name, entry


def _stop(entry: Any) -> int:
    offsets = entry.get("data_offsets") if type(entry) is dict else None
    fits = type(offsets) is list and len(offsets) == 2 and type(offsets[1]) is int
    return int(offsets[1]) if fits and offsets is not None else 0


def _offset(item: tuple[str, Any]) -> int:
    offsets = item[1].get("data_offsets") if type(item[1]) is dict else None
    fits = type(offsets) is list and offsets and type(offsets[0]) is int
    return int(offsets[0]) if fits and offsets is not None else 0
