"""Flat tensors put together from pieces of stored ones, with zeros between: read when they are written, never held."""

from __future__ import annotations

from bisect import bisect_right

from unmoor.errors import UnsupportedFile
from unmoor.filing import read_into
from unmoor.values.dtypes import nbytes_of
from unmoor.values.nodes import Storage

from .reading import OpenSpan

__all__ = ["SplicedBlob"]


class SplicedBlob:
    """The bytes of a flat storage whose chunks lie in files; what no chunk holds is zero."""

    def __init__(self, open_span: OpenSpan, storage: Storage) -> None:
        self.nbytes = storage.nbytes
        self._open_span = open_span
        self._pieces = sorted((_piece(storage, number) for number in range(len(storage.chunks))), key=lambda p: p[0])
        self._starts = [start for start, *_ in self._pieces]

    def direct(self, offset: int, nbytes: int) -> memoryview | None:  # noqa: ARG002 - a Blob has this form
        """Nothing: the bytes are in files."""
        return None

    def fetch(self, offset: int, target: memoryview) -> None:
        """Read the bytes from `offset` on into the whole of `target`."""
        end = offset + len(target)
        target[:] = bytes(len(target))
        for start, nbytes, file, first in self._pieces[max(0, bisect_right(self._starts, offset) - 1) :]:
            if start >= end:
                break
            low, high = max(start, offset), min(start + nbytes, end)
            if low < high:
                part = target[low - offset : high - offset]
                read_into(self._open_span(file), first + low - start, part)


def _piece(storage: Storage, number: int) -> tuple[int, int, str, int]:
    """Where a chunk begins in the storage and how many bytes it has; its file, and where it begins there."""
    chunk = storage.chunks[number]
    node, source = chunk.node, chunk.node.storage
    if source is None or source.span is None or node.stride != (1,):
        raise UnsupportedFile(f"{storage.key}: its parts are not stored as runs of bytes")
    first = source.span.offset + nbytes_of(node.dtype, node.offset)
    return nbytes_of(node.dtype, chunk.start[0]), nbytes_of(node.dtype, node.shape[0]), source.span.file, first
