"""Sums up runs of bytes and tells all that are not what was saved; changes nothing, stops at nothing.

What cannot be read is a fault of its own, and the rest is read all the same. Knows nothing of tensors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from unmoor.errors import FileError, UnmoorError
from unmoor.filing import grain_of, read_into
from unmoor.values.nodes import deflated
from unmoor.values.verification import Record

from . import crew
from .checksums import combine, crc32
from .reading import OpenSpan
from .schedule import lanes

__all__ = ["Wrong", "audit"]

#: Bytes that one thread takes at a time: few threads then share one large record.
PIECE: Final = 32 << 20
#: Bytes that are read by one call and summed while they are in the cache.
CHUNK: Final = 512 << 10
#: Records below this that lie close together are read by one call.
SMALL: Final = 64 << 10


class Wrong(NamedTuple):
    """A record that is not what was saved: the sum of its bytes, or why there is none."""

    record: Record
    read: int | None
    why: str = ""


@dataclass(slots=True)
class _Tally:
    """The sums of the pieces of one record, by their first byte."""

    record: Record
    missing: int
    sums: dict[int, tuple[int, int]] = field(default_factory=dict)
    why: str = ""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes `start` to `end` of a record."""

    tally: _Tally
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Near:
    """Small records that lie one behind the other: one read takes them all."""

    tallies: tuple[_Tally, ...]

    @property
    def start(self) -> int:
        return self.tallies[0].record.span.offset

    @property
    def end(self) -> int:
        return self.tallies[-1].record.span.end


def audit(
    records: Sequence[Record],
    *,
    open_span: OpenSpan,
    buffer_bytes: int,
    threads: int,
    progress: Callable[[int], None] | None,
) -> list[Wrong]:
    """The records whose bytes have another sum than theirs, or cannot be read, in the order of the files.

    Those without a checksum are not read. `progress` gets the bytes done since its last call.
    """
    wanted = [record for record in records if record.crc32 is not None]
    wanted.sort(key=lambda record: (record.span.file, record.span.offset))
    wrong: list[Wrong] = []
    work = _Work(open_span, crew.Meter(progress), wrong)
    packed = any(deflated(record.span.file) for record in wanted)
    grain = 0 if packed else _grain(wanted, open_span)
    threads, buffer_bytes = (1, buffer_bytes) if packed else lanes((), threads, buffer_bytes, grain)
    chunk = min(max(CHUNK, grain), crew.share(buffer_bytes, threads))
    jobs = _jobs(wanted, chunk)
    crew.run(jobs, work.do, threads=threads, buffer_bytes=chunk * max(1, min(threads, len(jobs))))
    return sorted(wrong, key=lambda one: (one.record.span.file, one.record.span.offset))


def _grain(records: Sequence[Record], open_span: OpenSpan) -> int:
    """How many bytes a read should have; what cannot be opened is told when it is read."""
    for file in {record.span.file for record in records}:
        with suppress(FileError, OSError):
            return grain_of(open_span(file))
    return 0


def _jobs(records: Sequence[Record], chunk: int) -> list[_Piece | _Near]:
    jobs: list[_Piece | _Near] = []
    near: list[_Tally] = []

    def flush() -> None:
        if near:
            jobs.append(_Near(tuple(near)))
            near.clear()

    for record in records:
        span = record.span
        if span.nbytes <= min(SMALL, chunk):
            if near and (near[0].record.span.file != span.file or span.end - near[0].record.span.offset > chunk):
                flush()
            near.append(_Tally(record, 1))
            continue
        flush()
        starts = range(0, span.nbytes, PIECE)
        tally = _Tally(record, len(starts))
        jobs += [_Piece(tally, start, min(start + PIECE, span.nbytes)) for start in starts]
    flush()
    return jobs


class _Work:
    def __init__(self, open_span: OpenSpan, meter: crew.Meter, wrong: list[Wrong]) -> None:
        self._open_span, self._meter, self._wrong = open_span, meter, wrong
        self._lock = threading.Lock()

    def do(self, job: _Piece | _Near, buffer: memoryview) -> None:
        """Read and sum one job; whatever fails is noted."""
        if isinstance(job, _Near):
            self._near(job, buffer)
        else:
            self._piece(job, buffer)

    def _piece(self, piece: _Piece, buffer: memoryview) -> None:
        crc, why, span = 0, "", piece.tally.record.span
        try:
            reader = self._open_span(span.file)
            data, at = buffer, span.offset
            for start in range(piece.start, piece.end, len(buffer)):
                if piece.end - start < len(data):
                    data = buffer[: piece.end - start]
                got = reader.some_into(at + start, data)
                if got != len(data):
                    read_into(reader, at + start + got, data[got:])
                crc = crc32(data, crc)
        except (FileError, OSError) as fault:
            why = _why(fault)
        self._count(piece.tally, piece.start, piece.end - piece.start, crc, why)

    def _near(self, job: _Near, buffer: memoryview) -> None:
        data = buffer[: job.end - job.start]
        try:
            read_into(self._open_span(job.tallies[0].record.span.file), job.start, data)
        except (FileError, OSError):
            for tally in job.tallies:  # one of them is at fault: each on its own tells which
                self._piece(_Piece(tally, 0, tally.record.span.nbytes), buffer)
            return
        for tally in job.tallies:
            span = tally.record.span
            at = span.offset - job.start
            self._count(tally, 0, span.nbytes, crc32(data[at : at + span.nbytes]), "")

    def _count(self, tally: _Tally, start: int, nbytes: int, crc: int, why: str) -> None:
        with self._lock:
            tally.sums[start] = (crc, nbytes)
            tally.why = tally.why or why
            tally.missing -= 1
            complete = tally.missing == 0
        if complete:
            self._judge(tally)
        self._meter.advance(nbytes)

    def _judge(self, tally: _Tally) -> None:
        total = 0
        for _, (part, nbytes) in sorted(tally.sums.items()):
            total = combine(total, part, nbytes)
        if tally.why or total != tally.record.crc32:
            with self._lock:
                self._wrong.append(Wrong(tally.record, None if tally.why else total, tally.why))


def _why(fault: FileError | OSError) -> str:
    return fault.headline if isinstance(fault, UnmoorError) else str(fault)
