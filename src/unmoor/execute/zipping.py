"""The ZIP structures of a torch archive: where every record goes, and the bytes around it.

Pure: sizes, offsets and checksums in, offsets and bytes out. After PKWARE's APPNOTE 6.3.9 and PyTorch's
`caffe2/serialize/inline_container.cc`. PyTorch computes the offsets of storages instead of reading them (under
FakeTensorMode, and on request), so headers, padding and data descriptors take the very bytes that its own writer gives
them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

__all__ = ["ALIGNMENT", "ZIP64_FROM", "Member", "central", "descriptor", "directory", "end_records", "local_header",
           "place"]  # fmt: skip

#: Record data begins at multiples of this.
ALIGNMENT: Final = 64
#: Sizes and offsets from here on need the fields of ZIP64.
ZIP64_FROM: Final = 0xFFFFFFFF

_LOCAL: Final = struct.Struct("<4s5H3I2H")
_CENTRAL: Final = struct.Struct("<4s6H3I5H2I")
_END64: Final = struct.Struct("<4sQ2H2I4Q")
_LOCATOR: Final = struct.Struct("<4sIQI")
_END: Final = struct.Struct("<4s4H2IH")
_DESCRIPTOR: Final = struct.Struct("<4sIII")
_LONG_DESCRIPTOR: Final = struct.Struct("<4sIQQ")
_WIDE: Final = struct.Struct("<2H2Q")
_FULL32, _FULL16 = 0xFFFFFFFF, 0xFFFF
_UTF8, _DESCRIPTOR_FOLLOWS = 0x0800, 0x0008
_PLAIN, _ZIP64 = 20, 45
_TIME, _DATE = 0, (1 << 5) | 1  # midnight of 1980-01-01: the same state gives the same bytes
_PADDING_TAG: Final = b"FB"
_FIXED: Final = _LOCAL.size + 4


class Member(NamedTuple):
    """Where one record stands in an archive: its header, its data, and what follows them.

    `long` tells that its size needs ZIP64, `far` that its offset does, `utf8` that its name says how it is encoded.
    """

    name: bytes
    nbytes: int
    header: int
    data: int
    end: int
    long: bool
    far: bool
    utf8: bool = True

    @property
    def data_end(self) -> int:
        """The offset just past the data, where the data descriptor stands."""
        return self.data + self.nbytes


def place(sizes: Iterable[tuple[str | bytes, int]], start: int, *, zip64_from: int) -> Iterator[Member]:
    """Give every (name, nbytes) its place, one behind the other from `start`."""
    for name, nbytes in sizes:
        encoded = name.encode() if isinstance(name, str) else name
        long, far = nbytes >= zip64_from, start >= zip64_from
        data = start + _FIXED + len(encoded)
        if long or far:
            data += 4 + (16 if long else 0) + (8 if far else 0)
        data += -data % ALIGNMENT
        end = data + nbytes
        if nbytes:
            end += 24 if long or far else 16
        yield Member(encoded, nbytes, start, data, end, long, far)
        start = end


def local_header(member: Member, crc: int) -> bytes:
    """The bytes from `member.header` to `member.data`."""
    name, nbytes, header, data, _, long, far, utf8 = member
    size = _FULL32 if long else nbytes
    wide = _WIDE.pack(1, 16, nbytes, nbytes) if long else b""
    extra = data - header - _LOCAL.size - len(name)
    flags, version = _flags(nbytes, utf8=utf8), _ZIP64 if long or far else _PLAIN
    fixed = _LOCAL.pack(b"PK\3\4", version, flags, 0, _TIME, _DATE, crc, size, size, len(name), extra)
    return fixed + name + wide + _padding(extra - len(wide))


@lru_cache(maxsize=256)
def _padding(nbytes: int) -> bytes:
    """An extra field of `nbytes` bytes, 4 of which are its head."""
    return _PADDING_TAG + struct.pack("<H", nbytes - 4) + b"Z" * (nbytes - 4)


def descriptor(member: Member, crc: int) -> bytes:
    """The bytes from `member.data_end` to `member.end`."""
    nbytes = member.nbytes
    if not nbytes:
        return b""
    form = _LONG_DESCRIPTOR if member.long or member.far else _DESCRIPTOR
    return form.pack(b"PK\7\x08", crc, nbytes, nbytes)


def directory(members: Sequence[Member], crcs: Sequence[int], start: int, *, zip64_from: int) -> bytes:
    """The central directory, to stand at `start`, and the end of the archive."""
    entries = b"".join(central(member, crc) for member, crc in zip(members, crcs, strict=True))
    return entries + end_records(len(members), len(entries), start, zip64_from=zip64_from)


def end_records(number: int, size: int, start: int, *, zip64_from: int) -> bytes:
    """The end of an archive behind a directory of `number` entries and `size` bytes that stands at `start`."""
    end = b""
    if number >= _FULL16 or size >= zip64_from or start >= zip64_from:
        end += _END64.pack(b"PK\6\6", _END64.size - 12, _ZIP64, _ZIP64, 0, 0, number, number, size, start)
        end += _LOCATOR.pack(b"PK\6\7", 0, start + size, 1)
    short = min(number, _FULL16)
    size32 = size if size < zip64_from else _FULL32
    start32 = start if start < zip64_from else _FULL32
    return end + _END.pack(b"PK\5\6", 0, 0, short, short, size32, start32, 0)


def central(member: Member, crc: int) -> bytes:
    """The entry of one record in the central directory."""
    name, nbytes, header, _, _, long, far, utf8 = member
    extra = b""
    if long or far:
        values = ([nbytes, nbytes] if long else []) + ([header] if far else [])
        extra = struct.pack(f"<2H{len(values)}Q", 1, 8 * len(values), *values)
    size, flags, version = _FULL32 if long else nbytes, _flags(nbytes, utf8=utf8), _ZIP64 if long or far else _PLAIN
    fixed = _CENTRAL.pack(
        b"PK\1\2", version, version, flags, 0, _TIME, _DATE, crc, size, size, len(name), len(extra), 0, 0, 0, 0,
        _FULL32 if far else header,
    )  # fmt: skip
    return fixed + name + extra


def _flags(nbytes: int, *, utf8: bool) -> int:
    return (_UTF8 if utf8 else 0) | (_DESCRIPTOR_FOLLOWS if nbytes else 0)
