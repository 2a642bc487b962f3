"""Written bytes on their way to the disk while the rest is being written.

A system keeps what is written in memory for a while, so that a sync at the end waits for all of it. Told early, it
writes beside the program. It is only a hint: the sync at the end is what makes a file durable, and tells of errors.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import lru_cache

__all__ = ["begin_writeback"]

_WRITE = 2  # SYNC_FILE_RANGE_WRITE


def begin_writeback(handle: int, offset: int, nbytes: int) -> None:
    """Have the system begin to bring these bytes of an open file to the disk; nothing where it cannot be told so."""
    call = _sync_file_range()
    if call is not None and nbytes:
        call(handle, offset, nbytes, _WRITE)


@lru_cache(maxsize=1)
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Linux has it; libc's of other systems do not."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        call = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return call
