"""Writes until all is written: a system may take less of a write than it was given."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

__all__ = ["append_all", "write_all"]


def write_all(some: Callable[[int, memoryview], int], offset: int, data: bytes | memoryview) -> None:
    """Write all of `data` at `offset`; `some` writes a beginning of what it is given, and says how much that was.

    Raises OSError where the system takes nothing, and says of no error.
    """
    rest = memoryview(data)
    while rest:
        done = some(offset, rest)
        if done <= 0:
            raise OSError(errno.EIO, "the disk takes no more bytes, and says of no error")
        offset, rest = offset + done, rest[done:]


def append_all(handle: int, data: bytes | memoryview) -> None:
    """Write all of `data` where an open file stands."""
    write_all(lambda _, rest: os.write(handle, rest), 0, data)
