"""safetensors, one file: eight bytes of header length, a JSON header, the data.

Checks what the format's own reader checks (github.com/huggingface/safetensors, "Format" in its README): a header of at
most 100 MB that begins with `{`, no duplicate keys, offsets that cover the data without hole or overlap, sizes that
follow from shape and dtype. The format has no device tags: tensors count as `cpu`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from unmoor.errors import CorruptFile, FileError, HostileFile, UnsupportedFile
from unmoor.filing import Reader, read
from unmoor.values.catalog import Catalog
from unmoor.values.dtypes import BY_SAFETENSORS
from unmoor.values.finding import Finding
from unmoor.values.flat_sums import SUMS, Altered, read_sums
from unmoor.values.nodes import Span, Storage, TensorNode
from unmoor.values.text import count, format_bytes, is_text

from .assemble import Contents, assemble

__all__ = ["describe_safetensors", "read_header", "summed", "tensor_of", "with_sums"]

_PREFIX: Final = 8
_MAX_HEADER: Final = 100_000_000
_METADATA: Final = "__metadata__"
_FIELDS: Final = frozenset({"dtype", "shape", "data_offsets"})
_LIMIT: Final = 1 << 63
_MOST: Final = 1000
"""Dimensions of a tensor, at most."""

_SHOWN: Final = 12
_PACKED: Final = {"F4": 2}
_FOREIGN: Final = frozenset({"F6_E2M3", "F6_E3M2"})


def describe_safetensors(reader: Reader, file: str = "") -> Catalog:
    """The catalog of one safetensors file. Raises CorruptFile or HostileFile naming what is against the format.

    `file` is the name of the file among those of a larger catalog; spans and storage keys bear it.
    """
    start, header = read_header(reader)
    metadata = header.pop(_METADATA, None)
    if metadata is not None and (
        type(metadata) is not dict or any(type(word) is not str for pair in metadata.items() for word in pair)
    ):
        raise CorruptFile(f"{reader.path}: {_METADATA} is no mapping of text to text", path=reader.path)
    tree: dict[str, TensorNode] = {}
    faults = []
    for name, entry in header.items():
        try:
            tree[name] = tensor_of(reader.path, file, name, entry, start)
        except CorruptFile as fault:
            faults.append(fault.headline)
    faults = faults or _cover(tree, start, reader.size)
    if faults:
        raise _corrupt(reader.path, faults)
    bare = [Finding("no-checksums", "info", "", "safetensors holds no checksums: damage to its data cannot be seen")]
    held = with_sums(reader.path, read(reader, 0, start), metadata, tree)
    if held is not None:
        tree, bare = held, []
    metadata = None if metadata is None else {key: text for key, text in metadata.items() if key != SUMS}
    storages = {storage.key: storage for storage in _storages(tree)}
    contents = Contents(
        format="safetensors",
        tree=tree,
        readings=(),
        structure=start,
        storages=storages,
        findings=bare,
        facts={
            "byteorder": "little",
            "records": len(storages),
            "header": (_PREFIX, start - _PREFIX),
            "metadata": metadata,
        },
    )
    return assemble(reader, contents)


def with_sums(
    path: str, head: bytes, metadata: Mapping[str, str] | None, tree: Mapping[str, TensorNode]
) -> dict[str, TensorNode] | None:
    """The tensors with the checksums that `head` tells of; None where it tells of none.

    Raises CorruptFile where it is damaged.
    """
    try:
        sums = read_sums(head, metadata or {}, len(tree))
    except Altered as fault:
        raise _corrupt(path, [f"its header is not what was saved: {fault}"]) from None
    return None if sums is None else summed(tree, sums)


def summed(tree: Mapping[str, TensorNode], sums: Sequence[int]) -> dict[str, TensorNode]:
    """The tensors with these checksums, which are in the order of the data."""
    made = dict(tree)
    ordered = sorted(tree, key=lambda name: _place(tree[name]))
    for name, crc in zip(ordered, sums, strict=True):
        node = tree[name]
        made[name] = replace(node, storage=replace(node.storage, crc32=crc)) if node.storage is not None else node
    return made


def _place(node: TensorNode) -> tuple[int, int]:
    span = node.storage.span if node.storage is not None else None
    return (span.offset, span.end) if span is not None else (0, 0)


def read_header(reader: Reader) -> tuple[int, dict[str, Any]]:
    """Where the data begins, and the header. Raises CorruptFile or HostileFile for what is none."""
    length = int.from_bytes(read(reader, 0, _PREFIX), "little")
    start = _PREFIX + length
    if length > _MAX_HEADER:
        raise HostileFile(
            f"{reader.path} declares a safetensors header of {format_bytes(length)}; the format allows 100 MB",
            path=reader.path,
        )
    if start > reader.size:
        raise CorruptFile(
            f"{reader.path} is a truncated safetensors file: its header ends at byte {start:,}, "
            f"the file at byte {reader.size:,}",
            remedy="The save or the copy was cut short. Copy it again, or use the checkpoint before it.",
            path=reader.path,
        )
    try:
        header = json.loads(read(reader, _PREFIX, length).decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as fault:
        raise CorruptFile(f"{reader.path}: its safetensors header is no JSON: {fault}", path=reader.path) from None
    if type(header) is not dict:
        raise CorruptFile(f"{reader.path}: its safetensors header is no JSON object", path=reader.path)
    return start, header


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:80]!r} occurs twice")
    return mapping


def tensor_of(path: str, file: str, name: str, entry: Any, start: int) -> TensorNode:
    """The tensor of one entry of a header whose data begins at `start`. Raises CorruptFile for what is none."""
    if type(entry) is not dict or entry.keys() != _FIELDS:
        raise CorruptFile(f"{name[:200]}: its entry is no dtype, shape and data_offsets")
    if not is_text(name):
        raise CorruptFile(f"{name[:200]!r}: half of a surrogate pair is no name")
    shape, offsets, code = entry["shape"], entry["data_offsets"], entry["dtype"]
    if type(shape) is not list or not all(type(n) is int and 0 <= n < _LIMIT for n in shape):
        raise CorruptFile(f"{name[:200]}: its shape is no list of whole numbers")
    if len(shape) > _MOST or _product([size or 1 for size in shape]) == _LIMIT:
        raise CorruptFile(f"{name[:200]}: no tensor has a shape of {len(shape):,} such sizes: {shape[:4]}")
    if type(offsets) is not list or len(offsets) != 2 or not all(type(n) is int and 0 <= n < _LIMIT for n in offsets):
        raise CorruptFile(f"{name[:200]}: its data_offsets are no two whole numbers")
    dtype = BY_SAFETENSORS.get(code) if type(code) is str else None
    if dtype is None and type(code) is str and code in _FOREIGN:
        raise UnsupportedFile(f"{path}: {name[:200]} has dtype {code}, which torch lacks", path=path)
    if dtype is None:
        raise CorruptFile(f"{name[:200]}: no safetensors dtype is called {str(code)[:40]!r}")
    nbytes = offsets[1] - offsets[0]
    sizes = _sizes(name, shape, _PACKED.get(code, 1))
    due = _product(sizes) * dtype.itemsize
    if nbytes != due:
        raise CorruptFile(f"{name[:200]}: {nbytes:,} bytes for shape {shape[:8]} of {code}, which takes {due:,}")
    key = f"{file}/{name}" if file else name
    storage = Storage(key, dtype.name, nbytes, "cpu", Span(start + offsets[0], nbytes, file), None)
    return TensorNode(storage, 0, sizes, _strides(sizes), dtype.name, "cpu")


def _sizes(name: str, shape: Sequence[int], packed: int) -> tuple[int, ...]:
    """Sizes in elements of the dtype's storage: two 4-bit numbers share a byte of torch's float4_e2m1fn_x2."""
    if packed == 1:
        return tuple(shape)
    if not shape or shape[-1] % packed:
        raise CorruptFile(f"{name[:200]}: its last size is not a multiple of {packed}")
    return (*shape[:-1], shape[-1] // packed)


def _product(sizes: Sequence[int]) -> int:
    product = 1
    for size in sizes:
        product *= size
        if product >= _LIMIT:
            return _LIMIT
    return product


def _strides(sizes: Sequence[int]) -> tuple[int, ...]:
    strides = [1] * len(sizes)
    for at in range(len(sizes) - 2, -1, -1):
        strides[at] = strides[at + 1] * max(sizes[at + 1], 1)
    return tuple(strides)


def _cover(tree: dict[str, TensorNode], start: int, size: int) -> list[str]:
    """What is wrong with the spans: the format wants the data covered once, from its first to its last byte."""
    spans = [(storage.span.offset, storage.span.end, storage.key) for storage in _storages(tree) if storage.span]
    faults, reached = [], start
    for begin, end, name in sorted(spans):
        if begin != reached:
            how = "overlaps the tensor before it" if begin < reached else "leaves a hole before it"
            faults.append(f"{name[:200]}: its data at byte {begin:,} {how}, which ends at byte {reached:,}")
        reached = max(reached, end)
    if reached > size:
        faults.append(
            f"the data ends at byte {reached:,}, the file at byte {size:,}: {count(reached - size, 'byte')} short"
        )
    elif reached < size:
        faults.append(f"{count(size - reached, 'byte')} after the data belong to no tensor")
    return faults


def _storages(tree: dict[str, TensorNode]) -> list[Storage]:
    return [node.storage for node in tree.values() if node.storage is not None]


def _corrupt(path: str, faults: Sequence[str]) -> FileError:
    more = [f"and {len(faults) - _SHOWN:,} more"] if len(faults) > _SHOWN else []
    return CorruptFile(
        f"{path} is a damaged safetensors file",
        details=[*faults[:_SHOWN], *more],
        remedy="The file was cut short or altered. Copy or download it again.",
        path=path,
    )
