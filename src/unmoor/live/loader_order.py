"""The order in which a loader takes its samples, with a checksum of it: what stands for its index sampler."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, Final
from zlib import crc32

from .loader_shares import rest

__all__ = ["Indices", "Order"]

_PLAIN: Final = (int, str, float, bool, type(None))


class Order:
    """Stands for the index sampler of a loader. An iterator over it first passes over `skip` of its batches.

    `first` are samples of the epoch, of all ranks together, that were done before this loader's part of it began.
    """

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._latest: Indices | None = None
        self.skip = 0
        self.first = 0
        self.empty = False

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        if name == "_sampler":
            raise AttributeError(name)
        return getattr(self._sampler, name)

    def __iter__(self) -> Indices:
        self._latest = Indices(iter(() if self.empty else self.source(self.first)), self.skip)
        return self._latest

    def source(self, first: int) -> Any:
        """The index sampler of what is left of an epoch after `first` samples of all ranks."""
        return rest(self._sampler, first) if first else self._sampler

    def latest(self) -> Indices:
        """The iterator that a pass of the loader has just taken."""
        return self._latest if self._latest is not None else iter(self)


class Indices:
    """The batches of indices of one epoch, with a running checksum after each."""

    def __init__(self, inner: Iterator[Any], skip: int) -> None:
        self._inner, self._skip = inner, skip
        self._ahead: list[Any] = []
        self._digests = array("L")

    def __iter__(self) -> Indices:
        return self

    def __next__(self) -> Any:
        if self._ahead:
            return self._ahead.pop()
        self.pass_over()
        return self._draw()

    def look_ahead(self) -> None:
        """Draw the first batch now and give it later: what the order is drawn from is read now."""
        try:
            self._ahead = self._ahead or [self._draw()]
        except StopIteration:
            return

    def pass_over(self) -> None:
        """Draw what is to be skipped, if that was not done; a sampler that ends before shows in its checksums."""
        skip, self._skip = self._skip, 0
        for _ in range(skip):
            try:
                self._draw()
            except StopIteration:
                return

    def _draw(self) -> Any:
        indices = next(self._inner)
        self._digests.append(crc32(_bytes(indices), self.digest(len(self._digests)) or 0))
        return indices

    def digest(self, batches: int) -> int:
        """The checksum of the first `batches` batches; -1 where there were not as many."""
        if batches == 0:
            return 0
        return int(self._digests[batches - 1]) if batches <= len(self._digests) else -1


def _bytes(indices: Any) -> bytes:
    """Indices as bytes that are the same in every process; objects of other kinds count only by their class."""
    try:
        return array("q", indices).tobytes()
    except (TypeError, OverflowError):
        parts = indices if isinstance(indices, list | tuple) else [indices]
        return "".join(repr(part) if isinstance(part, _PLAIN) else type(part).__name__ for part in parts).encode()
