"""One flipped bit, found by the checksum of the bytes that it is in.

CRC-32 is linear: what a flipped bit does to the sum depends on nothing but how far it is from the end, so that the
difference of two sums says where it was. Other damage is mistaken for one bit with a chance of `8 * bytes / 2**32`;
that stays small by a bound, and who calls holds the result against what it should be.
"""

from __future__ import annotations

import zlib
from typing import Final

__all__ = ["MOST", "flipped_bit", "mended"]

MOST: Final = 4 << 20
"""Bytes in which a bit is looked for, at most: one in 128 kinds of other damage looks like one bit of so many."""

_POLYNOMIAL: Final = 0xEDB88320


def _tables() -> tuple[dict[int, int], list[int]]:
    """Difference of sums -> bit of the last byte that makes it; and what takes a difference back over one byte."""
    forward = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        forward.append(value)
    back = [0] * 256
    for byte, value in enumerate(forward):
        back[value >> 24] = byte
    return {forward[1 << bit]: bit for bit in range(8)}, [forward[byte] << 8 & 0xFFFFFFFF | byte for byte in back]


def flipped_bit(data: bytes, crc32: int) -> tuple[int, int] | None:
    """Byte and bit whose flip gives `data` the sum `crc32`; None where none does.

    >>> flipped_bit(b"hello wprld", zlib.crc32(b"hello world"))
    >>> flipped_bit(b"hello wnrld", zlib.crc32(b"hello world"))
    (7, 0)
    """
    difference = zlib.crc32(data) ^ crc32
    last, back = _tables()
    for at in range(len(data) - 1, -1, -1):
        bit = last.get(difference)
        if bit is not None:
            return at, bit
        difference = (difference << 8 & 0xFFFFFFFF) ^ back[difference >> 24]
    return None


def mended(data: bytes, crc32: int) -> bytes | None:
    """`data` with the one bit turned back that its sum tells of; None where no single bit explains the sum."""
    found = flipped_bit(data, crc32) if len(data) <= MOST else None
    if found is None:
        return None
    at, bit = found
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
