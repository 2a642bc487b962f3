"""Reads of a storage of which a rank wants parts: those bytes, and no page that holds none of them.

Pure: makes jobs, opens nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .cuts import strand_of
from .sinks import Window
from .takers import Block, Gather, Piece, Run, Scatter
from .tiling import extent, tiles

__all__ = ["PIECE", "STAGED", "part_jobs", "split"]

#: Bytes of one direct read: enough to forget the cost of the call, few enough to share one storage among threads, and
#: for what the threads read at a time to lie together: the system reads ahead of them as of one.
PIECE: Final = 4 << 20
#: Bytes of one read through the buffer, of a storage that is larger than the buffer.
STAGED: Final = 4 << 20


def part_jobs(block: Block, *, buffer_bytes: int) -> list[Piece | Gather]:
    """What each taker of a block wants, on its own, in the order of the file."""
    limit = min(STAGED, buffer_bytes)
    jobs = [job for taker in block.takers for job in _jobs(block, taker, limit)]
    return sorted(jobs, key=lambda job: job.start)


def _jobs(block: Block, taker: Run | Scatter, limit: int) -> Iterator[Piece | Gather]:
    if isinstance(taker, Scatter):
        yield from _gathers(block, taker, limit)
    elif taker.memory() is not None:
        for start, end in split(taker.start, taker.end, PIECE):
            yield Piece(block, start, end, taker, counted=False)
    else:
        for start, end in split(taker.start, taker.end, limit):
            yield Piece(block, start, end, None, (taker,), counted=False)


def _gathers(block: Block, scatter: Scatter, limit: int) -> Iterator[Gather]:
    """The runs of a scatter's elements, in windows that fit into `limit` bytes of buffer."""
    node, whole, size = scatter.node, scatter.window, scatter.itemsize
    strand = strand_of(node)
    inner = [axis for axis in range(len(node.shape)) if axis not in strand.outer]
    for tile in tiles(whole.shape, strand.stride, 0, limit // size):
        first = whole.offset + sum(a * step for a, step in zip(tile.start, whole.stride, strict=True))
        run = extent([tile.shape[axis] for axis in inner], [whole.stride[axis] for axis in inner])
        loops = tuple((tile.shape[axis], whole.stride[axis] * size) for axis in strand.outer if tile.shape[axis] > 1)
        window = Window(tile.start, tile.shape, strand.stride, 0, whole.dtype, whole.byteorder, whole.bits)
        yield Gather(block, first * size, run * size, loops, scatter, window)


def split(start: int, end: int, limit: int) -> Iterator[tuple[int, int]]:
    """`start` to `end` in pieces of at most `limit`."""
    return ((a, min(a + limit, end)) for a in range(start, end, limit))
