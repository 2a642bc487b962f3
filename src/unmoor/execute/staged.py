"""Tensor data that lies in memory already, on its way into a file. Knows not whose memory it is."""

from __future__ import annotations

__all__ = ["Staged"]


class Staged:
    """A blob: bytes `start` to `start + nbytes` of a memory."""

    __slots__ = ("_memory", "nbytes", "start")

    def __init__(self, memory: memoryview, start: int, nbytes: int) -> None:
        self._memory, self.start, self.nbytes = memory, start, nbytes

    def direct(self, offset: int, nbytes: int) -> memoryview | None:
        """These bytes where they are."""
        return self._memory[self.start + offset : self.start + offset + nbytes]

    def fetch(self, offset: int, target: memoryview) -> None:
        """Copy bytes from `offset` into `target`, as many as it holds."""
        target[:] = self._memory[self.start + offset : self.start + offset + len(target)]
