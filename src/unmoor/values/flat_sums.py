"""Checksums in a safetensors file: one of the header and one of each tensor, as text among its metadata. Pure.

The format has no place for them but its text of texts. Programs that write such a file anew often hand on the metadata
of the old one: sums are believed only where the header is still the one that they were written with. What tells damage
from a new header is the order of the keys of an entry, in which no other writer puts them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

__all__ = ["SUMS", "Altered", "blank_sums", "filled", "put_right", "read_sums", "row", "told_sums"]

SUMS: Final = "unmoor.crc32"
"""The key of the metadata."""

_DIGITS: Final = 8
_BLANK: Final = b"0" * _DIGITS
_HEX: Final = frozenset("0123456789abcdef")
_PREFIX: Final = 8
_OWN: Final = b':{"shape":'
_OTHERS: Final = b':{"dtype":'


class Altered(ValueError):
    """A header of ours whose own checksum does not hold."""


def row(dtype: str, shape: Sequence[int], offsets: Sequence[int]) -> dict[str, Any]:
    """An entry of a header with its keys in our order."""
    return {"shape": list(shape), "dtype": dtype, "data_offsets": list(offsets)}


def blank_sums(number: int) -> str:
    """The text in the metadata until the sums of `number` tensors are known."""
    return "0" * _DIGITS * (number + 1)


def filled(head: bytes, sums: Sequence[int]) -> bytes:
    """The head of a file, length included, with the sums of its tensors, in the order of the data, and its own."""
    at = _place(head)
    digits = "".join(f"{crc:08x}" for crc in sums).encode()
    made = head[: at + _DIGITS] + digits + head[at + _DIGITS + len(digits) :]
    return made[:at] + f"{zlib.crc32(made[_PREFIX:]):08x}".encode() + made[at + _DIGITS :]


def read_sums(head: bytes, metadata: Mapping[str, str], number: int) -> list[int] | None:
    """The sums of `number` tensors, in the order of the data; None where the file has none that are its own.

    `head` is the header with its length before it. Raises Altered where the header was damaged.
    """
    ours = head.count(_OWN) > head.count(_OTHERS)
    length = _DIGITS * (number + 1)
    told = next((key for key, text in metadata.items() if len(text) == length and _HEX.issuperset(text)), None)
    if SUMS not in metadata:
        if ours and told is not None:
            raise Altered(f"the key of its checksums reads {told[:40]!r}")
        return None
    text, at = metadata[SUMS], _place(head)
    whole = len(text) == length and _HEX.issuperset(text)
    if whole and not text.strip("0"):  # never filled in: it was sent away in order
        return None
    if whole and at >= 0:
        blank, crc = _blanked(head) or (b"", -1)
        if zlib.crc32(blank) == crc:
            return _numbers(text)
    if ours:
        raise Altered("its own checksum does not hold")
    return None


def told_sums(metadata: Mapping[str, str], number: int) -> list[int] | None:
    """The sums as the metadata tells of them, whether or not the header is whole."""
    text = metadata.get(SUMS, "")
    return _numbers(text) if len(text) == _DIGITS * (number + 1) and _HEX.issuperset(text) else None


def _numbers(text: str) -> list[int]:
    return [int(text[i : i + _DIGITS], 16) for i in range(_DIGITS, len(text), _DIGITS)]


def put_right(head: bytes, mended: Callable[[bytes, int], bytes | None]) -> bytes | None:
    """The head with the damage undone that `mended` finds by its bytes and the sum that they should have.

    None where the head has no sum of itself, or its sum holds, or nothing is found.
    """
    blank, crc = _blanked(head) or (b"", 0)
    made = mended(blank, crc) if zlib.crc32(blank) != crc else None
    if made is None:
        return None
    at = _place(head)
    return head[:_PREFIX] + made[: at - _PREFIX] + head[at : at + _DIGITS] + made[at - _PREFIX + _DIGITS :]


def _blanked(head: bytes) -> tuple[bytes, int] | None:
    """A header as it was summed, without its length, and the sum that it has of itself; None where it has none."""
    at = _place(head)
    digits = head[at : at + _DIGITS] if at >= 0 else b""
    try:
        return (head[:at] + _BLANK + head[at + _DIGITS :])[_PREFIX:], int(digits, 16)
    except ValueError:
        return None


def _place(head: bytes) -> int:
    """Where the first digit stands; -1 where the key does not stand in the head as we write it."""
    mark = f'"{SUMS}":"'.encode()
    at = head.find(mark)
    return at + len(mark) if at >= 0 else -1
