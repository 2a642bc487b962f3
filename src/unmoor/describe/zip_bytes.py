"""The bytes of a ZIP that no checksum covers: headers, padding, data descriptors, end records, held against each other.

No reader looks at most of them, so that damage there harms no tensor; it tells all the same that the disk or the copy
is losing bits. What a header holds must stand in the other list too, or be what its writer always writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from unmoor.filing import FrontReader, Reader, read

from .zip_ends import End, read_end
from .zips import Headers

__all__ = ["stray_bytes"]

_CENTRAL: Final = Struct("<4s6H3I5H2I")
_LOCAL: Final = Struct("<4s5H3I2H")
_END64: Final = Struct("<4sQ2H2I4Q")
_LOCATOR: Final = Struct("<4sIQI")
_END: Final = Struct("<4s4H2IH")
_SHORT_SUMS: Final = Struct("<4s3I")
_LONG_SUMS: Final = Struct("<4sIQQ")
_FIELD: Final = Struct("<HH")
_WIDE: Final = tuple(Struct(f"<{count}Q") for count in range(5))
_DESCRIPTOR: Final = 8
_LONG: Final = 0xFFFFFFFF
_SHORT: Final = 0xFFFF
_LONGEST: Final = 0xFFFF
_ZIP64: Final = 1
_PADDING: Final = int.from_bytes(b"FB", "little")
_WRITERS: Final = frozenset({(0, 0, 0, 0), (20, 0, 0, 0), (45, 0, 0, 0)})
"""What torch's writer and ours say of every record: version made by, disk, internal and external attributes."""
_ENDS: Final = frozenset({(0x031E, 45), (45, 45)})
"""The versions in their ZIP64 end records: made by, needed."""
_FIELDS: Final = ("version", "flags", "method", "time", "date")
_TIMES: Final = 3
_SHOWN: Final = 12


class _Entry(NamedTuple):
    """One entry of the central directory, every field of it."""

    name: bytes
    alike: tuple[int, ...]
    crc32: int
    stored: int
    nbytes: int
    header: int
    made: tuple[int, int, int, int]
    extra: bytes

    @property
    def flags(self) -> int:
        return self.alike[1]


def stray_bytes(reader: Reader) -> list[str]:
    """What is odd about the bytes of the archive behind `reader` that no checksum covers, a line each.

    The archive must have been read before (`read_archive`). What a relocation that was cut off left is not looked at.
    """
    end = read_end(reader)
    if end.interrupted:
        reader = FrontReader(reader, end.after)
    lines = list(_ends(reader, end))
    entries = sorted(_entries(read(reader, end.offset, end.size), end.entries), key=lambda entry: entry.header)
    lines += _strange(entries)
    lines += _between(reader, entries, end.offset)
    more = [f"and {len(lines) - _SHOWN:,} more"] if len(lines) > _SHOWN else []
    return [*lines[:_SHOWN], *more]


def _ends(reader: Reader, end: End) -> Iterator[str]:
    """The end records: what `read_end` did not hold against each other."""
    raw = read(reader, end.start, _END64.size + _LOCATOR.size + _END.size)
    if not raw.startswith(b"PK\6\6"):
        return
    _, disk, other, here, *_ = _END.unpack_from(raw, _END64.size + _LOCATOR.size)
    if not {disk, other} <= {0, _SHORT} or here not in (end.entries, _SHORT):
        yield f"the end record tells of disks {disk} and {other}, and of {here:,} records of {end.entries:,}"
    _, length, made, needed, *_ = _END64.unpack_from(raw)
    _, disk, _, disks = _LOCATOR.unpack_from(raw, _END64.size)
    if length != _END64.size - 12 or (made, needed) not in _ENDS:
        yield f"the ZIP64 end record is of {length:,} bytes, version {made} and {needed}, which no writer says"
    if disk or disks != 1:
        yield f"the locator of the ZIP64 end record tells of disk {disk} of {disks}"


def _entries(raw: bytes, number: int) -> Iterator[_Entry]:
    at = 0
    for _ in range(number):
        _, by, *alike, crc, stored, nbytes, name, extra, comment, disk, internal, external, header = (
            _CENTRAL.unpack_from(raw, at)
        )
        start = at + _CENTRAL.size
        stop = start + name
        fields = raw[stop : stop + extra]
        if _LONG in (nbytes, stored, header):
            nbytes, stored, header = _widened(fields, (nbytes, stored, header))
        yield _Entry(raw[start:stop], tuple(alike), crc, stored, nbytes, header, (by, disk, internal, external), fields)
        at = stop + extra + comment


def _widened(fields: bytes, numbers: tuple[int, int, int]) -> Sequence[int]:
    """The numbers, those that are full taken from the ZIP64 field, which is known to be there."""
    for kind, content in _extra(fields) or ():
        if kind == _ZIP64:
            found = iter(_WIDE[min(len(content) // 8, 4)].unpack_from(content))
            return [next(found, -1) if number == _LONG else number for number in numbers]
    return numbers


def _extra(fields: bytes) -> list[tuple[int, bytes]] | None:
    """The extra fields by kind; None where they do not fill the bytes that they are in."""
    found, at = [], 0
    while at + _FIELD.size <= len(fields):
        kind, length = _FIELD.unpack_from(fields, at)
        at += _FIELD.size + length
        found.append((kind, fields[at - length : at]))
    return found if at == len(fields) else None


def _strange(entries: Sequence[_Entry]) -> Iterator[str]:
    """Entries that say of themselves what the writer of most others never does."""
    known = sum(entry.made in _WRITERS for entry in entries)
    for entry in entries:
        by, disk, *attributes = entry.made
        if disk or (2 * known > len(entries) and entry.made not in _WRITERS):
            yield f"{_text(entry)}: made by version {by}, disk {disk}, attributes {attributes}, unlike the others"
        if entry.extra and _extra(entry.extra) is None:
            yield f"{_text(entry)}: the extra fields of its entry do not fill their place"


def _between(reader: Reader, entries: Sequence[_Entry], directory: int) -> Iterator[str]:
    """What stands between the data of one record and that of the next: a descriptor, a header, padding."""
    headers, before, reached = Headers(reader), None, 0
    for entry in entries:
        if before is not None:
            yield from _descriptor(before, _seen(headers, reached, entry.header))
        fields = _LOCAL.unpack(_seen(headers, entry.header, entry.header + _LOCAL.size))
        start = entry.header + _LOCAL.size + fields[-2] + fields[-1]
        yield from _local(entry, fields, _seen(headers, start - fields[-1], start))
        before, reached = entry, start + entry.stored
    if before is not None:
        after = _seen(headers, reached, directory)
        yield from _descriptor(before, after)
        if before.made in _WRITERS and any(after[_closing_length(before, after) :]):
            yield "between the last record and the directory stand bytes that are not zero, and belong to nothing"


def _closing_length(entry: _Entry, after: bytes) -> int:
    """How many bytes the descriptor of a record takes."""
    if not entry.flags & _DESCRIPTOR:
        return 0
    return 24 if after[8:24] == _WIDE[2].pack(entry.stored, entry.nbytes) else 16


def _seen(headers: Headers, start: int, stop: int) -> bytes:
    """The bytes of a file from `start` to `stop`, of which the longest extra field is the longest run."""
    stop = min(stop, start + _LONGEST)
    if stop <= start:
        return b""
    if start < headers.start or stop > headers.stop:
        headers.read(start, stop - start)
    return bytes(headers.window[start - headers.start : stop - headers.start])


def _local(entry: _Entry, fields: tuple[int, ...], extra: bytes) -> Iterator[str]:
    """A local header beside its entry in the directory. Some writers of others' zips tell two versions and flags."""
    first = 0 if entry.made in _WRITERS else _TIMES
    for what, mine, theirs in list(zip(_FIELDS, fields[1:6], entry.alike, strict=True))[first:]:
        if mine != theirs:
            yield f"{_text(entry)}: its local header says {what} {mine}, the directory {theirs}"
    told = fields[6:9]
    whole = entry.crc32, entry.stored, entry.nbytes
    if entry.made in _WRITERS and _LONG not in told and told not in ((0, 0, 0), whole):
        yield f"{_text(entry)}: its local header tells of a part of its checksum and sizes"
    found = _extra(extra)
    if found is None:
        yield f"{_text(entry)}: the extra fields of its local header do not fill their place"
    for kind, content in found or ():
        if kind == _PADDING and content.strip(b"Z"):
            yield f"{_text(entry)}: its padding is not of the letter that torch pads with"
        sizes = _WIDE[2].unpack(content[:16]) if kind == _ZIP64 and len(content) >= 16 else None
        if sizes is not None and sizes != (entry.nbytes, entry.stored):
            yield f"{_text(entry)}: its local header says {sizes[0]:,} bytes, the directory {entry.nbytes:,}"
    if found and entry.made in _WRITERS and any(kind not in (_PADDING, _ZIP64) for kind, _ in found):
        yield f"{_text(entry)}: its local header holds an extra field that its writer does not write"


def _descriptor(entry: _Entry, after: bytes) -> Iterator[str]:
    """What follows the data of a record: its sum and sizes once more, where its flags say so."""
    if not entry.flags & _DESCRIPTOR:
        return
    sums = entry.crc32, entry.stored, entry.nbytes
    forms = (_SHORT_SUMS, _LONG_SUMS) if max(sums) <= _LONG else (_LONG_SUMS,)
    known = [form.pack(b"PK\7\x08", *sums) for form in forms]
    if not after.startswith((*known, *(form[4:] for form in known))):
        yield f"{_text(entry)}: what follows its data is not its checksum and its length"


def _text(entry: _Entry) -> str:
    return entry.name.decode("utf-8", "replace")
