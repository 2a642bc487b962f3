"""Which stored elements a copy wants: all of a tensor, or what the boxes of its slot have in common with its chunks.

Pure: shapes and strides, no data and no files. It decides what one rank reads of a tensor that many share.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from unmoor.values.boxes import Box, overlap
from unmoor.values.dtypes import dtype_bytes
from unmoor.values.nodes import Chunk, TensorNode
from unmoor.values.plan import Copy

from .tiling import extent

__all__ = ["Cut", "Strand", "covered", "cuts_of", "strand_of"]

#: Runs of wanted bytes that are less than this apart are read as one: no page lies between them that holds none.
PAGE: Final = 4 << 10
#: Chunks of one tensor that are looked at one by one.
_FEW: Final = 8


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """Elements that lie in one storage, as a tensor of their own, and where they go.

    They go to `start` of the slot, or of its `box`. `part` tells that they are not all of what was stored as a tensor.
    """

    node: TensorNode
    start: tuple[int, ...]
    box: Box | None
    part: bool


@dataclass(frozen=True, slots=True)
class Strand:
    """How to read a strided tensor without what lies between: runs of `size` elements, in loops.

    `outer` are the dimensions that are looped over, the farthest first; `stride` is where the elements stand once the
    runs lie one behind the other.
    """

    size: int
    outer: tuple[int, ...]
    stride: tuple[int, ...]


def cuts_of(copy: Copy) -> Iterator[Cut]:
    """The cuts of one copy, box by box."""
    node, boxes = copy.node, copy.slot.boxes
    chunks = node.storage.chunks if node.storage is not None else ()
    if boxes is None:
        for chunk in chunks or (_alone(node),):
            yield Cut(chunk.node, chunk.start, None, part=False)
        return
    for box in boxes:
        for chunk in _near(chunks, box) or (() if chunks else (_alone(node),)):
            both = overlap(box, Box(chunk.start, chunk.node.shape))
            if both is not None:
                start = tuple(a - b for a, b in zip(both.start, box.start, strict=True))
                yield Cut(_window(chunk, both), start, box, part=both.sizes != chunk.node.shape)


def _alone(node: TensorNode) -> Chunk:
    return Chunk(tuple(0 for _ in node.shape), node)


def _window(chunk: Chunk, box: Box) -> TensorNode:
    """The elements of a box as a tensor on the chunk's storage."""
    node = chunk.node
    steps = ((a - b) * step for a, b, step in zip(box.start, chunk.start, node.stride, strict=True))
    if box.sizes == node.shape:
        return node
    rest = (node.stride, node.dtype, node.device, node.requires_grad, node.parameter, node.bits, node.quantizer)
    return TensorNode(node.storage, node.offset + sum(steps), box.sizes, *rest)


def _near(chunks: Sequence[Chunk], box: Box) -> Sequence[Chunk]:
    """The chunks that may meet a box: of many, those whose place along one dimension allows it."""
    if len(chunks) <= _FEW:
        return chunks
    first, last = chunks[0].start, chunks[-1].start
    axis = next((i for i, (a, b) in enumerate(zip(first, last, strict=True)) if a != b), 0)
    ordered = sorted(chunks, key=lambda chunk: chunk.start[axis])
    longest = max(chunk.node.shape[axis] for chunk in chunks)
    low = bisect_right(ordered, box.start[axis] - longest, key=lambda chunk: chunk.start[axis])
    high = bisect_left(ordered, box.start[axis] + box.sizes[axis], key=lambda chunk: chunk.start[axis])
    return ordered[low:high]


def strand_of(node: TensorNode) -> Strand:
    """Elements that lie less than a page apart are one run; dimensions that step over more are loops.

    >>> node = TensorNode(None, 0, (3, 2), (9000, 1), "float32", "cpu")
    >>> strand_of(node)
    Strand(size=2, outer=(0,), stride=(2, 1))
    """
    gap = PAGE // dtype_bytes(node.dtype)
    axes = sorted((i for i, size in enumerate(node.shape) if size > 1), key=lambda i: node.stride[i])
    reach, inner = 1, 0
    while inner < len(axes) and node.stride[axes[inner]] - reach < gap:
        reach += (node.shape[axes[inner]] - 1) * node.stride[axes[inner]]
        inner += 1
    stride, step = list(node.stride), reach
    for axis in axes[inner:]:
        stride[axis], step = step, step * node.shape[axis]
    return Strand(reach, tuple(reversed(axes[inner:])), tuple(stride))


def nbytes_of(node: TensorNode) -> int:
    """The bytes that are read for the elements of a node where they are read alone."""
    strand = strand_of(node)
    return strand.size * prod(node.shape[axis] for axis in strand.outer) * dtype_bytes(node.dtype)


def covered(nodes: Sequence[TensorNode], nbytes: int) -> bool:
    """Whether the nodes leave none of the `nbytes` of their storage out."""
    ends = sorted(filter(None, map(_interval, nodes)))
    reached = 0
    for start, end in ends:
        if start > reached:
            return False
        reached = max(reached, end)
    return reached >= nbytes


def _interval(node: TensorNode) -> tuple[int, int] | None:
    """The bytes that a node fills without gaps; None where it has some."""
    reach, size = extent(node.shape, node.stride), dtype_bytes(node.dtype)
    return (node.offset * size, (node.offset + reach) * size) if reach == node.numel else None
