"""Bytes of a file by position, on every platform.

Knows nothing of checkpoints. Reads are thread-safe and leave no cursor behind; where the platform lacks preadv, one
lock guards a seek and a read.
"""

from __future__ import annotations

import os
import stat
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from .errors import CorruptFile, NotACheckpoint, UsageError

__all__ = ["HAS_PREADV", "InflatingReader", "Reader", "SeekReader", "VectorReader", "open_reader", "path_text"]

HAS_PREADV: Final = hasattr(os, "preadv")
_PIECE: Final = 1 << 16


class Reader(Protocol):
    """Positional access to one open file. `size` is its length in bytes when it was opened."""

    path: str
    size: int

    def some_into(self, offset: int, target: memoryview) -> int:
        """Read at most len(target) bytes from `offset`; the number read, 0 at the end of the file."""


class VectorReader:
    """Reads with preadv: no cursor, no lock."""

    def __init__(self, descriptor: int, path: str, size: int) -> None:
        self.descriptor, self.path, self.size = descriptor, path, size

    def some_into(self, offset: int, target: memoryview) -> int:
        """Read at most len(target) bytes from `offset`."""
        return os.preadv(self.descriptor, [target], offset)


class SeekReader:
    """Reads by seeking under a lock: the portable way."""

    def __init__(self, descriptor: int, path: str, size: int) -> None:
        self.descriptor, self.path, self.size = descriptor, path, size
        self._lock = threading.Lock()

    def some_into(self, offset: int, target: memoryview) -> int:
        """Read at most len(target) bytes from `offset`."""
        with self._lock:
            os.lseek(self.descriptor, offset, os.SEEK_SET)
            data = os.read(self.descriptor, len(target))
        target[: len(data)] = data
        return len(data)


class InflatingReader:
    """What `stored` deflated bytes from `offset` of another reader hold: `size` bytes by position.

    Each thread inflates for itself and keeps its place: reading on costs nothing more, reading back begins anew. The
    memory of each is a piece of 64 KiB and what deflate looks back on.
    """

    def __init__(self, reader: Reader, offset: int, stored: int, size: int) -> None:
        self.path, self.size = reader.path, size
        self._reader, self._offset, self._stored = reader, offset, stored
        self._own = threading.local()

    def some_into(self, offset: int, target: memoryview) -> int:
        """Inflate at most len(target) bytes from `offset`."""
        place = getattr(self._own, "place", None)
        if place is None or place.at > offset:
            place = self._own.place = _Inflating(self._reader, self._offset, self._stored)
        while place.at < offset:
            self._some(place, offset - place.at)
        data = self._some(place, len(target))
        target[: len(data)] = data
        return len(data)

    def _some(self, place: _Inflating, most: int) -> bytes:
        data = place.some(min(_PIECE, most, self.size - place.at))
        if data or place.at == self.size:
            return data
        raise CorruptFile(
            f"{self.path}: the {self._stored:,} deflated bytes from byte {self._offset:,} inflate to {place.at:,}, "
            f"{self.size:,} were due",
            remedy="The file was damaged after it was written. Copy or download it again.",
            path=self.path,
        )


class _Inflating:
    """One pass over deflated bytes; `at` counts what has come out of it."""

    def __init__(self, reader: Reader, offset: int, stored: int) -> None:
        self.at = 0
        self._reader, self._next, self._end = reader, offset, offset + stored
        self._engine = zlib.decompressobj(-zlib.MAX_WBITS)

    def some(self, most: int) -> bytes:
        """The next bytes, at most `most`; none at the end. Raises CorruptFile for what is no deflated data."""
        while not self._engine.eof:
            data = self._engine.unconsumed_tail or read(self._reader, self._next, min(_PIECE, self._end - self._next))
            if not self._engine.unconsumed_tail:
                self._next += len(data)
            try:
                out = self._engine.decompress(data, most)
            except zlib.error as fault:
                raise CorruptFile(
                    f"{self._reader.path}: data before byte {self._next:,} does not inflate: {fault}",
                    remedy="The file was damaged after it was written. Copy or download it again.",
                    path=self._reader.path,
                ) from None
            self.at += len(out)
            if out or not data:
                return out
        return b""


def read_into(reader: Reader, offset: int, target: memoryview) -> None:
    """Fill `target` from `offset`. Raises CorruptFile where the file ends first."""
    done = 0
    while done < len(target):
        got = reader.some_into(offset + done, target[done:])
        if got <= 0:
            raise CorruptFile(
                f"{reader.path} ends at byte {offset + done:,}, data was due up to byte {offset + len(target):,}",
                remedy="The file was cut short, or changed while it was read.",
                path=reader.path,
            )
        done += got


def read(reader: Reader, offset: int, nbytes: int) -> bytes:
    """`nbytes` bytes from `offset`; fewer only where the file ends. Never allocates more than the file holds."""
    nbytes = max(0, min(nbytes, reader.size - offset))
    buffer = bytearray(nbytes)
    read_into(reader, offset, memoryview(buffer))
    return bytes(buffer)


def path_text(path: object) -> str:
    """A path as text. Raises UsageError for anything that is no path, an open file among them."""
    if isinstance(path, str | bytes | os.PathLike):
        return os.fsdecode(path)
    raise UsageError(
        f"a path was due, and a {type(path).__module__}.{type(path).__qualname__} was given",
        remedy="Files are read and written by position: pass the path itself, not an open file or a buffer.",
    )


@contextmanager
def open_reader(path: str | os.PathLike[str], *, portable: bool = not HAS_PREADV) -> Iterator[Reader]:
    """Open a regular file for positional reads. Raises NotACheckpoint for folders, sockets, pipes and devices."""
    text = path_text(path)
    try:
        kind = os.stat(text).st_mode
    except FileNotFoundError:
        raise NotACheckpoint(f"{text} does not exist", remedy=_near(text), path=text) from None
    if not stat.S_ISREG(kind):
        raise NotACheckpoint(f"{text} is {_kind_name(kind)}, not a checkpoint file", path=text)
    descriptor = os.open(text, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
    try:
        size = os.fstat(descriptor).st_size
        yield (SeekReader if portable else VectorReader)(descriptor, text, size)
    finally:
        os.close(descriptor)


def _kind_name(mode: int) -> str:
    names = ((stat.S_ISDIR, "a folder"), (stat.S_ISSOCK, "a socket"), (stat.S_ISFIFO, "a pipe"),
             (stat.S_ISCHR, "a character device"), (stat.S_ISBLK, "a block device"))  # fmt: skip
    return next((name for test, name in names if test(mode)), "no regular file")


def _near(path: str) -> str:
    folder = Path(path).parent
    try:
        names = sorted(p.name for p in folder.iterdir() if p.suffix == Path(path).suffix)
    except OSError:
        return f"The folder {folder} does not exist either."
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return (
        f"The folder holds: {shown}." if names else f"The folder {folder} holds no {Path(path).suffix or 'such'} file."
    )
