"""Whole tensors out of boxes that lie in several places: proved to fill the tensor, each element once.

Pure: shapes and nodes in, a node or the words for what is wrong out. Opens nothing and knows no format.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

from unmoor.values.boxes import Box
from unmoor.values.dtypes import DTYPES
from unmoor.values.nodes import Chunk, Span, Storage, TensorNode
from unmoor.values.strides import contiguous
from unmoor.values.text import count, format_shape

__all__ = ["TOO_TANGLED", "empty_tensor", "tiling_fault", "whole_tensor"]

_PAIRS: Final = 2048
"""Boxes that no straight cut separates are compared each with each, up to this many."""
_WORK: Final = 128
"""How many times each box may be looked at, on average, before the layout counts as unreadable."""

TOO_TANGLED: Final = "its chunks are too tangled to prove that they do not overlap"


def tiling_fault(shape: tuple[int, ...], boxes: Sequence[Box]) -> str:
    """Why `boxes` do not fill a tensor of `shape`, each element once; "" where they do.

    >>> tiling_fault((4, 2), [Box((0, 0), (3, 2)), Box((3, 0), (1, 2))])
    ''
    >>> tiling_fault((4, 2), [Box((0, 0), (3, 2))])
    '2 of its 8 elements are in no chunk'
    """
    for box in boxes:
        if len(box.start) != len(shape) or len(box.sizes) != len(shape):
            return f"its chunk at {box.start} of {box.sizes} has another number of dimensions than {shape}"
        if any(not 0 <= a <= a + n <= whole for a, n, whole in zip(*box, shape, strict=True)):
            return f"its chunk at {box.start} of {format_shape(box.sizes)} reaches out of {format_shape(shape)}"
    full = [box for box in boxes if 0 not in box.sizes]
    held, total = sum(prod(box.sizes) for box in full), prod(shape)
    if held < total:
        return f"{total - held:,} of its {count(total, 'element')} are in no chunk"
    return _overlap(full)


def _overlap(boxes: list[Box]) -> str:
    """Splits the boxes by straight cuts until each stands alone: those that no cut separates overlap, or are few."""
    work, left = _WORK * (len(boxes) + _WORK), [boxes]
    while left:
        group = left.pop()
        if len(group) < 2:
            continue
        work -= len(group)
        if work < 0:
            return TOO_TANGLED
        parts = next((cut for axis in range(len(group[0].start)) if len(cut := _cut(group, axis)) > 1), None)
        if parts is not None:
            left += parts
        elif len(group) > _PAIRS:
            return TOO_TANGLED
        elif fault := _pairs(group):
            return fault
    return ""


def _cut(boxes: list[Box], axis: int) -> list[list[Box]]:
    """The boxes in groups that do not meet along `axis`."""
    groups: list[list[Box]] = []
    reached = -1
    for box in sorted(boxes, key=lambda box: box.start[axis]):
        if box.start[axis] >= reached:
            groups.append([])
        groups[-1].append(box)
        reached = max(reached, box.start[axis] + box.sizes[axis])
    return groups


def _pairs(boxes: list[Box]) -> str:
    for number, one in enumerate(boxes):
        for other in boxes[:number]:
            if all(a < b + m and b < a + n for a, n, b, m in zip(*one, *other, strict=True)):
                return f"its chunks at {other.start} and {one.start} overlap"
    return ""


def whole_tensor(key: str, dtype: str, shape: tuple[int, ...], chunks: Sequence[Chunk], device: str) -> TensorNode:
    """The tensor that `chunks`, proved to fill it, make up, on a storage of its own; empty ones are left out."""
    nbytes = prod(shape) * DTYPES[dtype].itemsize
    full = tuple(chunk for chunk in chunks if 0 not in chunk.node.shape)
    storage = Storage(key, dtype, nbytes, device, None, None, shape=shape, chunks=full)
    return TensorNode(storage, 0, shape, contiguous(shape), dtype, device)


def empty_tensor(key: str, dtype: str, shape: tuple[int, ...], file: str, device: str) -> TensorNode:
    """A tensor without elements, of which no file holds a byte."""
    storage = Storage(key, dtype, 0, device, Span(0, 0, file), 0)
    return TensorNode(storage, 0, shape, contiguous(shape), dtype, device)
