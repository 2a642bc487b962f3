"""What a relocation leaves in a zip: the record that says how to undo it, and the end that holds while it is written.

Readers look for the end record of a zip in the last 65,557 bytes of the file. While bytes are appended that record must
not get out of their sight: an anchor is a copy of it, with a comment that says where the archive ends that it belongs
to. Pure: bytes and numbers in and out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

__all__ = ["RECORD", "Ends", "Superseded", "anchored_size", "left_behind", "read_record", "record_of", "split_ends"]

RECORD: Final = "unmoor/relocated.json"
"""The record below the archive's top folder that says what an archive was before it was relocated."""

SECTOR: Final = 512
"""An anchor lies within one sector, which a disk writes whole or not at all."""

_END: Final = Struct("<IHHHHIIH")
_END64_SIZE: Final = 56
_LOCATOR_SIZE: Final = 20
_END64_MARK: Final = b"PK\x06\x06"
_MARK: Final = b"unmoor relocate was interrupted; the checkpoint is whole without what stands behind byte "
_SIGNATURE: Final = b"PK\x05\x06"
_STATED: Final = 1


@dataclass(frozen=True, slots=True)
class Ends:
    """The last bytes of an archive: the locator of its ZIP64 end record, "" without one, and its end record."""

    locator: bytes
    end: bytes

    def anchor(self, size: int) -> bytes:
        """The same end once more, to stand behind an archive of `size` bytes; it leads to the same directory."""
        comment = _MARK + str(size).encode()
        return self.locator + self.end + len(comment).to_bytes(2, "little") + comment

    def signature(self) -> tuple[int, bytes]:
        """Where in an anchor the four bytes stand without which no reader sees it, and these bytes."""
        return len(self.locator), _SIGNATURE


@dataclass(frozen=True, slots=True)
class Superseded:
    """What an archive was before a relocation: its length in bytes, and tag -> new tag -> tensors."""

    size: int
    moves: Mapping[str, Mapping[str, int]]


def split_ends(raw: bytes) -> Ends:
    """The bytes from an archive's end records to its end, in their parts; a comment is left out."""
    start = _END64_SIZE if raw.startswith(_END64_MARK) else 0
    locator = raw[start : start + _LOCATOR_SIZE] if start else b""
    at = start + len(locator)
    return Ends(locator, raw[at : at + _END.size - 2])


def anchored_size(comment: bytes) -> int | None:
    """The length of the archive that an end record with this comment belongs to; None for any other comment."""
    digits = comment.removeprefix(_MARK)
    if digits == comment or not digits.isdigit() or len(digits) > 19:
        return None
    return int(digits)


def left_behind(ends: Ends, size: int, trailing: bytes) -> bool:
    """Whether `trailing` bytes behind an archive of `size` bytes are an anchor that was cut off, and nothing else."""
    whole = ends.anchor(size)
    at, signature = ends.signature()
    return any(
        not any(trailing[:start]) and _begins(trailing[start:], whole, at, len(signature))
        for start in _sectors(size, len(trailing))
    )


def _sectors(size: int, trailing: int) -> Iterator[int]:
    """Offsets into the bytes behind `size` at which a sector begins."""
    return iter(range(-size % SECTOR, trailing, SECTOR))


def _begins(data: bytes, whole: bytes, at: int, length: int) -> bool:
    """Whether `data` is a beginning of `whole`, of whose bytes from `at` on `length` may still be zero, from any on."""
    if not data or len(data) > len(whole):
        return False
    for written in range(length + 1):
        blank = whole[: at + written] + bytes(length - written) + whole[at + length :]
        if blank.startswith(data):
            return True
    return False


def record_of(before: Superseded) -> bytes:
    """The record of what an archive was, as the bytes that stand in it."""
    return json.dumps({"relocated": _STATED, "size": before.size, "devices": before.moves}).encode()


def read_record(data: bytes) -> Superseded | None:
    """What such a record says; None for what is none, or says more than this version knows."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("relocated") != _STATED:
        return None
    size, devices = found.get("size"), found.get("devices")
    if type(size) is not int or size <= 0 or not isinstance(devices, dict) or not _are_moves(devices):
        return None
    return Superseded(size, devices)


def _are_moves(devices: dict[str, Any]) -> bool:
    return all(
        isinstance(goals, dict) and all(type(number) is int for number in goals.values()) for goals in devices.values()
    )
