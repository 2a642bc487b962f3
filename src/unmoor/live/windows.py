"""Which bytes of which storages the tensors of a tree look into: how much of each is written, and what stands where.

A storage is written only as far as tensors reach into it; what goes through torch's own way of pickling needs it whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

__all__ = ["Range", "Window", "Windows", "storage_ranges"]

_ALIGN = 16

Window = tuple["Range", int, tuple[int, ...], tuple[int, ...], torch.dtype]
"""A plain tensor in the bytes that are written: the storage, offset in the storage, shape, strides (elements), dtype."""


class Range:
    """The bytes of one storage that are written. `dtype` is that of all tensors in it unless they are `mixed`.

    `key` and `location` name it in the file, once it was met there.
    """

    key: str = ""
    location: str = ""
    mixed: bool = False

    def __init__(self, storage: torch.UntypedStorage, start: int, end: int, dtype: torch.dtype | None = None) -> None:
        self.storage, self.start, self.end, self.dtype = storage, start, end, dtype


def storage_ranges(tensors: Iterable[torch.Tensor]) -> dict[int, Range]:
    """Storage -> the bytes of it that plain tensors reach, from a multiple of the largest element size on."""
    return Windows(tensors).ranges


class Windows:
    """The windows of all tensors of a tree, each looked at once.

    `ranges` goes by identity of the storage, `known` by that of the tensor.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self.ranges: dict[int, Range] = {}
        self._wholes: dict[int, Range] = {}
        self.known: dict[int, Window] = {}
        self._layouts: dict[Any, tuple[tuple[int, ...], tuple[int, ...], int]] = {}
        lazy = self._look(tensors)
        for identity, entry in self.ranges.items():
            entry.start = 0 if identity in lazy else entry.start - entry.start % _ALIGN
            entry.end = entry.storage.nbytes() if identity in lazy else entry.end

    def of(self, tensor: torch.Tensor) -> Window | None:
        """The window of a tensor; None for one that is more than a window, and goes torch's own way."""
        known = self.known.get(id(tensor))
        if known is not None:
            return known
        if not _is_plain(tensor):
            return None
        storage = tensor.untyped_storage()
        entry = self.ranges.get(storage._cdata) or self.whole(storage)
        shape, stride, _ = self._layout(tensor)
        return entry, tensor.storage_offset(), shape, stride, tensor.dtype

    def whole(self, storage: torch.UntypedStorage) -> Range:
        """All bytes of a storage: the range that tensors reach, where that is all."""
        known = self.ranges.get(storage._cdata) or self._wholes.get(storage._cdata)
        if known is None or known.start or known.end != storage.nbytes():
            known = self._wholes.setdefault(storage._cdata, Range(storage, 0, storage.nbytes()))
        return known

    def _look(self, tensors: Iterable[torch.Tensor]) -> set[int]:
        """Fill the tables; the storages that lazy conjugates and negations look into, which need them whole."""
        ranges, windows, layouts, strided = self.ranges, self.known, self._layouts, torch.strided
        lazy: set[int] = set()
        for tensor in tensors:
            if tensor.layout is not strided or id(tensor) in windows or tensor.is_nested or tensor.is_quantized:
                continue
            storage, offset, dtype = tensor.untyped_storage(), tensor.storage_offset(), tensor.dtype
            identity, itemsize = storage._cdata, dtype.itemsize
            shape, stride, reach = layouts.get((tensor.size(), tensor.stride())) or self._layout(tensor)
            low = offset * itemsize
            high = low + reach * itemsize
            entry = ranges.get(identity)
            if entry is None:
                entry = ranges[identity] = Range(storage, low, high, dtype)
            else:
                entry.start, entry.end = min(entry.start, low), max(entry.end, high)
                entry.mixed = entry.mixed or entry.dtype != dtype
            if tensor.is_neg() or tensor.is_conj():
                lazy.add(identity)
            else:
                windows[id(tensor)] = entry, offset, shape, stride, dtype
        return lazy

    def _layout(self, tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """Shape and strides, one object for all that are equal, and the elements from the first to past the last."""
        size, stride = tensor.size(), tensor.stride()
        known = self._layouts.get((size, stride))
        if known is None:
            shape = tuple(map(int, size))
            reach = 0 if 0 in shape else 1 + sum((n - 1) * int(s) for n, s in zip(shape, stride, strict=True))
            known = self._layouts[size, stride] = shape, stride, reach
        return known


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is numbers in one storage, and its values are these numbers."""
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        return False
    return not tensor.is_neg() and not tensor.is_conj()
