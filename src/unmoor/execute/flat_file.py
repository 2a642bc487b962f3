"""Writes a file that is a head and the bytes of blobs behind it, in their order, through one ring of bounded buffers.

Decides nothing about what is saved; `commit.publish` makes a save atomic.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Final

from unmoor.urls import is_url

from .checksums import crc32
from .crew import ring_of
from .fetching import chunks
from .sinks import Blob, Buffers
from .writing_all import append_all

__all__ = ["write_flat"]

_CHUNK: Final = 1 << 20
_ELEMENT: Final = 16


def write_flat(
    path: str | os.PathLike[str],
    head: bytes,
    blobs: Sequence[tuple[int, Blob]],
    *,
    finish: Callable[[bytes, Sequence[int]], bytes] | None = None,
    buffer_bytes: int,
    progress: Callable[[int], None] | None,
    buffers: Buffers | None = None,
) -> int:
    """Write `head` and then all blobs, given with their bytes, over what is at `path`; the length of the file.

    `finish` makes the head that is to stay out of it and the checksums of the blobs, just as long; what is sent to a
    URL in order keeps the first. Pieces of a blob begin at multiples of 16 bytes. `progress` gets the bytes of blobs
    done since its last call. `buffers` are what the blobs' devices copy best into.
    Raises OSError as the system gives it; what is at `path` is then of no use. The hidden name that `commit.publish`
    gives for a URL is written to in order.
    """
    if is_url(text := os.fspath(path)):
        from .remote_archive import send_flat

        return send_flat(text, head, blobs, buffer_bytes=buffer_bytes, progress=progress, buffers=buffers)
    each = buffer_bytes // (1 if buffers is None else buffers.slots)
    size = max(_ELEMENT, min(_CHUNK, each) // _ELEMENT * _ELEMENT)
    sums: list[int] = []
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0), 0o666)
    try:
        append_all(handle, head)
        end = len(head)
        with closing(ring_of(buffers, size)) as ring:
            for nbytes, blob in blobs:
                crc = 0
                for piece in chunks(blob, 0, nbytes, size, ring):
                    crc = crc32(piece, crc) if finish is not None else 0
                    append_all(handle, piece)
                    end += len(piece)
                    if progress is not None:
                        progress(len(piece))
                sums.append(crc)
        os.ftruncate(handle, end)
        if finish is not None:
            os.lseek(handle, 0, os.SEEK_SET)
            append_all(handle, finish(head, sums))
    finally:
        os.close(handle)
    return end
