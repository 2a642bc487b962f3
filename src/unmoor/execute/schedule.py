"""Which bytes to read, and in which order: decided before the first is read.

Pure: makes jobs out of what is wanted, opens nothing. The unit is the storage: its checksum covers it whole.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from unmoor.values.nodes import deflated

from .partial import PIECE, STAGED, part_jobs, split
from .sinks import Window
from .takers import Batch, Block, Job, Piece, Run, Scatter
from .tiling import tiles

__all__ = ["lanes", "schedule", "threads_for"]

#: Storages and segments below this are read together with their neighbours: a copy costs less than a call.
SMALL: Final = 128 << 10
#: Storages of fewer bytes than this on average are tiny, where there are at least so many.
TINY: Final = 16 << 10
MANY: Final = 256
#: Bytes of one read of neighbours: they are summed and copied while still in the cache.
TOGETHER: Final = 1 << 20
#: Neighbours may stand this far apart (the headers between them are read and dropped).
GAP: Final = 4 << 10
#: The same where each read is a request to a server.
FAR_GAP: Final = 64 << 10
#: Requests that are on their way at once, at most.
LANES: Final = 16


def threads_for(blocks: Sequence[Block], threads: int) -> int:
    """How many threads to read with.

    One where data is deflated, which can only be read from its beginning on; and for many tiny storages: handing each
    to its tensor takes longer than its bytes, and only one thread at a time can do that.
    """
    if any(map(deflated, {block.span.file for block in blocks})):
        return 1
    many_tiny = len(blocks) >= MANY and sum(block.span.nbytes for block in blocks) < len(blocks) * TINY
    return 1 if many_tiny else threads


def lanes(blocks: Sequence[Block], threads: int, buffer_bytes: int, grain: int) -> tuple[int, int]:
    """How many threads read, and how many bytes their buffers may have together.

    Where each read is a request for `grain` bytes (0: of a file of this machine), threads wait more than they work, and
    each answer takes up memory until it is where it belongs.
    """
    if not grain or any(map(deflated, {block.span.file for block in blocks})):
        return threads_for(blocks, threads), buffer_bytes
    number = max(1, min(LANES, buffer_bytes // (2 * grain)))
    return number, max(buffer_bytes - number * grain, buffer_bytes // 2)


def schedule(blocks: Sequence[Block], *, buffer_bytes: int, checked: bool, grain: int = 0) -> list[Job]:
    """The reads that fill everything that `blocks` want, in their order, with `buffer_bytes` of buffer for each.

    `grain` is how many bytes a read should have, 0 where small ones cost little. With `checked`, every byte of a
    storage that has a checksum is in exactly one batch or counted piece, unless it is read in part.
    """
    jobs: list[Job] = []
    near: list[Block] = []
    small, together, gap = max(SMALL, grain // 2), max(TOGETHER, grain), FAR_GAP if grain else GAP
    for block in blocks:
        nbytes = block.span.nbytes
        if block.in_part:
            jobs += part_jobs(block, buffer_bytes=buffer_bytes)
            continue
        if nbytes > buffer_bytes or not _read_whole(block, small):
            _flush(near, jobs)
            jobs += _pieces(block, buffer_bytes=buffer_bytes, checked=checked and block.storage.crc32 is not None)
            continue
        if near and not _together(near, block, min(together, buffer_bytes), gap):
            _flush(near, jobs)
        near.append(block)
    _flush(near, jobs)
    return jobs


def _read_whole(block: Block, small: int) -> bool:
    if block.span.nbytes < small:
        return True
    return any(isinstance(taker, Scatter) or taker.memory() is None for taker in block.takers)


def _together(near: list[Block], block: Block, limit: int, gap: int) -> bool:
    first, last, span = near[0].span, near[-1].span, block.span
    apart = span.offset - last.offset - last.nbytes
    return 0 <= apart <= gap and span.offset + span.nbytes - first.offset <= limit and span.file == first.file


def _flush(near: list[Block], jobs: list[Job]) -> None:
    if near:
        offset = near[0].span.offset
        jobs.append(Batch(offset, near[-1].span.end - offset, tuple(near)))
        near.clear()


def _pieces(block: Block, *, buffer_bytes: int, checked: bool) -> Iterator[Piece]:
    cells = _cells(block, min(STAGED, buffer_bytes))
    if any(a.end > b.start for a, b in pairwise(cells)):
        yield from _sweep(block, [], buffer_bytes=buffer_bytes, checked=checked)
        yield from cells
    else:
        yield from _sweep(block, cells, buffer_bytes=buffer_bytes, checked=checked)


def _cells(block: Block, limit: int) -> list[Piece]:
    """The windows of the scatters in order, each with the bytes that it lies in, at most `limit`; they may overlap."""
    cells = []
    for scatter in block.scatters:
        whole, itemsize = scatter.window, scatter.itemsize
        for tile in tiles(whole.shape, whole.stride, whole.offset, limit // itemsize):
            window = Window(tile.start, tile.shape, whole.stride, 0, whole.dtype, whole.byteorder, whole.bits)
            start, end = tile.offset * itemsize, (tile.offset + tile.extent) * itemsize
            cells.append(Piece(block, start, end, windows=((scatter, window),), counted=False, again=True))
    return sorted(cells, key=lambda piece: piece.start)


def _sweep(block: Block, cells: Sequence[Piece], *, buffer_bytes: int, checked: bool) -> Iterator[Piece]:
    """Pieces from the first byte of a storage to its last: `cells`, and what lies between them."""
    front = _Front(block.runs)
    edges = sorted({edge for run in block.runs for edge in (run.start, run.end)})
    limit = min(STAGED, buffer_bytes)
    position = 0
    for cell in (*cells, None):
        stop = block.span.nbytes if cell is None else cell.start
        segments = _segments(front, edges, position, stop)
        yield from _plain(block, segments, limit=limit, checked=checked)
        if cell is not None:
            yield replace(cell, runs=front.over(cell.start, cell.end), counted=checked, again=False)
            position = cell.end


def _segments(front: _Front, edges: Sequence[int], start: int, stop: int) -> Iterator[_Segment]:
    """`start` to `stop`, cut wherever a run begins or ends."""
    inner = edges[bisect_right(edges, start) : bisect_left(edges, stop)]
    for a, b in pairwise((start, *inner, stop)):
        if a < b:
            yield _Segment(a, b, front.over(a, b))


def _plain(block: Block, segments: Iterable[_Segment], *, limit: int, checked: bool) -> Iterator[Piece]:
    """Long segments that are wanted in host memory go there; others share the buffer."""
    near: list[_Segment] = []
    for segment in segments:
        into = next((run for run in segment.runs if run.memory() is not None), None)
        if into is not None and segment.end - segment.start >= min(SMALL, limit):
            yield from _shared(block, near, checked=checked)
            others = tuple(run for run in segment.runs if run is not into)
            for a, b in split(segment.start, segment.end, PIECE):
                yield Piece(block, a, b, into, others, counted=checked)
        elif segment.runs or checked:
            for a, b in split(segment.start, segment.end, limit):
                if near and (a > near[-1].end or b - near[0].start > limit):
                    yield from _shared(block, near, checked=checked)
                near.append(_Segment(a, b, segment.runs))
    yield from _shared(block, near, checked=checked)


def _shared(block: Block, near: list[_Segment], *, checked: bool) -> Iterator[Piece]:
    if near:
        runs = tuple(dict.fromkeys(run for segment in near for run in segment.runs))
        yield Piece(block, near[0].start, near[-1].end, None, runs, counted=checked)
        near.clear()


@dataclass(frozen=True, slots=True)
class _Segment:
    start: int
    end: int
    runs: tuple[Run, ...]


class _Front:
    """The runs over a range of bytes, asked for ranges that move forward: each run is looked at few times."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._ahead = sorted(runs, key=lambda run: run.start, reverse=True)
        self._active: list[Run] = []

    def over(self, start: int, end: int) -> tuple[Run, ...]:
        while self._ahead and self._ahead[-1].start < end:
            self._active.append(self._ahead.pop())
        self._active = [run for run in self._active if run.end > start]
        return tuple(self._active)
