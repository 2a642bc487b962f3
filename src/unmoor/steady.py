"""Sees that one reading, in however many goes, is of one state of every file.

Knows nothing of checkpoints. Within `one_reading` a file stays open from the first time it is read: one that is
replaced or removed meanwhile is read to its end as it was, and one that is written to in place is told by what the
system says of it. What the system refuses leaves as a ReadError.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Protocol

from .errors import CorruptFile, NotACheckpoint
from .refusals import told

__all__ = ["Identity", "Opened", "Reading", "close_read", "current", "identity", "identity_of", "leave_out",
           "one_reading", "refuse_changed", "was_read", "written_to"]  # fmt: skip

Identity = tuple[int, int, int, int]
"""What tells one state of a file from another: device, inode, bytes, and the time of the last write in ns."""

_MOST_OPEN: Final = 32
"""Files that stay open; others are opened anew each time, and must be the same then."""
_REMEDY: Final = "Read it again once nothing writes to it."


class Opened(Protocol):
    """What reads an open file, by position."""

    descriptor: int
    path: str
    size: int

    def some_into(self, offset: int, target: memoryview) -> int:
        """Read at most len(target) bytes from `offset`."""


class Shared(Protocol):
    """What reads an object behind a URL, by position, and sees itself that it stays the same."""

    path: str
    size: int

    def some_into(self, offset: int, target: memoryview) -> int:
        """Read at most len(target) bytes from `offset`."""

    def close(self) -> None:
        """Let it go."""


@dataclass(slots=True)
class _File:
    """A file that was read: what it was at first, and how it is read, None where it was closed again."""

    path: str
    first: Identity
    opened: Opened | None


class Reading:
    """The files that one reading has to do with. May be asked from several threads."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, bool], _File] = {}
        self._left_out: list[str] = []
        self._shared: dict[str, Shared] = {}
        self._lock = threading.Lock()

    def leave_out(self, path: str) -> None:
        """Have nothing to do with `path`, nor with what lies in it."""
        self._left_out.append(path)

    def leaves_out(self, path: str) -> bool:
        """Whether a path was left out, or lies in such a folder."""
        return any(path == other or path.startswith(other + os.sep) for other in self._left_out)

    @contextmanager
    def kept(self, key: tuple[str, bool], open_file: Callable[[], Opened]) -> Iterator[Opened]:
        """The file that was opened under `key` (a path, and how it is read), or is now.

        Raises CorruptFile where the path has come to name another file, or its file was written to.
        """
        with self._lock:
            known = self._files.get(key)
            if known is not None and known.opened is not None:
                opened, close = known.opened, False
            else:
                opened = _again(open_file, key[0]) if known is not None else open_file()
                close = not self._keep(key, opened, known)
        try:
            yield opened
        finally:
            if close:
                close_read(opened.descriptor)

    def _keep(self, key: tuple[str, bool], opened: Opened, known: _File | None) -> bool:
        """Note a file that was opened; whether it stays open."""
        now = identity(opened.descriptor)
        if known is not None:
            if now != known.first:
                close_read(opened.descriptor)
                raise _changed(key[0], "was replaced or written to")
            return False
        stays = sum(file.opened is not None for file in self._files.values()) < _MOST_OPEN
        self._files[key] = _File(key[0], now, opened if stays else None)
        return stays

    def shared(self, url: str, open_object: Callable[[], Shared]) -> Shared:
        """What reads the object behind a URL: of the version that was there when it was first asked for."""
        with self._lock:
            if url not in self._shared:
                self._shared[url] = open_object()
            return self._shared[url]

    def first(self, path: str) -> Identity | None:
        """What a file was when it was first read."""
        found = (file.first for file in self._files.values() if file.path == path)
        return next(found, None)

    def written_to(self) -> list[str]:
        """The files that have been written to in place since they were first read."""
        return list(dict.fromkeys(file.path for file in list(self._files.values()) if not _holds(file)))

    def close(self) -> None:
        """Close what is open."""
        for file in self._files.values():
            if file.opened is not None:
                close_read(file.opened.descriptor)
        for shared in self._shared.values():
            shared.close()
        self._files.clear()
        self._shared.clear()


_CURRENT: Final[ContextVar[Reading | None]] = ContextVar("reading", default=None)


def current() -> Reading | None:
    """The reading that is under way in this thread."""
    return _CURRENT.get()


@contextmanager
def one_reading() -> Iterator[Reading]:
    """What is read in the block, or in calls of the function that this decorates, is of one state of every file.

    Within another reading it is part of that. Damage that is met in a file that was written to meanwhile says so.
    """
    outer = _CURRENT.get()
    if outer is not None:
        yield outer
        return
    reading = Reading()
    token = _CURRENT.set(reading)
    try:
        with told():
            yield reading
    except CorruptFile as error:
        said = str(error)
        changed = (written_to(path).headline for path in reading.written_to())
        error.add_details(*(line for line in changed if line not in said))
        raise
    finally:
        _CURRENT.reset(token)
        reading.close()


def refuse_changed() -> None:
    """Raise CorruptFile where a file of the reading under way has been written to since it was first read."""
    reading = _CURRENT.get()
    for path in reading.written_to() if reading is not None else ():
        raise written_to(path)


def written_to(path: str) -> CorruptFile:
    """The error of a file that was not left alone."""
    return _changed(path, "was written to")


def was_read(path: str) -> bool:
    """Whether the reading under way has opened a file."""
    reading = _CURRENT.get()
    return reading is not None and reading.first(path) is not None


def leave_out(path: str) -> None:
    """Have the reading under way nothing to do with `path`: the same call writes it."""
    reading = _CURRENT.get()
    if reading is not None:
        reading.leave_out(path)


def close_read(descriptor: int) -> None:
    """Close a file that was read: what was read is not worse for an error of that."""
    with suppress(OSError):
        os.close(descriptor)


def identity(descriptor: int) -> Identity:
    """What the system says of an open file."""
    return identity_of(os.fstat(descriptor))


def identity_of(facts: os.stat_result) -> Identity:
    """The same, of what the system said."""
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns


def _holds(file: _File) -> bool:
    """Whether a file is as it was: one that was replaced, or is gone, has been read as it was."""
    try:
        now = identity(file.opened.descriptor) if file.opened is not None else identity_of(os.stat(file.path))
    except OSError:
        return True
    return now == file.first or now[:2] != file.first[:2]


def _again(open_file: Callable[[], Opened], path: str) -> Opened:
    try:
        return open_file()
    except NotACheckpoint:
        raise _changed(path, "was removed") from None


def _changed(path: str, how: str) -> CorruptFile:
    return CorruptFile(f"{path} {how} while it was read", remedy=_REMEDY, path=path)
