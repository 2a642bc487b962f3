"""Local headers of a ZIP beside their entries in its directory: whether they agree, what one says without the other.

Pure: numbers in, words or numbers out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

__all__ = ["contradiction", "offset_by_rule"]

_LOCAL_SIGNATURE: Final = 0x04034B50
_LONG: Final = 0xFFFFFFFF
_STORED: Final = 0
_ENCRYPTED: Final = 1
_DESCRIPTOR: Final = 8
_HEADER: Final = 30
_PADDING: Final = 4
_WIDE: Final = 8
_ALIGNMENT: Final = 64
_SHORT_SUMS: Final = 16
_LONG_SUMS: Final = 24
"""Bytes of a data descriptor, with its mark."""


class Entry(Protocol):
    """What the directory says of a record."""

    @property
    def name(self) -> bytes: ...
    @property
    def flags(self) -> int: ...
    @property
    def method(self) -> int: ...
    @property
    def crc32(self) -> int: ...
    @property
    def stored(self) -> int: ...
    @property
    def nbytes(self) -> int: ...


def contradiction(entry: Entry, fields: Sequence[int], name: bytearray) -> str:
    """How a local header contradicts its entry in the directory; "" where it does not."""
    signature, flags, method, crc32, stored, nbytes, length, _ = fields
    if signature != _LOCAL_SIGNATURE:
        return "there is no local header where the directory says"
    if length != len(name) or name != entry.name:
        return "its two headers differ in name"
    if method != entry.method or (flags ^ entry.flags) & _ENCRYPTED:
        return "its two headers differ in how it is compressed"
    if (crc32 or stored or nbytes or not flags & _DESCRIPTOR) and _sizes_differ(entry, flags, crc32, stored, nbytes):
        return "its two headers differ in size or checksum"
    if method == _STORED and entry.stored != entry.nbytes:
        return f"stored as it is, and yet {entry.stored:,} bytes stand for {entry.nbytes:,}"
    return ""


def _sizes_differ(entry: Entry, flags: int, crc32: int, stored: int, nbytes: int) -> bool:
    """Whether a local header that claims sizes contradicts the directory; a stream leaves 0 or ZIP64's mark."""
    if crc32 == entry.crc32 and stored == entry.stored and nbytes == entry.nbytes:
        return False
    unknown = (0, _LONG) if flags & _DESCRIPTOR else (_LONG,)
    pairs = ((crc32, entry.crc32), (stored, entry.stored), (nbytes, entry.nbytes))
    return any(mine not in (*unknown, theirs) for mine, theirs in pairs)


def offset_by_rule(
    name: bytes, flags: int, method: int, crc32: int, stored: int, nbytes: int, header: int, following: int
) -> int | None:
    """Where the data of a record begins, if it lies as torch's writer places it; None where that cannot be told.

    By that rule it must end, its checksum behind it, exactly where the header of the `following` record begins.
    """
    del crc32
    long, far = nbytes >= _LONG, header >= _LONG
    offset = header + _HEADER + len(name) + _PADDING
    if long or far:
        offset += _PADDING + (2 * _WIDE if long else 0) + (_WIDE if far else 0)
    offset += -offset % _ALIGNMENT
    sums = (_LONG_SUMS if long or far else _SHORT_SUMS) if flags & _DESCRIPTOR else 0
    plain = method == _STORED and not flags & _ENCRYPTED and stored == nbytes
    return offset if plain and offset + stored + sums == following else None
