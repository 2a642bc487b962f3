"""Checksums of storages that several readers read in part: the sums of their parts, put together.

A reader sums what it reads; one that has the sums of all puts them together and holds them against the saved ones, if
the parts fill the storage. Nothing is read again. Pure: rows of bytes in, marks of storages out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from unmoor.values.nodes import Storage

from .checksums import combine

__all__ = ["Part", "mark_of", "packed", "put_together"]

_ROW: Final = Struct("<8sQIQQI")
MARK: Final = 8
"""Bytes of the mark of a storage."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Bytes `start` to `end` of a storage, and the CRC-32 of what was read there."""

    storage: Storage
    start: int
    end: int
    crc32: int


def mark_of(storage: Storage) -> bytes:
    """What stands for a storage among readers of one checkpoint."""
    return hashlib.sha256(storage.key.encode()).digest()[:MARK]


def packed(parts: Iterable[Part], *, most: int) -> bytes:
    """Parts as they are sent, those of one reader that follow each other as one; nothing where that is over `most`."""
    rows = [
        _ROW.pack(mark_of(part.storage), part.storage.nbytes, part.storage.crc32 or 0, part.start, part.end, part.crc32)
        for part in _joined(parts)
    ]
    return b"".join(rows) if len(rows) * _ROW.size <= most else b""


def _joined(parts: Iterable[Part]) -> Iterator[Part]:
    last: Part | None = None
    for part in sorted(parts, key=lambda part: (part.storage.key, part.start, part.end)):
        if last is not None and last.storage is part.storage and last.end == part.start:
            crc = combine(last.crc32, part.crc32, part.end - part.start)
            last = Part(part.storage, last.start, part.end, crc)
            continue
        if last is not None:
            yield last
        last = part
    if last is not None:
        yield last


def put_together(rows: Sequence[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Of what every reader sent: the marks of storages whose checksum holds, and of those where it does not.

    A storage that the parts do not fill is in neither.
    """
    found: dict[tuple[bytes, int, int], dict[tuple[int, int], set[int]]] = {}
    for row in rows:
        for mark, nbytes, saved, start, end, crc in _ROW.iter_unpack(row):
            found.setdefault((mark, nbytes, saved), {}).setdefault((start, end), set()).add(crc)
    good: list[bytes] = []
    bad: list[bytes] = []
    for (mark, nbytes, saved), ranges in found.items():
        total = _total(nbytes, ranges)
        if total is not None:
            (good if total == {saved} else bad).append(mark)
    return good, bad


def _total(nbytes: int, ranges: dict[tuple[int, int], set[int]]) -> set[int] | None:
    """The checksum of the whole storage; several where readers read different bytes; None where parts are missing."""
    position, crc = 0, 0
    for (start, end), sums in sorted(ranges.items()):
        if start != position:
            return None
        if len(sums) > 1:
            return sums
        crc, position = combine(crc, next(iter(sums)), end - start), end
    return {crc} if position == nbytes else None
