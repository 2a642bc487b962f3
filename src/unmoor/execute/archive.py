"""Writes a torch archive: a ZIP file of stored records, whose bytes are summed while they are written.

Decides nothing about what is saved. All offsets are known before the first byte, so threads write where they like.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from unmoor.urls import is_url
from unmoor.values.pausing import collector_paused

from . import crew
from .checksums import combine, crc32
from .fetching import chunks, copy, gather
from .sinks import Blob, Buffers, Ring
from .writeback import begin_writeback
from .writing_all import write_all
from .zipping import ALIGNMENT, ZIP64_FROM, Member, descriptor, directory, local_header, place

__all__ = [
    "HAS_PWRITE",
    "ArchiveFile",
    "Record",
    "Written",
    "archive_bytes",
    "archive_file",
    "torch_records",
    "torch_trailer",
    "write_archive",
]

HAS_PWRITE: Final = hasattr(os, "pwrite")

#: Bytes of one job: one large record is shared among threads.
PIECE: Final = 16 << 20
#: Bytes of one write: summed, then written while they are in the cache.
CHUNK: Final = 1 << 20
#: Records below this are put together with their neighbours and written by one call.
SMALL: Final = 128 << 10
#: Records that come to less than this each are written by one thread: there Python's own work takes the time.
BUSY: Final = 8 << 10


class Record(NamedTuple):
    """One record: its name below the archive's top folder, its length, and where its bytes come from."""

    name: str
    nbytes: int
    source: bytes | Blob


@dataclass(frozen=True, slots=True)
class Written:
    """What was written: `records` are name -> (offset of the data, bytes, CRC-32), `nbytes` the whole file."""

    path: str
    nbytes: int
    seconds: float
    records: Mapping[str, tuple[int, int, int]]


def torch_records(pickle: bytes, storages: Sequence[tuple[str, int, Blob]]) -> list[Record]:
    """The records of a checkpoint in the order in which torch.save writes them, up to the last storage.

    `storages` are (key, bytes, data): the keys are those of the pickle's persistent ids.
    """
    head = [("data.pkl", pickle), (".format_version", b"1"), (".storage_alignment", str(ALIGNMENT).encode())]
    head.append(("byteorder", sys.byteorder.encode()))
    return [
        *(Record(name, len(data), data) for name, data in head),
        *(Record(f"data/{key}", nbytes, blob) for key, nbytes, blob in storages),
    ]


def torch_trailer(crcs: Mapping[str, tuple[int, int, int]]) -> list[Record]:
    """The records that torch.save writes behind the storages. The id is made of the checksums: same state, same id."""
    names, sums = "\n".join(crcs), ",".join(f"{nbytes}:{crc}" for _, nbytes, crc in crcs.values())
    identity = f"{crc32(names.encode()):020d}{crc32(sums.encode()):020d}".encode()
    return [Record("version", 2, b"3\n"), Record(".data/serialization_id", len(identity), identity)]


def archive_bytes(records: Sequence[Record], *, name: str) -> int:
    """About how many bytes `write_archive` will need: exact but for what `finish` adds."""
    members = list(place(((f"{name}/{r.name}", r.nbytes) for r in records), 0, zip64_from=ZIP64_FROM))
    end = members[-1].end if members else 0
    return end + len(directory(members, [0] * len(members), end, zip64_from=ZIP64_FROM))


def write_archive(
    path: str | os.PathLike[str],
    records: Sequence[Record],
    *,
    name: str,
    finish: Callable[[Mapping[str, tuple[int, int, int]]], Sequence[Record]],
    threads: int,
    buffer_bytes: int,
    progress: Callable[[int], None] | None,
    buffers: Buffers | None = None,
    zip64_from: int = ZIP64_FROM,
    portable: bool = not HAS_PWRITE,
) -> Written:
    """Write `records` to `path` as a ZIP file that torch.load opens, all below the folder `name`.

    `finish` gets name -> (offset, bytes, CRC-32) of all of them and returns the last records (`torch_trailer`, a
    manifest). `buffer_bytes` bounds all memory besides the records' own. `progress` gets the bytes of record data done
    since its last call, one call at a time from any thread. `buffers` are what the records' devices copy best into. The
    data must not change meanwhile. An existing file is overwritten in place: `commit.publish` makes a save atomic. The
    hidden name that it gives for a URL is written to in order.

    Raises OSError as the system gives it; what is at `path` is then of no use.
    """
    begin = time.perf_counter()
    text = os.fspath(path)
    how: dict[str, Any] = {"buffer_bytes": buffer_bytes, "progress": progress, "buffers": buffers}
    if is_url(text):
        from .remote_archive import send_archive

        sent, nbytes = send_archive(text, records, name=name, finish=finish, zip64_from=zip64_from, **how)
        return Written(text, nbytes, time.perf_counter() - begin, sent)
    with archive_file(text, portable=portable) as file:
        how["threads"] = threads
        written = file.append(records, name=name, finish=finish, zip64_from=zip64_from, **how)
    return Written(text, file.end, time.perf_counter() - begin, written)


@contextmanager
def archive_file(path: str, *, portable: bool = not HAS_PWRITE) -> Iterator[ArchiveFile]:
    """A file at `path` that takes archives one behind the other; an existing one is overwritten in place.

    Raises OSError as the system gives it; what is at `path` is then of no use.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0), 0o666)
    try:
        file = ArchiveFile((_SeekWriter if portable else _PositionWriter)(handle))
        yield file
        os.ftruncate(handle, file.end)
    finally:
        os.close(handle)


class ArchiveFile:
    """A file of archives and other bytes, one behind the other. `end` is its length so far."""

    def __init__(self, out: _Writer) -> None:
        self._out = out
        self.end = 0

    def append(
        self,
        records: Sequence[Record],
        *,
        name: str,
        finish: Callable[[Mapping[str, tuple[int, int, int]]], Sequence[Record]],
        threads: int,
        buffer_bytes: int,
        progress: Callable[[int], None] | None,
        buffers: Buffers | None = None,
        zip64_from: int = ZIP64_FROM,
    ) -> dict[str, tuple[int, int, int]]:
        """Append an archive as `write_archive` makes it: name -> (offset in it, bytes, CRC-32) of its records."""
        self._out.base = self.end
        if sum(record.nbytes for record in records) <= SMALL and zip64_from == ZIP64_FROM:
            data, written = _assembled(records, name, finish)
            self.append_bytes(memoryview(data))
            if progress is not None:
                progress(sum(nbytes for _, nbytes, _ in written.values()))
            return written
        writing = _Writing(self._out, name, zip64_from, crew.Meter(progress))
        writing.write(records, threads=threads, buffer_bytes=buffer_bytes, buffers=buffers)
        writing.write(finish(writing.receipts), threads=1, buffer_bytes=buffer_bytes)
        self.end += writing.close()
        return writing.receipts

    def append_bytes(self, data: bytes | memoryview) -> None:
        """Append bytes as they are."""
        self._out.base = self.end
        write_all(self._out.some, 0, data)
        self.end += len(data)

    def sync(self) -> None:
        """Bring what was written to the disk."""
        os.fsync(self._out.handle)


def _assembled(
    records: Sequence[Record], name: str, finish: Callable[[Mapping[str, tuple[int, int, int]]], Sequence[Record]]
) -> tuple[bytearray, dict[str, tuple[int, int, int]]]:
    """A small archive in one piece of memory, and name -> (offset, bytes, CRC-32) of its records."""
    made = bytearray()
    members: list[Member] = []
    receipts: dict[str, tuple[int, int, int]] = {}
    for trailing in (False, True):
        found = finish(dict(receipts)) if trailing else records
        sizes = ((f"{name}/{record.name}", record.nbytes) for record in found)
        for record, member in zip(found, place(sizes, len(made), zip64_from=ZIP64_FROM), strict=True):
            made.extend(bytes(member.end - len(made)))
            data = memoryview(made)[member.data : member.data_end]
            copy(record.source, 0, data)
            crc = crc32(data)
            data.release()
            made[member.header : member.data] = local_header(member, crc)
            made[member.data_end : member.end] = descriptor(member, crc)
            members.append(member)
            receipts[record.name] = (member.data, member.nbytes, crc)
    crcs = [crc for _, _, crc in receipts.values()]
    made += directory(members, crcs, len(made), zip64_from=ZIP64_FROM)
    return made, receipts


class _Writer(Protocol):
    """Writes at offsets from `base` on."""

    handle: int
    base: int

    def some(self, offset: int, data: memoryview) -> int:
        """Write a beginning of `data` at `offset`; the number of bytes written."""

    def begin_writeback(self, offset: int, nbytes: int) -> None:
        """Have the system begin to bring these bytes to the disk."""


class _PositionWriter:
    """Writes with pwrite: no cursor, no lock."""

    def __init__(self, handle: int) -> None:
        self.handle, self.base = handle, 0

    def some(self, offset: int, data: memoryview) -> int:
        return os.pwrite(self.handle, data, self.base + offset)

    def begin_writeback(self, offset: int, nbytes: int) -> None:
        begin_writeback(self.handle, self.base + offset, nbytes)


class _SeekWriter:
    """Writes by seeking under a lock: the portable way."""

    def __init__(self, handle: int) -> None:
        self.handle, self.base, self._lock = handle, 0, threading.Lock()

    def some(self, offset: int, data: memoryview) -> int:
        with self._lock:
            os.lseek(self.handle, self.base + offset, os.SEEK_SET)
            return os.write(self.handle, data)

    def begin_writeback(self, offset: int, nbytes: int) -> None:
        """Nothing: the portable way has none."""


@dataclass(frozen=True, slots=True)
class _Bundle:
    """Small records, `first` to `last`, written by one call."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class _Part:
    """Bytes `start` to `end` of the data of one record."""

    index: int
    start: int
    end: int


_Job = _Bundle | _Part


class _Writing:
    """An archive on its way: its members so far, and the sums of the parts of each.

    `receipts` are name -> (offset, bytes, CRC-32) of the records that are written.
    """

    def __init__(self, out: _Writer, name: str, zip64_from: int, meter: crew.Meter) -> None:
        self.out, self.name, self.zip64_from, self.meter = out, name, zip64_from, meter
        self.records: list[Record] = []
        self.members: list[Member] = []
        self.crcs: list[int] = []
        self.receipts: dict[str, tuple[int, int, int]] = {}
        self._sums: dict[int, dict[int, tuple[int, int]]] = {}
        self._missing: dict[int, int] = {}
        self._lock = threading.Lock()

    @property
    def end(self) -> int:
        return self.members[-1].end if self.members else 0

    def write(
        self, records: Sequence[Record], *, threads: int, buffer_bytes: int, buffers: Buffers | None = None
    ) -> None:
        """Append `records` behind those that are there."""
        first, start = len(self.members), self.end
        sizes = [(f"{self.name}/{name}", nbytes) for name, nbytes, _ in records]
        with collector_paused():
            self.members += place(sizes, self.end, zip64_from=self.zip64_from)
        self.records += records
        self.crcs += [0] * len(records)
        threads = threads if self.end - start > len(records) * BUSY else 1
        if buffers is not None:
            buffer_bytes = min(buffer_bytes, threads * buffers.slots * CHUNK)
        jobs = list(self._jobs(first, crew.share(buffer_bytes, threads, buffers)))
        crew.run_with_ring(jobs, self._work, threads=threads, buffer_bytes=buffer_bytes, buffers=buffers)
        rows = zip(records, self.members[first:], self.crcs[first:], strict=True)
        self.receipts.update((record.name, (member.data, member.nbytes, crc)) for record, member, crc in rows)

    def close(self) -> int:
        """Write the directory; the length of the archive."""
        tail = directory(self.members, self.crcs, self.end, zip64_from=self.zip64_from)
        write_all(self.out.some, self.end, tail)
        return self.end + len(tail)

    def _jobs(self, first: int, buffer_bytes: int) -> Iterator[_Job]:
        limit = min(CHUNK, buffer_bytes) // 2  # a bundle is in memory twice: in pieces, and as one
        opened, origin = first, self.end
        for index, member in enumerate(self.members[first:], first):
            nbytes, header, end = member.nbytes, member.header, member.end
            alone = nbytes >= SMALL or end - header > limit
            if opened == index:
                origin = header
            elif alone or end - origin > limit:
                yield _Bundle(opened, index)
                opened, origin = index, header
            if alone:
                opened = index + 1
                yield from self._parts(index)
        if opened < len(self.members):
            yield _Bundle(opened, len(self.members))

    def _parts(self, index: int) -> Iterator[_Part]:
        nbytes = self.members[index].nbytes
        starts = range(0, max(1, nbytes), PIECE)
        self._missing[index], self._sums[index] = len(starts), {}
        return (_Part(index, start, min(start + PIECE, nbytes)) for start in starts)

    def _work(self, job: _Job, ring: Ring) -> None:
        if isinstance(job, _Bundle):
            self._write_bundle(job, ring)
        else:
            self._write_part(job, ring)

    def _write_bundle(self, bundle: _Bundle, ring: Ring) -> None:
        members = self.members[bundle.first : bundle.last]
        origin = members[0].header
        records = zip(self.records[bundle.first : bundle.last], members, strict=True)
        data = gather(((record.source, member.data - origin, member.nbytes) for record, member in records), ring)
        pieces: list[bytes | memoryview] = []
        for index, member in enumerate(members):
            chunk = data[index]
            crc = self.crcs[bundle.first + index] = crc32(chunk)
            pieces += local_header(member, crc), chunk, descriptor(member, crc)
        write_all(self.out.some, origin, b"".join(pieces))
        self.out.begin_writeback(origin, members[-1].end - origin)
        self.meter.advance(sum(map(len, data)))

    def _write_part(self, part: _Part, ring: Ring) -> None:
        member, source = self.members[part.index], self.records[part.index].source
        crc, position = 0, part.start
        for chunk in chunks(source, part.start, part.end, CHUNK, ring):
            crc = crc32(chunk, crc)
            write_all(self.out.some, member.data + position, chunk)
            position += len(chunk)
        self._count(part, crc)
        self.out.begin_writeback(member.data + part.start, part.end - part.start)
        self.meter.advance(part.end - part.start)

    def _count(self, part: _Part, crc: int) -> None:
        with self._lock:
            sums = self._sums[part.index]
            sums[part.start] = (crc, part.end - part.start)
            self._missing[part.index] -= 1
            if self._missing[part.index]:
                return
        total = 0
        for _, (piece, nbytes) in sorted(sums.items()):
            total = combine(total, piece, nbytes)
        self.crcs[part.index] = total
        member = self.members[part.index]
        write_all(self.out.some, member.header, local_header(member, total))
        write_all(self.out.some, member.data_end, descriptor(member, total))
