"""Where the elements of strided tensors lie, and how to cut them into pieces of bounded extent.

Pure: shapes and strides in elements, no data and no files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from unmoor.values.strides import is_dense

__all__ = ["Tile", "extent", "is_dense", "same_layout", "tiles"]


@dataclass(frozen=True, slots=True)
class Tile:
    """A box of elements, from index `start` on, whose first element is `offset` elements into the storage.

    All its elements lie in the `extent` elements from `offset`.
    """

    start: tuple[int, ...]
    shape: tuple[int, ...]
    offset: int
    extent: int


def extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """How many elements lie from the first to the last of a strided tensor; 0 where it is empty.

    >>> extent((2, 3), (10, 1)), extent((), ()), extent((4, 0), (1, 1))
    (13, 1, 0)
    """
    if 0 in shape:
        return 0
    reach = 1
    for size, step in zip(shape, stride, strict=True):
        reach += (size - 1) * step
    return reach


def same_layout(shape: Sequence[int], stride_a: Sequence[int], stride_b: Sequence[int]) -> bool:
    """Whether two strides put every element of `shape` at the same place: those of dimensions of size 1 do not count.

    >>> same_layout((1, 3), (3, 1), (99, 1)), same_layout((2, 3), (3, 1), (1, 2))
    (True, False)
    """
    if stride_a == stride_b:
        return True
    return all(a == b for size, a, b in zip(shape, stride_a, stride_b, strict=True) if size > 1)


def tiles(shape: tuple[int, ...], stride: tuple[int, ...], offset: int, limit: int) -> Iterator[Tile]:
    """Cut a tensor into boxes whose extent is at most `limit` elements: every element is in exactly one.

    Cuts the dimension that reaches farthest in memory first, so that the boxes of a dense tensor are runs of its
    storage. A limit of 1 gives single elements, or the boxes of one element that strides of 0 repeat.

    >>> [(t.start, t.shape, t.offset, t.extent) for t in tiles((3, 2), (2, 1), 0, 4)]
    [((0, 0), (2, 2), 0, 4), ((2, 0), (1, 2), 4, 2)]
    """
    if 0 not in shape:
        yield from _cut(tuple(0 for _ in shape), shape, stride, offset, limit)


def _cut(
    start: tuple[int, ...], shape: tuple[int, ...], stride: tuple[int, ...], offset: int, limit: int
) -> Iterator[Tile]:
    reach = extent(shape, stride)
    if reach <= limit:
        yield Tile(start, shape, offset, reach)
        return
    axis = max(range(len(shape)), key=lambda i: (shape[i] - 1) * stride[i])
    rest = reach - (shape[axis] - 1) * stride[axis]
    thick = max(1, (limit - rest) // stride[axis] + 1)
    for first in range(0, shape[axis], thick):
        size = min(thick, shape[axis] - first)
        yield from _cut(
            (*start[:axis], start[axis] + first, *start[axis + 1 :]),
            (*shape[:axis], size, *shape[axis + 1 :]),
            stride,
            offset + first * stride[axis],
            limit,
        )
