"""Which bytes of which storages the tensors of a tree look into: how much of each is written, and what stands where.

A storage is written only as far as tensors reach into it; what goes through torch's own way of pickling needs it whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from unmoor.errors import UsageError

from .layouts import dtype_name, strided_parts

__all__ = ["Range", "Window", "Windows", "storage_ranges"]

_ALIGN = 16

Window = tuple["Range", int, tuple[int, ...], tuple[int, ...], torch.dtype]
"""A plain tensor in what is written: its storage, offset in the whole storage, shape, strides (in elements), dtype."""


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
    """Storage -> the bytes of it that plain tensors reach, from a multiple of the largest element size on.

    Raises UsageError as `Windows` does.
    """
    return Windows(tensors).ranges


class Windows:
    """The windows of all tensors of a tree, each looked at once.

    `ranges` goes by identity of the storage, `known` by that of the tensor. With `parts` the tensors are seen of which
    others (sparse, nested) are made, too. Raises UsageError for tensors that reach past the memory they have.
    """

    def __init__(self, tensors: Iterable[torch.Tensor], *, parts: bool = False) -> None:
        self.ranges: dict[int, Range] = {}
        self._wholes: dict[int, Range] = {}
        self.known: dict[int, Window] = {}
        self._layouts: dict[Any, tuple[tuple[int, ...], tuple[int, ...], int]] = {}
        others: list[torch.Tensor] = []
        lazy = self._look(tensors, others)
        self._parts = [part for tensor in others for part in strided_parts(tensor).values()] if parts else []
        lazy |= self._look(self._parts, [])
        for identity, entry in self.ranges.items():
            nbytes = entry.storage.nbytes()
            if entry.end > nbytes:
                self._refuse_freed()
            entry.start = 0 if identity in lazy else entry.start - entry.start % _ALIGN
            entry.end = nbytes if identity in lazy else entry.end

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
        return entry, int(tensor.storage_offset()), shape, stride, tensor.dtype

    def whole(self, storage: torch.UntypedStorage) -> Range:
        """All bytes of a storage: the range that tensors reach, where that is all."""
        known = self.ranges.get(storage._cdata) or self._wholes.get(storage._cdata)
        if known is None or known.start or known.end != storage.nbytes():
            known = self._wholes.setdefault(storage._cdata, Range(storage, 0, storage.nbytes()))
        return known

    def _look(self, tensors: Iterable[torch.Tensor], others: list[torch.Tensor]) -> set[int]:
        """Fill the tables; the storages that lazy conjugates and negations look into, which need them whole.

        `others` gets the tensors that are not numbers in one storage.
        """
        ranges, windows, layouts, strided = self.ranges, self.known, self._layouts, torch.strided
        lazy: set[int] = set()
        for tensor in tensors:
            if tensor.layout is not strided or id(tensor) in windows or tensor.is_nested or tensor.is_quantized:
                if id(tensor) not in windows:
                    others.append(tensor)
                continue
            storage, dtype = tensor.untyped_storage(), tensor.dtype
            offset: Any = tensor.storage_offset()
            identity, itemsize = storage._cdata, dtype.itemsize
            shape, stride, reach = layouts.get((tensor.size(), tensor.stride())) or self._layout(tensor)
            low = offset * itemsize
            if not reach:  # it may stand anywhere, past the end of its storage too
                low = min(low, storage.nbytes())
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

    def _refuse_freed(self) -> None:
        raise UsageError(
            "tensors reach past the memory that they have; nothing was written",
            details=sorted(
                {
                    f"{dtype_name(dtype)} {list(shape)}: its storage has {entry.storage.nbytes():,} bytes"
                    for entry, _, shape, _, dtype in self.known.values()
                    if entry.end > entry.storage.nbytes()
                }
            )[:20],
            remedy="Their storages were freed or made smaller (storage.resize_): bring their values back first.",
        )

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
