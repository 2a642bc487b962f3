"""What it means where the system refuses to read, and what to do: one row for each errno of a disk or server."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from .errors import ReadError, UnmoorError

__all__ = ["read_error", "told"]

_MOUNT: Final = "See that its file system is mounted and its server answers, then read it again."
_CAUSES: Final = {
    errno.EIO: ("the disk reports an error", "Read another copy, or the checkpoint before it: this disk is failing."),
    errno.EACCES: ("this user may not read it", "Change its permissions, or run as its owner."),
    errno.EPERM: ("this user may not read it", "Change its permissions, or run as its owner."),
    errno.ENOENT: ("it is gone", "It was removed meanwhile, or its disk is no longer mounted."),
    errno.ENOTDIR: ("it is gone", "It was removed meanwhile, or its disk is no longer mounted."),
    errno.ESTALE: ("its server no longer knows it: it was removed or replaced there meanwhile", "Read it again."),
    errno.EMFILE: ("this process has too many files open", "Raise the limit (ulimit -n), or close some."),
    errno.ENFILE: ("the system has too many files open", "Close some, and read it again."),
    errno.ENOMEM: ("the system has no memory left", "Free some, and read it again."),
    errno.EINTR: ("the call was interrupted", "Read it again."),
    errno.EAGAIN: ("the system had no means for it at this moment", "Read it again."),
    errno.EUCLEAN: ("its file system is damaged", "Check the file system; read another copy of the file."),
    errno.ENODEV: ("its disk is gone", _MOUNT),
    errno.ENXIO: ("its disk is gone", _MOUNT),
    errno.ENOTCONN: ("the connection to its file system is lost", _MOUNT),
    errno.ESHUTDOWN: ("the connection to its file system is lost", _MOUNT),
    errno.ETIMEDOUT: ("its server does not answer", _MOUNT),
    errno.EHOSTDOWN: ("its server does not answer", _MOUNT),
    errno.EHOSTUNREACH: ("its server does not answer", _MOUNT),
}  # fmt: skip


@contextmanager
def told() -> Iterator[None]:
    """What the system refuses in the block, or in calls of the function that this decorates, leaves as a ReadError."""
    try:
        yield
    except OSError as error:
        if isinstance(error, UnmoorError):
            raise
        raise read_error(error) from error


def read_error(error: OSError, path: str = "") -> ReadError:
    """What the system refused while `path`, or the file that it names itself, was read."""
    place = path or _text(error.filename)
    cause, remedy = _CAUSES.get(error.errno or 0, ("", ""))
    headline = f"{place or 'a file'} could not be read: {cause or error.strerror or error}"
    return ReadError(headline, remedy=remedy, path=place, errno=error.errno)


def _text(name: object) -> str:
    return name if isinstance(name, str) else name.decode(errors="replace") if isinstance(name, bytes) else ""
