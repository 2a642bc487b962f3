"""Carries out a schedule of reads: bytes into memory, sums of them held against the saved ones, elements to sinks.

Decides nothing. Calls come from several threads; what they share is behind one lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from unmoor.errors import RestoreError
from unmoor.filing import Reader, grain_of, read_into

from .checksums import combine, crc32
from .sinks import Window
from .takers import Batch, Block, Gather, Job, Piece, Run, Scatter
from .together import Part

__all__ = ["OpenSpan", "Reading"]

OpenSpan = Callable[[str], Reader]

#: Bytes summed at a time: read by one call and summed while they are in the cache.
CHUNK: Final = 1 << 20


@dataclass(slots=True)
class _Tally:
    """The sums of the pieces of one storage that have been read, by their first byte."""

    missing: int
    sums: dict[int, tuple[int, int]]


class Reading:
    """`read(job, buffer)` for the jobs of one schedule.

    `bad(block, crc)` is called for a storage whose bytes have another checksum than `crc32` of its `Storage`; before
    anything of it is delivered where it is read whole. `advance` gets the bytes of every job done. The ids of the slots
    that were written to are added to `touched`; `parts` are the sums of what was read of storages in part.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        *,
        open_span: OpenSpan,
        checked: bool,
        bad: Callable[[Block, int], None],
        advance: Callable[[int], None],
        touched: set[str],
    ) -> None:
        self.touched = touched
        self._open_span, self._checked, self._bad, self._advance = open_span, checked, bad, advance
        self.parts: list[Part] = []
        self._lock = threading.Lock()
        self._tallies: dict[int, _Tally] = {}
        for job in jobs:
            if isinstance(job, Piece) and job.counted:
                self._tallies.setdefault(id(job.block), _Tally(0, {})).missing += 1

    def read(self, job: Job, buffer: memoryview) -> None:
        """Carry out one job with `buffer` as the only memory besides the sinks'."""
        if isinstance(job, Batch):
            self._read_batch(job, buffer)
        elif isinstance(job, Gather):
            self._read_gather(job, buffer)
        else:
            self._read_piece(job, buffer)

    def _read_batch(self, batch: Batch, buffer: memoryview) -> None:
        data = buffer[: batch.nbytes]
        reader = self._open_span(batch.blocks[0].span.file)
        if len(batch.blocks) == 1:
            block = batch.blocks[0]
            self._hold(block, self._fill(reader, batch.offset, data, checked=self._wants(block)))
            self._deliver_whole(block, data)
        else:
            read_into(reader, batch.offset, data)
            for block in batch.blocks:
                span = block.span
                part = data[span.offset - batch.offset : span.offset - batch.offset + span.nbytes]
                saved = block.storage.crc32 if self._checked else None
                crc = None if saved is None else crc32(part)
                if crc is not None and crc != saved:
                    self._bad(block, crc)
                self._deliver_whole(block, part)
        self._advance(sum(block.span.nbytes for block in batch.blocks))

    def _read_piece(self, piece: Piece, buffer: memoryview) -> None:
        block, into = piece.block, piece.into
        nbytes = piece.end - piece.start
        reader = self._open_span(block.span.file)
        memory = into.memory() if into is not None else None
        apart = block.in_part and self._wants(block)
        at, summed = block.span.offset + piece.start, piece.counted or apart
        if into is None or memory is None:
            data = buffer[:nbytes]
            crc = self._fill(reader, at, data, checked=summed)
        else:
            data = memory[piece.start - into.start : piece.end - into.start]
            into.sink.expect(piece.start - into.start, piece.end - into.start)
            crc = self._fill(reader, at, data, checked=summed, slot=into.slot)
        if apart:
            self.parts.append(Part(block.storage, piece.start, piece.end, crc))
        for run in piece.runs:
            self._take(run, piece.start, data)
        for scatter, window in piece.windows:
            self._accept(scatter, window, data)
        if piece.counted:
            self._count(piece, crc)
        if not piece.again:
            self._advance(nbytes)

    def _read_gather(self, gather: Gather, buffer: memoryview) -> None:
        data, size = buffer[: gather.nbytes], gather.size
        reader, origin = self._open_span(gather.block.span.file), gather.block.span.offset
        for number, start in enumerate(gather.starts()):
            read_into(reader, origin + start, data[number * size : (number + 1) * size])
        self._accept(gather.scatter, gather.window, data)
        self._advance(gather.nbytes)

    def _wants(self, block: Block) -> bool:
        return self._checked and block.storage.crc32 is not None

    def _fill(self, reader: Reader, offset: int, target: memoryview, *, checked: bool, slot: str = "") -> int:
        """Read into `target`, the memory of `slot` where one is given: it counts as written to once a byte comes."""
        crc, size = 0, max(CHUNK, grain_of(reader)) if checked else max(1, len(target))
        for start in range(0, len(target), size):
            chunk, got = target[start : start + size], 0
            if slot and not start:
                got = reader.some_into(offset, chunk)
                if got > 0:
                    self.touched.add(slot)
            if got < len(chunk):
                read_into(reader, offset + start + got, chunk[got:])
            if checked:
                crc = crc32(chunk, crc)
        return crc

    def _hold(self, block: Block, crc: int) -> None:
        if self._wants(block) and crc != block.storage.crc32:
            self._bad(block, crc)

    def _count(self, piece: Piece, crc: int) -> None:
        with self._lock:
            tally = self._tallies[id(piece.block)]
            tally.sums[piece.start] = (crc, piece.end - piece.start)
            tally.missing -= 1
            complete = tally.missing == 0
        if complete:
            total = 0
            for _, (part, nbytes) in sorted(tally.sums.items()):
                total = combine(total, part, nbytes)
            self._hold(piece.block, total)

    def _deliver_whole(self, block: Block, data: memoryview) -> None:
        for taker in block.takers:
            self.touched.add(taker.slot)
            try:
                if isinstance(taker, Run):
                    taker.take(0, data)
                else:
                    taker.sink.accept(taker.window, data)
            except Exception as error:
                raise _failure(taker.slot, error) from error

    def _take(self, run: Run, start: int, data: memoryview) -> None:
        self.touched.add(run.slot)
        try:
            run.take(start, data)
        except Exception as error:
            raise _failure(run.slot, error) from error

    def _accept(self, scatter: Scatter, window: Window, data: memoryview) -> None:
        self.touched.add(scatter.slot)
        try:
            scatter.sink.accept(window, data)
        except Exception as error:
            raise _failure(scatter.slot, error) from error


def _failure(slot: str, error: Exception) -> RestoreError:
    return RestoreError(f"{slot} could not be filled: {type(error).__name__}: {error}")
