"""What a damaged safetensors file still says: every entry of its header that holds, and its data where it is there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from unmoor.errors import CorruptFile, FileError
from unmoor.filing import Reader, read
from unmoor.values.flat_sums import put_right, told_sums
from unmoor.values.nodes import Storage, TensorNode
from unmoor.values.text import count

from .assemble import Contents
from .mending import mended
from .safetensors import summed, tensor_of, with_sums
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
    entries, start, head = _header(reader, wreck)
    metadata = entries.pop(_METADATA, None)
    nodes: dict[str, TensorNode] = {}
    for name, entry in entries.items():
        try:
            nodes[name] = tensor_of(reader.path, file, name, entry, start)
        except FileError as fault:
            wreck.entries[name] = fault.headline.removeprefix(f"{name[:200]}: ")
    if not wreck.entries and not wreck.unnamed:
        nodes = _summed(reader.path, head, metadata, nodes, wreck)
    tree: dict[str, TensorNode] = {}
    reached = start
    for name, node in sorted(nodes.items(), key=_offset):
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
            node = replace(node, storage=replace(storage, span=None))  # noqa: PLW2901 - the same tensor, without data
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


def _summed(path: str, head: bytes, metadata: Any, nodes: dict[str, TensorNode], wreck: Wreck) -> dict[str, TensorNode]:
    """The tensors with their checksums, where the header has them and is whole."""
    texts = type(metadata) is dict and all(type(text) is str for text in metadata.values())
    told = metadata if texts else {}
    try:
        return with_sums(path, head, told, nodes) or nodes
    except CorruptFile:
        wreck.notes.append("the header does not match its checksum: names and shapes in it may be wrong")
        wreck.unnamed = True
        sums = told_sums(told, len(nodes))
        return nodes if sums is None else summed(nodes, sums)


def _header(reader: Reader, wreck: Wreck) -> tuple[dict[str, Any], int, bytes]:
    """The entries of the header, where the data begins, and the bytes before that."""
    prefix = read(reader, 0, _PREFIX)
    length = int.from_bytes(prefix, "little")
    told = length <= min(_MAX_HEADER, reader.size - _PREFIX)
    head = prefix + read(reader, _PREFIX, length if told else min(_MAX_HEADER, reader.size - _PREFIX))
    whole = put_right(head, mended) if told else None
    if whole is not None:
        wreck.notes.append("one flipped bit of the header was turned back, as its checksum tells")
        head = whole
    text = head[_PREFIX:].decode("utf-8", "replace")
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
    start = _PREFIX + length if told else _begin(reader, head[_PREFIX:], len(text[:end].encode()), found, wreck)
    return found, start, head


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


def _offset(item: tuple[str, TensorNode]) -> tuple[int, int]:
    span = item[1].storage.span if item[1].storage is not None else None
    return (span.offset, span.end) if span is not None else (0, 0)
