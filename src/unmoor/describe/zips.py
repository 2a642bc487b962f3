"""The ZIP container, read for itself: where every record lies, and whether the two lists of a ZIP agree.

Follows PKWARE's APPNOTE 6.3 as far as torch's writer uses it: central directory, local headers, ZIP64 sizes.
Knows nothing of tensors. Reads headers only; data is read where a caller asks for one record.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from struct import Struct
from typing import Final, NamedTuple, NoReturn

from unmoor.errors import CorruptFile, HostileFile, UnsupportedFile
from unmoor.filing import Reader, grain_of, read, read_into
from unmoor.values.nodes import Span, inflated
from unmoor.values.text import format_bytes, listing

from .zip_ends import End, prefixed, read_end
from .zip_headers import contradiction, offset_by_rule

__all__ = ["Archive", "Headers", "Record", "read_archive", "record_bytes", "records_named"]

_CENTRAL: Final = Struct("<I4xHH4xIIIHHH8xI")
_LOCAL: Final = Struct("<I2xHH4xIIIHH")
_NONE: Final = (0,) * 10
_FIELD: Final = Struct("<HH")
_ZIP64: Final = 1
_WIDE: Final = tuple(Struct(f"<{count}Q") for count in range(4))
_ALL_WIDE: Final = Struct("<HHQQQ")
_CENTRAL_SIGNATURE: Final = 0x02014B50
_LOCAL_SIGNATURE: Final = 0x04034B50
_MAX_RECORDS: Final = 2_000_000
_MAX_DIRECTORY: Final = 256 << 20
_SHORT: Final = 0xFFFF
_LONG: Final = 0xFFFFFFFF
_FULL: Final = (_LONG,) * 3
_STORED: Final = 0
_DEFLATED: Final = 8
_ENCRYPTED: Final = 1
_DESCRIPTOR: Final = 8
_GROWTH: Final = 32
_FREE: Final = 1 << 20
"""A record may inflate to so many bytes, and beyond that to so many times its own: more than honest ones do."""

_PAGE: Final = 4096
_NEAR: Final = 8192
"""A gap between headers that is read over rather than sought past: a call costs as much as copying so many bytes."""
_WINDOW: Final = 1 << 18
_SHOWN: Final = 12


class Record(NamedTuple):
    """One file of the archive.

    `nbytes` is its length once read, `stored` its length in the archive (shorter where it is compressed). `offset` is
    where its bytes begin, `header` where its local header does. `crc32` is None where the writer left it out.
    """

    name: str
    offset: int
    nbytes: int
    stored: int
    crc32: int | None
    method: int
    header: int

    def span(self, file: str = "", base: int = 0) -> Span:
        """Where its bytes lie as they are, in an archive that begins at byte `base` of `file`."""
        if self.method == _STORED:
            return Span(base + self.offset, self.nbytes, file)
        return Span(0, self.nbytes, inflated(file, base + self.offset, self.stored, self.nbytes))


@dataclass(frozen=True, slots=True)
class Archive:
    """All records of a ZIP file by name, in the order of its directory.

    `directory` is where the central directory lies; `trailing` counts the bytes after the end record, which are what a
    relocation left that was cut off where `interrupted` says so.
    """

    records: dict[str, Record]
    directory: Span
    trailing: int
    interrupted: bool = False


class _Faults:
    """Gathers what is wrong with one archive, to raise it together."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.lines: list[str] = []
        self.count = 0

    def add(self, line: str) -> None:
        self.count += 1
        if self.count <= _SHOWN:
            self.lines.append(line)

    def check(self) -> None:
        if not self.count:
            return
        more = [f"and {self.count - _SHOWN:,} more"] if self.count > _SHOWN else []
        raise CorruptFile(
            f"{self.path} is a damaged zip: its lists of records contradict each other",
            details=[*self.lines, *more],
            path=self.path,
        )


def read_archive(reader: Reader) -> Archive:
    """Every record of the ZIP file behind `reader`.

    Raises CorruptFile naming each fault (no end record, records outside the file or over each other, names or sizes
    that differ between the two lists, duplicate names) and UnsupportedFile for encrypted or split archives.
    """
    end = read_end(reader)
    faults = _Faults(reader.path)
    entries = _directory(reader, end, faults)
    records = _reckoned(reader, end, entries, faults) if grain_of(reader) else _locate(reader, entries, faults)
    faults.check()
    _check_overlap(records, end.offset, faults)
    by_name = {record.name: record for record in records}
    if len(by_name) < len(records):
        _name_duplicates(records, faults)
    faults.check()
    return Archive(by_name, Span(end.offset, end.size), reader.size - end.after, end.interrupted)


def records_named(reader: Reader, end: End, ends: Sequence[str]) -> dict[bytes, Record]:
    """The records whose names end in one of `ends`, by their names as the directory spells them. Others are not seen.

    Raises what `read_archive` does, of these records.
    """
    faults = _Faults(reader.path)
    entries = [entry for entry in _directory(reader, end, faults) if _text(entry.name).endswith(tuple(ends))]
    records = _locate(reader, iter(entries), faults)
    faults.check()
    return {entry.name: record for entry, record in zip(entries, records, strict=True)}


def record_bytes(reader: Reader, record: Record, limit: int) -> bytes:
    """The bytes of one record, inflated where need be and held against its checksum.

    Raises HostileFile where they are more than `limit`, CorruptFile where they do not match.
    """
    if record.nbytes > limit or record.stored > limit:
        raise HostileFile(
            f"{reader.path}: {record.name} takes {format_bytes(max(record.nbytes, record.stored))}, "
            f"more than the {format_bytes(limit)} that such a record may take",
            path=reader.path,
        )
    if record.method and record.nbytes > _FREE + _GROWTH * record.stored:
        raise HostileFile(
            f"{reader.path}: the {format_bytes(record.stored)} of {record.name} inflate to "
            f"{format_bytes(record.nbytes)}, as no such record does",
            path=reader.path,
        )
    data = read(reader, record.offset, record.stored)
    if record.method == _DEFLATED:
        data = _inflate(reader, record, data)
    if record.crc32 is not None and zlib.crc32(data) != record.crc32:
        raise CorruptFile(
            f"{reader.path}: CRC mismatch in {record.name}",
            details=[f"saved {record.crc32:08x}, read {zlib.crc32(data):08x}, {len(data):,} bytes"],
            remedy="The file was damaged after it was written. Copy or download it again.",
            path=reader.path,
        )
    return data


def _inflate(reader: Reader, record: Record, data: bytes) -> bytes:
    engine = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        out = engine.decompress(data, record.nbytes + 1)
    except zlib.error as fault:
        raise CorruptFile(f"{reader.path}: {record.name} does not inflate: {fault}", path=reader.path) from None
    if len(out) != record.nbytes or not engine.eof:
        raise CorruptFile(
            f"{reader.path}: {record.name} does not inflate to the {record.nbytes:,} bytes it declares",
            path=reader.path,
        )
    return out


class _Entry(NamedTuple):
    name: bytes
    flags: int
    method: int
    crc32: int
    stored: int
    nbytes: int
    header: int


def _directory(reader: Reader, end: End, faults: _Faults) -> Iterator[_Entry]:
    if end.offset + end.size > end.start:
        raise CorruptFile(
            f"{reader.path} is a damaged zip: its central directory (bytes {end.offset:,} to "
            f"{end.offset + end.size:,}) reaches over its end record at byte {end.start:,}",
            path=reader.path,
        )
    if end.offset + end.size < end.start:
        raise prefixed(reader, end.start - end.offset - end.size)
    if end.entries > _MAX_RECORDS or end.size > _MAX_DIRECTORY:
        raise HostileFile(
            f"{reader.path} declares {end.entries:,} zip records in a directory of {format_bytes(end.size)}; "
            f"at most {_MAX_RECORDS:,} in {format_bytes(_MAX_DIRECTORY)} are read",
            path=reader.path,
        )
    if end.entries * _CENTRAL.size > end.size:
        raise CorruptFile(
            f"{reader.path} is a damaged zip: {end.entries:,} records do not fit in a directory of {end.size:,} bytes",
            path=reader.path,
        )
    raw, at, unpack, made = read(reader, end.offset, end.size), 0, _CENTRAL.unpack_from, tuple.__new__
    fixed, last, size = _CENTRAL.size, end.size - _CENTRAL.size, end.size
    for number in range(end.entries):
        signature, flags, method, crc32, stored, nbytes, name, extra, comment, header = (
            unpack(raw, at) if at <= last else _NONE
        )
        start = at + fixed
        stop = start + name
        after = stop + extra + comment
        wide: Sequence[int] | None = (nbytes, stored, header)
        if nbytes == _LONG or stored == _LONG or header == _LONG:
            wide = _zip64(raw, stop, extra, (nbytes, stored, header))
        if signature != _CENTRAL_SIGNATURE or after > size or wide is None:
            faults.add(f"record {number:,} of {end.entries:,} is missing from the central directory")
            return
        nbytes, stored, header = wide
        if stored == nbytes:
            stored = nbytes  # one number to keep, not two alike
        yield made(_Entry, (raw[start:stop], flags, method, crc32, stored, nbytes, header))
        at = after
    if at < size:
        faults.add(f"{size - at:,} bytes of the central directory belong to no record")


def _zip64(raw: bytes, start: int, length: int, numbers: tuple[int, int, int]) -> Sequence[int] | None:
    """Size, stored size and header, each that is full taken from the ZIP64 field; None where it has too few."""
    if numbers == _FULL and length == _ALL_WIDE.size and start + length <= len(raw):
        kind, inner, nbytes, stored, header = _ALL_WIDE.unpack_from(raw, start)
        if kind == _ZIP64 and inner == _WIDE[3].size:  # as torch writes it where an archive is large
            return nbytes, stored, header
    extra, wanted, at = raw[start : start + length], numbers.count(_LONG), 0
    while at + _FIELD.size <= len(extra):
        kind, length = _FIELD.unpack_from(extra, at)
        at += _FIELD.size
        if kind == _ZIP64 and length >= _WIDE[wanted].size and at + length <= len(extra):
            found = iter(_WIDE[wanted].unpack_from(extra, at))
            return [next(found) if number == _LONG else number for number in numbers]
        at += length
    return None


class Headers:
    """Local headers by position, read in windows: the headers of small records lie close together.

    A window is a page, and twice the one before it where the header looked for lies just behind that: what is read is
    at most in proportion to the bytes between headers.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.window = bytearray(_PAGE)
        self.view = memoryview(self.window)
        self.start = self.stop = 0

    def read(self, header: int, length: int) -> None:
        """Bring `length` bytes from `header`, which the file is known to hold, into the window."""
        far = header > self.stop + _NEAR and length <= _PAGE == len(self.window)
        if far and header + _PAGE <= self.reader.size:  # as each is where tensors are large
            self.start, self.stop = header, header + _PAGE
            self._fill(self.view)
            return
        near = self.start <= header <= self.stop + _NEAR and self.stop > 0
        wanted = max(length, min(2 * len(self.window), _WINDOW) if near else _PAGE)
        if len(self.window) != wanted:
            self.window = bytearray(wanted)
            self.view = memoryview(self.window)
        self.start, self.stop = header, min(header + wanted, self.reader.size)
        self._fill(self.view[: self.stop - header])

    def _fill(self, view: memoryview) -> None:
        done = self.reader.some_into(self.start, view)
        if done < len(view):
            read_into(self.reader, self.start + done, view[done:])


def _reckoned(reader: Reader, end: End, entries: Iterable[_Entry], faults: _Faults) -> list[Record]:
    """The records behind a server, where reading each local header would be a request for each tensor.

    Torch's writer places records by a rule. Where that leads from the header of one exactly to that of the next, it
    says where the data begins; the other headers are read.
    """
    listed = list(entries)
    after = dict(pairwise(sorted([*(entry.header for entry in listed), end.offset])))
    offsets = [offset_by_rule(*entry, after.get(entry.header, -1)) for entry in listed]
    asked = iter(_locate(reader, [entry for entry, at in zip(listed, offsets, strict=True) if at is None], faults))
    rows = zip(listed, offsets, strict=True)
    made = (next(asked, None) if offset is None else _record(entry, offset) for entry, offset in rows)
    return [record for record in made if record is not None]


def _locate(reader: Reader, entries: Iterable[_Entry], faults: _Faults) -> list[Record]:
    """Read each local header: only it says where the data begins."""
    headers, unpack, size, made = Headers(reader), _LOCAL.unpack_from, reader.size, tuple.__new__
    records: list[Record] = []
    window, start, stop = headers.window, 0, 0
    for entry in entries:
        name, flags, method, crc32, stored, nbytes, header = entry
        after = header + _LOCAL.size + len(name)
        if after > size:
            faults.add(f"{_text(name)}: its local header at byte {header:,} is past the end of the file")
            continue
        if header < start or after > stop:
            headers.read(header, after - header)
            window, start, stop = headers.window, headers.start, headers.stop
        fields = unpack(window, header - start)
        offset = after + fields[-1]
        at, told, length = header - start + _LOCAL.size, fields[:-1], len(name)
        plain = not method and stored == nbytes and window[at : after - start] == name
        if plain and (
            told == (_LOCAL_SIGNATURE, flags, method, crc32, stored, nbytes, length)
            or (flags & _DESCRIPTOR and told == (_LOCAL_SIGNATURE, flags, method, 0, 0, 0, length))
        ):
            why = ""  # as nearly all are, and as `_contradiction` would find
        else:
            why = contradiction(entry, fields, window[at : after - start])
        if why:
            faults.add(f"{_text(name)}: {why} (local header at byte {header:,})")
        elif offset + stored > size:
            faults.add(f"{_text(name)}: its {stored:,} bytes reach {offset + stored - size:,} past the end of the file")
        elif flags & _ENCRYPTED or method not in (_STORED, _DEFLATED):
            _refuse(reader.path, entry)
        else:
            text = name.decode("utf-8", "replace")
            crc = crc32 or (None if nbytes else 0)
            records.append(made(Record, (text, offset, nbytes, stored, crc, method, header)))
    return records


def _record(entry: _Entry, offset: int) -> Record:
    name, _, method, crc32, stored, nbytes, header = entry
    return Record(_text(name), offset, nbytes, stored, crc32 or (None if nbytes else 0), method, header)


def _refuse(path: str, entry: _Entry) -> NoReturn:
    how = "encrypted" if entry.flags & _ENCRYPTED else f"compressed by method {entry.method}"
    raise UnsupportedFile(f"{path}: {_text(entry.name)} is {how}; torch cannot read that either", path=path)


def _check_overlap(records: Sequence[Record], directory: int, faults: _Faults) -> None:
    """Records in the order of the file must end where the next begins; a deceiver lets two names share bytes."""
    reached = 0
    for _, offset, _, stored, _, _, header in records:
        if header < reached:
            break
        reached = offset + stored
    else:
        if reached <= directory:
            return
    ordered = sorted(records, key=lambda record: record.header)
    for record, following in zip_longest(ordered, ordered[1:]):
        limit = directory if following is None else following.header
        if record.offset + record.stored > limit:
            whom = "the central directory" if following is None else following.name
            faults.add(f"{record.name}: its bytes run into {whom} at byte {limit:,}")


def _name_duplicates(records: Sequence[Record], faults: _Faults) -> None:
    seen: set[str] = set()
    twice = [record.name for record in records if record.name in seen or seen.add(record.name)]  # type: ignore[func-returns-value]
    faults.add(f"names that occur twice: {listing(twice)}")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
