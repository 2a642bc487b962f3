"""Stored bytes as data to be written: read from their file when asked for, never held.

Knows nothing of tensors beyond the bytes of one number, which another byte order turns round.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final

from unmoor.filing import read_into
from unmoor.values.nodes import Span

from .checksums import crc32
from .reading import OpenSpan
from .sinks import Blob

__all__ = ["AheadBlob", "SpanBlob", "SummedBlob"]

_CODES: Final = {array(code).itemsize: code for code in "HILQ"}


class SpanBlob:
    """`nbytes` bytes from byte `start` of a span of a file; numbers of `unit` bytes are turned round (1: none)."""

    def __init__(self, open_span: OpenSpan, span: Span, start: int, nbytes: int, *, unit: int = 1) -> None:
        self.nbytes = nbytes
        self._open_span, self._file, self._first, self._unit = open_span, span.file, span.offset + start, unit

    def direct(self, offset: int, nbytes: int) -> memoryview | None:  # noqa: ARG002 - a Blob has this form
        """Nothing: the bytes are in a file."""
        return None

    def fetch(self, offset: int, target: memoryview) -> None:
        """Read the bytes from `offset` on into the whole of `target`: whole numbers where they are turned round."""
        read_into(self._open_span(self._file), self._first + offset, target)
        if self._unit > 1:
            numbers = array(_CODES[self._unit], bytes(target))
            numbers.byteswap()
            target[:] = memoryview(numbers).cast("B")


class SummedBlob:
    """Another blob, asked for piece after piece, whose sum is handed to `done` with the last byte."""

    def __init__(self, blob: Blob, nbytes: int, done: Callable[[int], None]) -> None:
        self._blob, self._nbytes, self._done = blob, nbytes, done
        self._crc = 0

    def direct(self, offset: int, nbytes: int) -> memoryview | None:  # noqa: ARG002 - a Blob has this form
        """Nothing: what is read is summed first."""
        return None

    def fetch(self, offset: int, target: memoryview) -> None:
        """Read the next bytes into the whole of `target`."""
        self._blob.fetch(offset, target)
        self._crc = crc32(target, self._crc)
        if offset + len(target) == self._nbytes:
            self._done(self._crc)


class AheadBlob:
    """Another blob of `nbytes` bytes, asked for piece after piece, of which `ahead` bytes are fetched at a time.

    Where the bytes of a piece lie far apart in the file, those of the next one lie beside them.
    """

    def __init__(self, blob: Blob, nbytes: int, ahead: int) -> None:
        self._blob, self._nbytes, self._ahead = blob, nbytes, ahead
        self._first, self._held = 0, bytearray()

    def direct(self, offset: int, nbytes: int) -> memoryview | None:  # noqa: ARG002 - a Blob has this form
        """Nothing: the bytes are in a file."""
        return None

    def fetch(self, offset: int, target: memoryview) -> None:
        """Copy the bytes from `offset` on into the whole of `target`."""
        if not self._first <= offset <= offset + len(target) <= self._first + len(self._held):
            self._first, self._held = offset, bytearray(max(len(target), min(self._ahead, self._nbytes - offset)))
            self._blob.fetch(offset, memoryview(self._held))
        begin = offset - self._first
        target[:] = memoryview(self._held)[begin : begin + len(target)]
        if offset + len(target) == self._nbytes:
            self._held = bytearray()
