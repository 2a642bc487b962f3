"""Two stored tensors of one shape, cut into patches of which each side lies in one storage, and these into pieces.

Pure: shapes, strides and offsets, no data and no files. Where both sides lay their elements out alike a piece is a run
of bytes on each; else it is a box, small enough on both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from unmoor.values.boxes import Box, overlap
from unmoor.values.dtypes import DTYPES, nbytes_of
from unmoor.values.elements import Order
from unmoor.values.nodes import Chunk, TensorNode
from unmoor.values.strides import contiguous, is_dense

from .cuts import nbytes_of as read_bytes
from .tiling import same_layout

__all__ = ["Patch", "Piece", "elements_of", "patches", "pieces"]

_FEW: Final = 64
"""Chunks of one side that are met with all of the other."""


@dataclass(frozen=True, slots=True, eq=False)
class Patch:
    """Elements of both sides: windows `a` and `b` of one shape, each in one storage, from `start` of the whole on."""

    start: tuple[int, ...]
    a: TensorNode
    b: TensorNode
    whole: tuple[int, ...]

    @property
    def alike(self) -> bool:
        """Whether both sides are the same runs of bytes where their elements are equal."""
        a, b = self.a, self.b
        if a.dtype != b.dtype or a.bits != b.bits or not same_layout(a.shape, a.stride, b.stride):
            return False
        orders = {node.storage.byteorder for node in (a, b) if node.storage is not None}
        return (len(orders) == 1 or DTYPES[a.dtype].itemsize == 1) and is_dense(a.shape, a.stride)


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Elements to compare at once. `order` tells where they stand in the whole tensor, from number `first` of it on.

    With `alike` they are `nbytes` bytes from the beginning of both windows, which are flat; else windows to gather.
    """

    a: TensorNode
    b: TensorNode
    order: Order
    first: int
    nbytes: int
    alike: bool


def patches(a: TensorNode, b: TensorNode) -> Iterator[Patch]:
    """What the boxes of both sides have in common; together the whole tensor, each element once."""
    if 0 in a.shape:
        return
    theirs = _chunks(b)
    axis = _varying(theirs)
    ordered = sorted(theirs, key=lambda chunk: chunk.start[axis]) if axis >= 0 else theirs
    for mine in _chunks(a):
        box = Box(mine.start, mine.node.shape)
        for other in ordered:
            if axis >= 0 and len(ordered) > _FEW and other.start[axis] >= mine.start[axis] + mine.node.shape[axis]:
                break
            both = overlap(box, Box(other.start, other.node.shape))
            if both is not None:
                yield Patch(both.start, _window(mine, both), _window(other, both), a.shape)


def _chunks(node: TensorNode) -> Sequence[Chunk]:
    chunks = node.storage.chunks if node.storage is not None else ()
    return chunks or (Chunk(tuple(0 for _ in node.shape), node),)


def _varying(chunks: Sequence[Chunk]) -> int:
    """The first dimension along which the chunks begin at different places; -1 for none."""
    dimensions = len(chunks[0].start)
    return next((i for i in range(dimensions) if len({chunk.start[i] for chunk in chunks}) > 1), -1)


def _window(chunk: Chunk, box: Box) -> TensorNode:
    node = chunk.node
    if box.sizes == node.shape:
        return node
    steps = ((p - q) * step for p, q, step in zip(box.start, chunk.start, node.stride, strict=True))
    return replace(node, offset=node.offset + sum(steps), shape=box.sizes)


def elements_of(dtype: str, nbytes: int) -> int:
    """How many elements of a dtype fit into some bytes, a multiple of those that share one byte."""
    row = DTYPES[dtype]
    return max(1, nbytes // row.itemsize) * row.packing


def pieces(patch: Patch, limit: int) -> Iterator[Piece]:
    """A patch in pieces for which no side reads more than `limit` bytes, but for single elements."""
    steps = contiguous(patch.whole)
    base = sum(at * step for at, step in zip(patch.start, steps, strict=True))
    if patch.alike:
        yield from _flat(patch, steps, base, limit)
    else:
        yield from _boxed(patch, steps, base, limit)


def _flat(patch: Patch, steps: Sequence[int], base: int, limit: int) -> Iterator[Piece]:
    a, b = patch.a, patch.b
    axes = sorted((i for i, size in enumerate(a.shape) if size > 1), key=lambda i: -a.stride[i])
    order = Order(tuple(a.shape[i] for i in axes), tuple(steps[i] for i in axes), base)
    numel, most = a.numel, elements_of(a.dtype, limit)
    for first in range(0, numel, most):
        number = min(most, numel - first)
        mine, other = (replace(n, offset=n.offset + first, shape=(number,), stride=(1,)) for n in (a, b))
        yield Piece(mine, other, order, first, nbytes_of(a.dtype, number), alike=True)


def _boxed(patch: Patch, steps: Sequence[int], base: int, limit: int) -> Iterator[Piece]:
    for start, sizes in _boxes(patch, tuple(0 for _ in patch.a.shape), patch.a.shape, limit):
        mine, other = (_box(node, start, sizes) for node in (patch.a, patch.b))
        at = base + sum(p * step for p, step in zip(start, steps, strict=True))
        nbytes = prod(sizes) * DTYPES[mine.dtype].itemsize
        yield Piece(mine, other, Order(sizes, tuple(steps), at), 0, nbytes, alike=False)


def _box(node: TensorNode, start: Sequence[int], sizes: tuple[int, ...]) -> TensorNode:
    offset = node.offset + sum(p * step for p, step in zip(start, node.stride, strict=True))
    return replace(node, offset=offset, shape=sizes)


def _boxes(
    patch: Patch, start: tuple[int, ...], sizes: tuple[int, ...], limit: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Halve the dimension that reaches farthest until a box is small enough on both sides."""
    nodes = (_box(patch.a, start, sizes), _box(patch.b, start, sizes))
    small = all(max(read_bytes(node), nbytes_of(node.dtype, node.numel)) <= limit for node in nodes)
    if small or max(sizes, default=1) == 1:
        yield start, sizes
        return
    axis = max((_outermost(node) for node in nodes), key=lambda i: sizes[i])
    half = sizes[axis] // 2
    for first, size in ((0, half), (half, sizes[axis] - half)):
        inside = (*start[:axis], start[axis] + first, *start[axis + 1 :])
        yield from _boxes(patch, inside, (*sizes[:axis], size, *sizes[axis + 1 :]), limit)


def _outermost(node: TensorNode) -> int:
    return max((i for i, size in enumerate(node.shape) if size > 1), key=lambda i: (node.stride[i], node.shape[i]))
