"""Copies a run of a file's bytes into another file, by what the system does it best with, and memory for one piece.

Shares the blocks where the file system can (FICLONE), has the kernel copy them where it will (copy_file_range), and
reads and writes otherwise.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Final

from unmoor.errors import CorruptFile
from unmoor.refusals import read_error

from .writing_all import append_all

__all__ = ["HAS_COPY_RANGE", "copy_bytes", "share_blocks"]

HAS_COPY_RANGE: Final = hasattr(os, "copy_file_range")
_FICLONE: Final = 0x40049409
_PIECE: Final = 1 << 20
_LARGE: Final = 64 << 20
_NOT_HERE: Final = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EPERM, errno.EBADF,
                    errno.EIO, errno.EINTR, errno.ESTALE}  # fmt: skip


def share_blocks(source: int, target: int) -> bool:
    """Make the empty file `target` hold what `source` does, on the same blocks; False where the system cannot."""
    try:
        import fcntl
    except ImportError:
        return False
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


def copy_bytes(
    source: int,
    target: int,
    start: int,
    nbytes: int,
    *,
    advance: Callable[[int], None] | None,
    path: str = "",
    portable: bool = not HAS_COPY_RANGE,
) -> None:
    """Write `nbytes` bytes of the file `source` from `start` on where the file `target` ends. Both are open.

    `path` is what errors call the source. Raises CorruptFile where it ends first.
    """
    at = os.lseek(target, 0, os.SEEK_END)
    done = 0
    while done < nbytes:
        moved = 0 if portable else _ranged(source, target, start + done, at + done, min(_LARGE, nbytes - done))
        portable = portable or moved == 0
        moved = moved or _piece(source, target, start + done, at + done, min(_PIECE, nbytes - done), path)
        done += moved
        if advance is not None:
            advance(moved)


def _ranged(source: int, target: int, start: int, at: int, nbytes: int) -> int:
    """What copy_file_range copied; 0 where it is not for these files."""
    try:
        return os.copy_file_range(source, target, nbytes, start, at)
    except OSError as error:  # EIO may be of either file: read by itself, the source tells
        if error.errno not in _NOT_HERE:
            raise
        return 0


def _piece(source: int, target: int, start: int, at: int, nbytes: int, path: str) -> int:
    try:
        os.lseek(source, start, os.SEEK_SET)
        data = os.read(source, nbytes)
    except OSError as error:
        raise read_error(error, path) from error
    if not data:
        raise CorruptFile(f"{path or 'the file'} became shorter while it was copied", path=path)
    os.lseek(target, at, os.SEEK_SET)
    append_all(target, data)
    return len(data)
