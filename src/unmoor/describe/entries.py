"""The tensors of a catalog, each held against its storage.

Made while the tree is walked, so that none is held twice. Knows no format.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from unmoor.errors import CorruptFile
from unmoor.values.catalog import TensorEntry
from unmoor.values.dtypes import nbytes_of
from unmoor.values.nodes import CompositeTensor, Storage, TensorNode
from unmoor.values.text import count, format_shape

__all__ = ["Entries", "why_lost"]

_SHOWN: Final = 12
_SHARED: Final = 8
_MOST_WINDOWS: Final = 4096
_ANYWHERE: Final = float("inf")
"""Stands for the start of storages that do not all lie one behind the other: some may be met twice."""


class Entries:
    """Makes the entries of one file at `path`. `faults` says by storage key why its data cannot be had."""

    def __init__(self, path: str, faults: Mapping[str, str]) -> None:
        self._path, self._faults = path, faults
        self._sizes: dict[tuple[Any, ...], tuple[int, int]] = {}
        self._reached: float = -1
        self._bad: list[str] = []
        self._whole = 0

    def make(
        self, path: str, keys: tuple[Any, ...], role: str, node: TensorNode | CompositeTensor, layout: str
    ) -> TensorEntry:
        """The entry of one tensor; what does not fit is kept for `checked` to raise."""
        if type(node) is not TensorNode:
            return _composite(path, keys, role, node, layout)
        self._whole += 1
        storage, shape, stride, offset, dtype = node.storage, node.shape, node.stride, node.offset, node.dtype
        window = (shape, stride, offset, dtype)
        known = self._sizes.get(window)
        if known is None:
            known = self._sized(node, window)
        needed, nbytes = known
        if storage is None:
            key, span, held = "", None, needed
        else:
            key, span, held = storage.key, storage.span, storage.nbytes
            start = _ANYWHERE if span is None else span.offset
            self._reached = start if self._reached < start else _ANYWHERE
        if not 0 <= needed <= held or key in self._faults or (storage is not None and storage.chunks):
            why = why_lost(node, self._faults)
            if why:
                self._bad.append(f"{path or 'the tensor'}: {why}")
        return TensorEntry(path, role, shape, dtype, stride, node.device, nbytes, key, span,
                           offset, layout, node.parameter, (), keys, node)  # fmt: skip

    def checked(self, entries: list[TensorEntry]) -> list[TensorEntry]:
        """The entries, with who shares a storage. Raises CorruptFile naming all that do not fit."""
        if self._bad:
            raise _corrupt(self._path, self._bad, self._whole)
        twins = _twins(entries) if self._reached == _ANYWHERE else {}
        return [_shared(entry, twins) for entry in entries] if twins else entries

    def _sized(self, node: TensorNode, window: tuple[Any, ...]) -> tuple[int, int]:
        """The bytes that a window reaches over and those of its elements."""
        if len(self._sizes) >= _MOST_WINDOWS:
            self._sizes.clear()
        known = self._sizes[window] = (_needed(node), nbytes_of(node.dtype, node.numel))
        return known


def _shared(entry: TensorEntry, twins: Mapping[str, Sequence[str]]) -> TensorEntry:
    """An entry with the paths of the others on its storage."""
    others = twins.get(entry.storage, ())[: _SHARED + 1] if entry.node is not None else ()
    shared = tuple([other for other in others if other != entry.path][:_SHARED])
    return replace(entry, shared=shared) if shared else entry


def _corrupt(path: str, bad: Sequence[str], whole: int) -> CorruptFile:
    more = [f"and {count(len(bad) - _SHOWN, 'tensor')} more"] if len(bad) > _SHOWN else []
    others = whole - len(bad)
    rest = [f"the other {others:,} tensors are whole"] if others > 1 else ["the other tensor is whole"][:others]
    return CorruptFile(
        f"{path}: the data of {count(len(bad), 'tensor')} cannot be had",
        details=[*bad[:_SHOWN], *more, *rest],
        remedy="The file was cut short or altered. Copy it again, or use the checkpoint before it.",
        path=path,
    )


def why_lost(node: TensorNode, faults: Mapping[str, str]) -> str:
    """Why the data of a tensor cannot be had; "" where it can. `faults` says so of storages by their keys."""
    key = node.storage.key if node.storage is not None else ""
    return faults.get(key, "") or _misfit(node, node.storage) or _broken_chunk(node.storage, faults)


def _broken_chunk(storage: Storage | None, faults: Mapping[str, str]) -> str:
    """Why a chunk of a tensor cannot be had; "" where all can. A chunk must not stand for more than it holds."""
    for chunk in storage.chunks if storage is not None else ():
        node, source = chunk.node, chunk.node.storage
        why = faults.get(source.key, "") if source is not None else "it has no data"
        why = why or _misfit(node, source)
        if not why and source is not None and nbytes_of(node.dtype, node.numel) > source.nbytes:
            why = f"it repeats the elements of a storage of {source.nbytes:,} bytes"
        if why:
            return f"its chunk at {chunk.start}: {why}"
    return ""


def _needed(node: TensorNode) -> int:
    """The bytes of a storage that a window reaches over, from its first on; -1 where one of its numbers is negative."""
    last, low, empty = node.offset, node.offset, False
    for size, step in zip(node.shape, node.stride, strict=True):
        low = min(low, size, step)
        empty = empty or size == 0
        last += (size - 1) * step
    return -1 if low < 0 else 0 if empty else nbytes_of(node.dtype, last + 1)


def _misfit(node: TensorNode, storage: Storage | None) -> str:
    """Why a tensor cannot be a window into its storage; "" where it can."""
    needed = _needed(node)
    if needed < 0:
        return f"shape {node.shape}, stride {node.stride}, offset {node.offset}: a number is negative"
    if storage is None or needed <= storage.nbytes:
        return ""
    return (
        f"{format_shape(node.shape)} {node.dtype} from element {node.offset:,} needs {needed:,} bytes, "
        f"its storage {storage.key} has {storage.nbytes:,}"
    )


def _twins(entries: Iterable[TensorEntry]) -> dict[str, list[str]]:
    """The paths of the tensors on each storage that several share."""
    first: dict[str, str] = {}
    twins: dict[str, list[str]] = {}
    for entry in entries:
        if entry.node is not None and entry.node.storage is not None:
            path = first.setdefault(entry.storage, entry.path)
            if path is not entry.path:
                twins.setdefault(entry.storage, [path]).append(entry.path)
    return twins


def _composite(path: str, keys: tuple[Any, ...], role: str, node: Any, layout: str) -> TensorEntry:
    """A tensor without strided parts: its bytes are not in the file as such."""
    numel = 1
    for size in node.shape:
        numel *= size
    device = str(node.detail.get("device", "cpu"))
    nbytes = nbytes_of(node.dtype, numel)
    return TensorEntry(path, role, node.shape, node.dtype, (), device, nbytes, "", None,
                       layout=layout, parameter=node.parameter, keys=keys)  # fmt: skip
