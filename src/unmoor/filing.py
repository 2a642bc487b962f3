"""Bytes of a file by position, on every platform.

Knows nothing of checkpoints. Reads are thread-safe and leave no cursor behind; where the platform lacks preadv, one
lock guards a seek and a read.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Final, Protocol

from . import urls
from .errors import CorruptFile, NotACheckpoint, UsageError
from .refusals import read_error
from .steady import Identity, Reading, close_read, current, identity

__all__ = [
    "HAS_PREADV",
    "BriefReader",
    "FrontReader",
    "InflatingReader",
    "Reader",
    "SeekReader",
    "VectorReader",
    "grain_of",
    "local_path",
    "open_reader",
    "path_text",
    "prefetch",
    "why_absent",
]

HAS_PREADV: Final = hasattr(os, "preadv")
_PIECE: Final = 1 << 16
_NAMES_NOTHING: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
_MANGLED: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):[/\\](?P<rest>[^/\\].*)", re.DOTALL)
"""What pathlib makes of a URL: two slashes are one to it."""


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
        try:
            return os.preadv(self.descriptor, [target], offset)
        except OSError as error:
            raise read_error(error, self.path) from error


class SeekReader:
    """Reads by seeking under a lock: the portable way."""

    def __init__(self, descriptor: int, path: str, size: int) -> None:
        self.descriptor, self.path, self.size = descriptor, path, size
        self._lock = threading.Lock()

    def some_into(self, offset: int, target: memoryview) -> int:
        """Read at most len(target) bytes from `offset`."""
        try:
            with self._lock:
                os.lseek(self.descriptor, offset, os.SEEK_SET)
                data = os.read(self.descriptor, len(target))
        except OSError as error:
            raise read_error(error, self.path) from error
        target[: len(data)] = data
        return len(data)


class BriefReader:
    """A file that is open only while it is read: of a folder of thousands of files not all can be open at once.

    Raises CorruptFile where the path has come to name another file, or its file was written to, since the first time:
    what it was then is `first`, where that is known already.
    """

    def __init__(self, path: str, first: Identity | None = None) -> None:
        self.path = path
        with _descriptor(path) as descriptor:
            self._first = first or identity(descriptor)
            self.size = self._same(descriptor)

    def some_into(self, offset: int, target: memoryview) -> int:
        """Open the file, read at most len(target) bytes from `offset`, close it."""
        with _descriptor(self.path) as descriptor:
            self._same(descriptor)
            return _reader(descriptor, self.path, portable=not HAS_PREADV).some_into(offset, target)

    def _same(self, descriptor: int) -> int:
        """The size of the file, which must be the one that it was."""
        if identity(descriptor) != self._first:
            raise CorruptFile(
                f"{self.path} was replaced or written to while the checkpoint was read",
                remedy="Read it again once nothing writes to the folder.",
                path=self.path,
            )
        return self._first[2]


class FrontReader:
    """The first `size` bytes of another reader, as if the file ended there."""

    def __init__(self, reader: Reader, size: int) -> None:
        self.path, self.size, self._reader = reader.path, size, reader
        self.grain = grain_of(reader)

    def some_into(self, offset: int, target: memoryview) -> int:
        """Read at most len(target) bytes from `offset`."""
        return self._reader.some_into(offset, target[: max(0, self.size - offset)])


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


def grain_of(reader: Reader) -> int:
    """How many bytes a read should have where each is a request to a server; 0 for a file of this machine."""
    grain: int = getattr(reader, "grain", 0)
    return grain


def prefetch(reader: Reader, spans: Iterable[tuple[int, int]]) -> None:
    """Have a reader of a server fetch what small reads will soon want; nothing where reading costs little."""
    ahead = getattr(reader, "prefetch", None)
    if ahead is not None:
        ahead(spans)


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
        text = os.fsdecode(path)
        if isinstance(path, PurePath):
            _refuse_mangled(text)
        return urls.known(text) if urls.is_url(text) else text
    raise UsageError(
        f"a path was due, and a {type(path).__module__}.{type(path).__qualname__} was given",
        remedy="Files are read and written by position: pass the path itself, not an open file or a buffer.",
    )


def local_path(path: object, verb: str) -> str:
    """A path of this machine as text. Raises UsageError for a URL, whose object no `verb` can change or fill."""
    text = path_text(path)
    if urls.is_url(text):
        raise UsageError(
            f"{text} is a URL: unmoor.{verb} works on files of this machine alone",
            remedy="Download it first, then upload what that gives; unmoor.convert reads and writes URLs.",
            path=text,
        )
    return text


def _refuse_mangled(text: str) -> None:
    found = _MANGLED.fullmatch(text)
    if found is not None and not os.path.lexists(f"{found['scheme']}:"):
        raise UsageError(
            f"{text} is a URL of which pathlib has made one slash of two",
            remedy=f'Pass it as text: "{found["scheme"]}://{found["rest"]}".'.replace("\\", "/"),
            path=text,
        )


@contextmanager
def open_reader(
    path: str | os.PathLike[str], *, portable: bool = not HAS_PREADV, reading: Reading | None = None
) -> Iterator[Reader]:
    """Open a regular file for positional reads. Raises NotACheckpoint for folders, sockets, pipes and devices.

    The file is as it was when it was first opened in the `reading` that is under way (`steady.py`): that of this
    thread, where another thread does not hand over its own.
    """
    text = path_text(path)
    if urls.is_url(text):
        from .remote.reading import open_remote

        with open_remote(text, reading or current()) as remote:
            yield remote
        return
    reading = reading or current()
    if reading is not None and not reading.leaves_out(text):
        with reading.kept((text, portable), lambda: _reader(_opened(text), text, portable=portable)) as kept:
            yield kept
    else:
        with _descriptor(text) as descriptor:
            yield _reader(descriptor, text, portable=portable)


@contextmanager
def _descriptor(path: str) -> Iterator[int]:
    """A regular file, open for reading."""
    descriptor = _opened(path)
    try:
        yield descriptor
    finally:
        close_read(descriptor)


def _opened(path: str) -> int:
    try:
        kind = os.stat(path).st_mode
        if stat.S_ISREG(kind):
            return os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as fault:  # ValueError: a zero byte, which no path may hold
        if isinstance(fault, OSError) and fault.errno not in _NAMES_NOTHING:
            raise read_error(fault, path) from fault
        raise NotACheckpoint(f"{_shown(path)} {why_absent(path)}", remedy=_near(path), path=path) from None
    raise NotACheckpoint(f"{path} is {_kind_name(kind)}, not a checkpoint file", path=path)


def _reader(descriptor: int, path: str, *, portable: bool) -> VectorReader | SeekReader:
    return (SeekReader if portable else VectorReader)(descriptor, path, os.fstat(descriptor).st_size)


def why_absent(path: str) -> str:
    """What is the matter with a path that leads to no file: the end of a sentence that begins with it."""
    try:
        return f"is a link to {os.readlink(path)}, which does not exist"
    except (OSError, ValueError):
        return "does not exist"


def _kind_name(mode: int) -> str:
    names = ((stat.S_ISDIR, "a folder"), (stat.S_ISSOCK, "a socket"), (stat.S_ISFIFO, "a pipe"),
             (stat.S_ISCHR, "a character device"), (stat.S_ISBLK, "a block device"))  # fmt: skip
    return next((name for test, name in names if test(mode)), "no regular file")


def _shown(path: str) -> str:
    return path if path and path.isprintable() else repr(path)


def _near(path: str) -> str:
    """What to do about a path that leads to no file: what kind of name it is, or what else lies there."""
    if mangled := _MANGLED.fullmatch(path):
        return f"Was it {mangled['scheme']}://{mangled['rest']}? pathlib makes one slash of two: pass URLs as text."
    if path.startswith("~"):
        return "~ is not expanded: pass os.path.expanduser(path)."
    if not path or "\0" in path:
        return "Give the path of a file or folder."
    return _beside(Path(path))


def _beside(path: Path) -> str:
    folder = path.parent
    try:
        names = sorted(p.name for p in folder.iterdir() if p.suffix == path.suffix and p.name != path.name)
    except OSError:
        return f"{folder} is no folder." if folder.exists() else f"The folder {folder} does not exist either."
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"The folder holds: {shown}." if names else f"The folder {folder} holds no {path.suffix or 'such'} file."
