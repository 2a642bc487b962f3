"""Puts other records in the place of a zip's, behind its end, so that the file always opens as the old or the new one.

Nothing that is there is written to. In this order: anchors (copies of the old end record, at most `STRIDE` bytes apart,
the last one where the new archive will end), the new records with their directory before that anchor, and last the cut
that takes the anchor off, which makes the new end the last. Each step is on the disk before the next begins. Decides
nothing about what the records hold.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, Protocol

from unmoor.errors import CorruptFile, MachineError
from unmoor.values.superseded import SECTOR, Ends, split_ends

from .writing_all import append_all
from .zipping import ZIP64_FROM, Member, central, descriptor, end_records, local_header, place

__all__ = ["STRIDE", "Addition", "Tail", "addition", "append", "locked"]

STRIDE: Final = 60 << 10
"""Bytes between two anchors: readers look for an end record in the last 65,557 bytes of a file, and no further."""

_ENTRY: Final = struct.Struct("<I24x3H12x")
_ENTRY_MARK: Final = 0x02014B50
_FLAGS: Final = struct.Struct("<8xH")
_UTF8: Final = 0x0800


class Tail(Protocol):
    """A file that is written behind its end."""

    def write(self, offset: int, data: bytes) -> None:
        """Write all of `data` at `offset`."""

    def truncate(self, size: int) -> None:
        """Cut the file off at `size` bytes."""

    def sync(self) -> None:
        """Bring everything to the disk."""


@dataclass(frozen=True, slots=True)
class Addition:
    """What to write behind an archive of `size` bytes: `data` are the new records, their directory and end."""

    size: int
    ends: Ends
    data: bytes

    @property
    def end(self) -> int:
        """The length of the file with the addition."""
        return self.size + len(self.data)

    def anchors(self) -> Iterator[int]:
        """Where anchors go, so that one is always in sight; each begins a sector."""
        yield from range(self.size + -self.size % SECTOR, self.end - SECTOR, STRIDE)
        yield self.end


def addition(
    size: int, raw: bytes, ends: bytes, records: Mapping[bytes, bytes], *, zip64_from: int = ZIP64_FROM
) -> Addition:
    """The bytes that give an archive of `size` bytes other `records` under these names; new names come last.

    `raw` is its directory, `ends` are its bytes from the end records on.
    """
    entries = dict(_entries(raw))
    first = next(iter(entries.values()), None)
    members = place(((name, len(data)) for name, data in records.items()), size, zip64_from=zip64_from)
    made = bytearray()
    for member, (name, data) in zip(members, records.items(), strict=True):
        new = _as_named(member, entries.get(name, first))
        crc = zlib.crc32(data)
        made += local_header(new, crc) + data + descriptor(new, crc)
        entries[name] = central(new, crc)
    directory = b"".join(entries.values())
    start = size + len(made)
    tail = end_records(len(entries), len(directory), start, zip64_from=zip64_from)
    gap = -(start + len(directory) + len(tail)) % SECTOR
    tail = end_records(len(entries), len(directory), start + gap, zip64_from=zip64_from)
    return Addition(size, split_ends(ends), b"".join((made, bytes(gap), directory, tail)))


def _entries(raw: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Name and bytes of every entry of a directory."""
    at = 0
    while at < len(raw):
        if at + _ENTRY.size > len(raw):
            raise CorruptFile(f"a zip directory of {len(raw):,} bytes ends within an entry")
        mark, name, extra, comment = _ENTRY.unpack_from(raw, at)
        stop = at + _ENTRY.size + name + extra + comment
        if mark != _ENTRY_MARK or stop > len(raw):
            raise CorruptFile(f"a zip directory of {len(raw):,} bytes holds at {at:,} what is no entry")
        yield raw[at + _ENTRY.size : at + _ENTRY.size + name], raw[at:stop]
        at = stop


def _as_named(member: Member, old: bytes | None) -> Member:
    """A member whose name is read as that of an old record: the flags tell its encoding."""
    utf8 = old is None or member.name.isascii() or bool(_FLAGS.unpack_from(old)[0] & _UTF8)
    return Member(member.name, member.nbytes, member.header, member.data, member.end, member.long, member.far, utf8)


@contextmanager
def append(tail: Tail, added: Addition) -> Iterator[None]:
    """Write an addition. Within the block it is complete and not yet to be seen; when the block ends it holds.

    Where the block or anything before fails, the file is cut off where it ended. A process that is killed before the
    last step leaves a file that opens as before, with bytes behind its end.
    """
    try:
        _raise_anchors(tail, added)
        tail.write(added.size, added.data)
        tail.sync()
        yield
        tail.truncate(added.end)
        tail.sync()
    except BaseException:
        with suppress(OSError):
            tail.truncate(added.size)
            tail.sync()
        raise


def _raise_anchors(tail: Tail, added: Addition) -> None:
    """Write the anchors: each without its signature first, so that what is cut off is none."""
    whole = added.ends.anchor(added.size)
    at, signature = added.ends.signature()
    blank = whole[:at] + bytes(len(signature)) + whole[at + len(signature) :]
    for offset in added.anchors():
        tail.write(offset, blank)
        tail.write(offset + at, signature)
    tail.sync()


class _FileTail:
    """The tail of an open file."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def write(self, offset: int, data: bytes) -> None:
        os.lseek(self.handle, offset, os.SEEK_SET)
        append_all(self.handle, data)

    def truncate(self, size: int) -> None:
        os.ftruncate(self.handle, size)

    def sync(self) -> None:
        os.fsync(self.handle)


@contextmanager
def locked(path: str, *, ours: bool = False) -> Iterator[tuple[Tail, os.stat_result]]:
    """The tail of the file at `path`, kept from others that relocate, and what the system says of the file.

    `ours` tells that nobody else knows of the file. Raises MachineError where another relocation holds it, OSError as
    the system gives it.
    """
    handle = os.open(path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
    try:
        if not ours:
            _lock(handle, path)
        yield _FileTail(handle), os.fstat(handle)
    finally:
        with suppress(OSError):  # what was written has been synced
            os.close(handle)


def _lock(handle: int, path: str) -> None:
    """Ask for the file; file systems that know no locks, and Windows, give it without."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise MachineError(f"{path} is being relocated by another process", path=path) from None
    except OSError:
        return
