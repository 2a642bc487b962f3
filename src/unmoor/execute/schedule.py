"""Which bytes to read, in which order, and where they go: decided before the first is read.

Pure: makes jobs out of copies and layouts, opens nothing. The unit is the storage: its checksum covers it whole.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from unmoor.values.dtypes import dtype_bytes
from unmoor.values.nodes import Span, Storage, TensorNode, deflated
from unmoor.values.plan import Copy

from .sinks import Sink, Window
from .tiling import is_dense, same_layout, tiles

__all__ = ["Batch", "Block", "Job", "Piece", "Run", "Scatter", "blocks_of", "place_of", "schedule", "threads_for"]

#: Bytes of one direct read: enough to forget the cost of the call, few enough to share one storage among threads.
PIECE: Final = 16 << 20
#: Storages and segments below this are read together with their neighbours: a copy costs less than a call.
SMALL: Final = 128 << 10
#: Bytes of one read through the buffer, of a storage that is larger than the buffer.
STAGED: Final = 4 << 20
#: Bytes of one read of neighbours: they are summed and copied while still in the cache.
TOGETHER: Final = 1 << 20
#: Neighbours may stand this far apart (the headers between them are read and dropped).
GAP: Final = 4 << 10


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Bytes `start` to `end` of a storage, laid out in the file as in the slot. `place` is what to call the tensor."""

    place: str
    slot: str
    sink: Sink
    start: int
    end: int

    def memory(self) -> memoryview | None:
        """The slot's memory where the host can see it. Asked for when needed: a view for each tensor adds up."""
        memory = self.sink.direct(self.end - self.start)
        if memory is not None and memory.nbytes != self.end - self.start:
            raise ValueError(f"the sink gave {memory.nbytes} bytes of memory for {self.end - self.start}")
        return memory

    def take(self, start: int, data: memoryview) -> None:
        """Store what is this run's of `data`, which begins at byte `start` of the storage."""
        first, last = max(start, self.start), min(start + len(data), self.end)
        part, memory = data[first - start : last - start], self.memory()
        if memory is None:
            self.sink.put(first - self.start, part)
        else:
            memory[first - self.start : last - self.start] = part


@dataclass(frozen=True, slots=True, eq=False)
class Scatter:
    """Elements of a storage that the slot holds in another order, dtype or byte order."""

    place: str
    slot: str
    sink: Sink
    window: Window
    itemsize: int


@dataclass(slots=True, eq=False)
class Block:
    """One storage and all that wants its bytes. `names` are the tensors on it where nothing wants them."""

    storage: Storage
    span: Span
    takers: list[Run | Scatter] = field(default_factory=list)
    names: Sequence[str] = ()

    @property
    def places(self) -> tuple[str, ...]:
        """The tensors on this storage, for people."""
        return (*self.names, *(taker.place for taker in self.takers))

    @property
    def runs(self) -> list[Run]:
        """What is laid out in the file as in its slot."""
        return [taker for taker in self.takers if isinstance(taker, Run)]

    @property
    def scatters(self) -> list[Scatter]:
        """What is not."""
        return [taker for taker in self.takers if isinstance(taker, Scatter)]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Whole storages, neighbours in one file, that one read takes into the buffer."""

    offset: int
    nbytes: int
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Bytes `start` to `end` of one storage.

    They are read into the memory of `into` where there is one, else into the buffer; then `runs` get their part of
    them and the scatters their windows. `counted` pieces make up the storage for its checksum, each byte once. A piece
    that reads bytes `again` does so because windows interleave.
    """

    block: Block
    start: int
    end: int
    into: Run | None = None
    runs: tuple[Run, ...] = ()
    windows: tuple[tuple[Scatter, Window], ...] = ()
    counted: bool = True
    again: bool = False


Job = Batch | Piece


def blocks_of(copies: Iterable[Copy], sinks: Mapping[str, Sink]) -> list[Block]:
    """Copies grouped by the storage they read, in file order. Copies without elements are left out."""
    blocks: dict[int, Block] = {}
    for copy in copies:
        for node, sink, dense in _parts(copy, sinks):
            storage = node.storage
            if storage is None or storage.span is None or 0 in node.shape:
                continue
            block = blocks.get(id(storage))
            if block is None:
                block = blocks[id(storage)] = Block(storage, storage.span)
            block.takers.append(_taker(copy, node, storage.byteorder, sink, dense=dense))
    return sorted(blocks.values(), key=lambda block: (block.span.file, block.span.offset))


def threads_for(blocks: Iterable[Block], threads: int) -> int:
    """How many threads to read with: one where data is deflated, which can only be read from its beginning on."""
    return 1 if any(deflated(block.span.file) for block in blocks) else threads


def place_of(copy: Copy) -> str:
    """What to call the stored tensor of a copy: where it stands in the file."""
    return copy.path or copy.name or copy.slot.id


def _parts(copy: Copy, sinks: Mapping[str, Sink]) -> Iterator[tuple[TensorNode, Sink, bool]]:
    """The stored tensors of a copy, the memory of each, and whether that is dense: one, or one for each chunk."""
    node, slot, sink = copy.node, copy.slot, sinks[copy.slot.id]
    chunks = node.storage.chunks if node.storage is not None else ()
    if not chunks:
        yield node, sink, slot.dense
    for chunk in chunks:
        shape = chunk.node.shape
        yield chunk.node, sink.part(chunk.start, shape), is_dense(shape, slot.stride)


def _taker(copy: Copy, node: TensorNode, byteorder: str, sink: Sink, *, dense: bool) -> Run | Scatter:
    place, slot = place_of(copy), copy.slot
    itemsize = dtype_bytes(node.dtype)
    as_stored = node.dtype == slot.dtype and not node.bits and (byteorder == sys.byteorder or itemsize == 1)
    if dense and as_stored and same_layout(node.shape, node.stride, slot.stride):
        start = node.offset * itemsize
        return Run(place, slot.id, sink, start, start + node.numel * itemsize)
    zeros = (0,) * len(node.shape)
    window = Window(zeros, node.shape, node.stride, node.offset, node.dtype, byteorder, node.bits)
    return Scatter(place, slot.id, sink, window, itemsize)


def schedule(blocks: Sequence[Block], *, buffer_bytes: int, checked: bool) -> list[Job]:
    """The reads that fill everything that `blocks` want, in their order, with `buffer_bytes` of buffer for each.

    With `checked`, every byte of a storage that has a checksum is in exactly one batch or counted piece.
    """
    jobs: list[Job] = []
    near: list[Block] = []
    for block in blocks:
        nbytes = block.span.nbytes
        if nbytes > buffer_bytes or not _read_whole(block):
            _flush(near, jobs)
            jobs += _pieces(block, buffer_bytes=buffer_bytes, checked=checked and block.storage.crc32 is not None)
            continue
        if near and not _together(near, block, min(TOGETHER, buffer_bytes)):
            _flush(near, jobs)
        near.append(block)
    _flush(near, jobs)
    return jobs


def _read_whole(block: Block) -> bool:
    if block.span.nbytes < SMALL:
        return True
    return any(isinstance(taker, Scatter) or taker.memory() is None for taker in block.takers)


def _together(near: list[Block], block: Block, limit: int) -> bool:
    first, last = near[0].span, near[-1].span
    apart = block.span.offset - last.end
    return block.span.file == first.file and 0 <= apart <= GAP and block.span.end - first.offset <= limit


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
            for a, b in _split(segment.start, segment.end, PIECE):
                yield Piece(block, a, b, into, others, counted=checked)
        elif segment.runs or checked:
            for a, b in _split(segment.start, segment.end, limit):
                if near and (a > near[-1].end or b - near[0].start > limit):
                    yield from _shared(block, near, checked=checked)
                near.append(_Segment(a, b, segment.runs))
    yield from _shared(block, near, checked=checked)


def _shared(block: Block, near: list[_Segment], *, checked: bool) -> Iterator[Piece]:
    if near:
        runs = tuple(dict.fromkeys(run for segment in near for run in segment.runs))
        yield Piece(block, near[0].start, near[-1].end, None, runs, counted=checked)
        near.clear()


def _split(start: int, end: int, limit: int) -> Iterator[tuple[int, int]]:
    return ((a, min(a + limit, end)) for a in range(start, end, limit))


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
