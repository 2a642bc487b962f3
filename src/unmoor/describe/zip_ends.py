"""The end records of a ZIP: where its central directory lies, in the old form and in ZIP64's.

A reader that begins at the wrong end of a ZIP can be shown another archive than its writer meant: the end records must
agree with each other and with where they stand.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from unmoor.errors import CorruptFile, FileError, UnsupportedFile
from unmoor.filing import FrontReader, Reader, grain_of, read
from unmoor.values.superseded import anchored_size, split_ends

__all__ = ["End", "prefixed", "read_end"]

_END: Final = Struct("<IHHHHIIH")
_END64: Final = Struct("<IQHHIIQQQQ")
_LOCATOR: Final = Struct("<IIQI")
_END_MARK: Final = b"PK\x05\x06"
_LOCATOR_SIGNATURE: Final = 0x07064B50
_END64_SIGNATURE: Final = 0x06064B50
_MAX_COMMENT: Final = 0xFFFF
_SHORT: Final = 0xFFFF
_LONG: Final = 0xFFFFFFFF


class End(NamedTuple):
    """Number of records, length and offset of the directory, where the end records begin, and what comes after them.

    `interrupted` tells that a relocation was cut off and what it left stands behind the archive.
    """

    entries: int
    size: int
    offset: int
    start: int
    after: int
    interrupted: bool = False


def read_end(reader: Reader) -> End:
    """The end record, in its ZIP64 form where there is one.

    Raises CorruptFile where it is missing, cut short or contradicts its other form, UnsupportedFile for archives that
    are split, or that other data precedes.
    """
    start, at, tail = _found(reader)
    comment = at + _END.size
    whole = anchored_size(tail[comment : comment + _END.unpack_from(tail, at)[-1]])
    return _read_end(reader, start, at, tail) if whole is None else _anchored(reader, start + at, whole)


def _found(reader: Reader) -> tuple[int, int, bytes]:
    """The last bytes of a file, where they begin, and where in them the end record does."""
    start = max(0, reader.size - _END.size)
    tail = read(reader, start, _END.size) if grain_of(reader) else b""
    if tail.rfind(_END_MARK) == 0 and len(tail) == _END.size and not _END.unpack(tail)[-1]:
        return start, 0, tail  # no comment, as of nearly all: less to ask of a server
    start = max(0, reader.size - _END.size - _MAX_COMMENT)
    tail = read(reader, start, reader.size - start)
    at = tail.rfind(_END_MARK)
    if at < 0 or at + _END.size > len(tail):
        raise CorruptFile(
            f"{reader.path} is a truncated zip: no end record, {reader.size:,} bytes",
            details=["The list of its records stands at the end of a zip, and the end of this one is missing."],
            remedy="The save or the copy was cut short. Copy it again, or use the checkpoint before it.",
            path=reader.path,
        )
    return start, at, tail


def _read_end(reader: Reader, start: int, at: int, tail: bytes) -> End:
    _, disk, other_disk, here, entries, size, offset, comment = _END.unpack_from(tail, at)
    after = start + at + _END.size + comment
    if after > reader.size:
        raise CorruptFile(
            f"{reader.path} is a truncated zip: its end record announces {after - reader.size:,} bytes more",
            path=reader.path,
        )
    end = End(entries, size, offset, start + at, after)
    wide = _read_end64(reader, end)
    if wide is None and (disk or other_disk or here != entries):
        raise UnsupportedFile(f"{reader.path} is one part of a zip split over several files", path=reader.path)
    return wide or end


def _anchored(reader: Reader, at: int, size: int) -> End:
    """The end of the archive of `size` bytes that the end record at `at` says it is a copy of, and is."""
    if 0 < size < at:
        front = FrontReader(reader, size)
        end = _read_end(front, *_found(front))
        ends = split_ends(read(reader, end.start, end.after - end.start))
        copied = read(reader, at - len(ends.locator), len(ends.locator) + len(ends.end))
        if end.after == size and copied == ends.locator + ends.end:
            return end._replace(interrupted=True)
    raise CorruptFile(f"{reader.path} is a damaged zip: what it calls its end is none", path=reader.path)


def _read_end64(reader: Reader, end: End) -> End | None:
    """The ZIP64 end record; torch writes one whatever the size. None where no locator stands before the end record."""
    place = end.start - _LOCATOR.size
    raw = read(reader, place, _LOCATOR.size) if place >= 0 else b""
    if len(raw) < _LOCATOR.size or _LOCATOR.unpack(raw)[0] != _LOCATOR_SIGNATURE:
        return None
    declared = _LOCATOR.unpack(raw)[2]
    start = place - _END64.size
    raw = read(reader, start, _END64.size) if start >= 0 else b""
    if len(raw) < _END64.size or _END64.unpack(raw)[0] != _END64_SIGNATURE:
        raise CorruptFile(f"{reader.path} is a damaged zip: no ZIP64 end record before its locator", path=reader.path)
    if declared != start:
        raise prefixed(reader, start - declared)
    _, _, _, _, disk, other_disk, here, entries, size, where = _END64.unpack(raw)
    if disk or other_disk or here != entries:
        raise UnsupportedFile(f"{reader.path} is one part of a zip split over several files", path=reader.path)
    old = (end.entries, _SHORT), (end.size, _LONG), (end.offset, _LONG)
    if any(mine not in (full, theirs) for (mine, full), theirs in zip(old, (entries, size, where), strict=True)):
        raise CorruptFile(
            f"{reader.path} is a damaged zip: its two end records contradict each other", path=reader.path
        )
    return End(entries, size, where, start, end.after)


def prefixed(reader: Reader, nbytes: int) -> FileError:
    """The error for a zip whose offsets count from `nbytes` bytes after the begin of the file."""
    if nbytes < 0:
        return CorruptFile(f"{reader.path} is a damaged zip: {-nbytes:,} bytes of it are missing", path=reader.path)
    if reader.path.endswith(".distcp"):
        what = "is one shard file of a torch.distributed.checkpoint (DCP) folder, no checkpoint by itself"
        return UnsupportedFile(f"{reader.path} {what}", remedy="Open the folder.", path=reader.path)
    return UnsupportedFile(
        f"{reader.path} holds {nbytes:,} bytes before its zip begins",
        remedy="Two saves into one open file, or a file in front of a file? Cut it there: the part behind is a zip.",
        path=reader.path,
    )
