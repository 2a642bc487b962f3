"""Every record that a damaged ZIP may hold, by all that tells of one: local headers, directory, data descriptors.

Nothing is believed here. A record has several candidates where the lists disagree; its checksum decides between them.
Reads the whole file once for its marks; no size that a file declares makes anything larger than what it holds.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import Any, Final

from unmoor.errors import HostileFile
from unmoor.filing import Reader, read

from .zips import Record

__all__ = ["candidates", "prefix_of", "spanned"]

_LOCAL: Final = Struct("<4s5H3I2H")
_CENTRAL: Final = Struct("<4s6H3I5H2I")
_SUMS: Final = (Struct("<4sIII"), Struct("<4sIQQ"))
_END: Final = Struct("<4s4H2IH")
_END64: Final = Struct("<4sQ2H2I4Q")
_LOCATOR: Final = 20
_LOCAL_MARK, _CENTRAL_MARK, _SUMS_MARK, _END_MARK = b"PK\3\4", b"PK\1\2", b"PK\7\x08", b"PK\5\6"
_FIELD: Final = Struct("<HH")
_WINDOW: Final = 4 << 20
_MARK: Final = 4
_MOST: Final = 2_000_000
_LONGEST_NAME: Final = 4096
_ALIGNMENT: Final = 64
_LONG: Final = 0xFFFFFFFF
_ZIP64: Final = 1
_DESCRIPTOR: Final = 8
_METHODS: Final = (0, 8)
_PICKLE: Final = "data.pkl"


def candidates(reader: Reader) -> dict[str, list[Record]]:
    """The records by name, each with all places where it may lie, the likeliest first.

    Of records that bear one name the later generation counts, which a relocation appended behind a whole archive; what
    lies inside the data of another record comes last, because that is a file within the file.

    Raises HostileFile for a file with more marks of records than any checkpoint has.
    """
    marks = _marks(reader)
    ends = _ends(reader, marks[_SUMS_MARK])
    local = [one for at in marks[_LOCAL_MARK] if (one := _local(reader, at, ends)) is not None]
    starts = {record.header: record for record in local}
    central = [one for at in marks[_CENTRAL_MARK] for one in _central(reader, at, starts)]
    whole = [at for at in marks[_END_MARK] if _is_end(reader, at)]
    inner = _nested(local)
    found: dict[str, list[Record]] = {}
    for record in (*central, *local):
        found.setdefault(record.name, []).append(record)

    def order(record: Record) -> tuple[bool, bool, int, int]:
        return record.stored < 0, record.header in inner, -bisect(whole, record.header), record.header

    return {name: sorted(_distinct(records), key=order) for name, records in found.items()}


def _nested(local: Sequence[Record]) -> set[int]:
    """The headers that stand within the data of a record before them."""
    found, reached = set[int](), 0
    for record in local:
        if record.header < reached:
            found.add(record.header)
        elif record.stored > 0:
            reached = record.offset + record.stored
    return found


def _is_end(reader: Reader, at: int) -> bool:
    """Whether an end record stands behind its directory, as that of an archive does which begins with the file."""
    raw = read(reader, at, _END.size)
    if len(raw) < _END.size:
        return False
    *_, size, offset, _ = _END.unpack(raw)
    wide = read(reader, at - _LOCATOR - _END64.size, _END64.size) if at >= _LOCATOR + _END64.size else b""
    if wide.startswith(b"PK\6\6"):
        *_, size, offset = _END64.unpack(wide)
        at -= _LOCATOR + _END64.size
    return bool(size) and offset + size == at and read(reader, offset, _MARK) == _CENTRAL_MARK


def prefix_of(names: Sequence[str]) -> str:
    """What the names of the records begin with: the folder of the pickle, else that of most."""
    homes = [name.removesuffix(_PICKLE) for name in names if name == _PICKLE or name.endswith("/" + _PICKLE)]
    if homes:
        return min(homes, key=len)
    tops = Counter(name.partition("/")[0] + "/" for name in names if "/" in name)
    return tops.most_common(1)[0][0] if tops else ""


def spanned(manifest: Mapping[str, Any], prefix: str, size: int) -> Iterator[Record]:
    """The records of storages as a manifest tells of them: offset, bytes and checksum by key."""
    rows = manifest.get("storages")
    for key, row in rows.items() if isinstance(rows, Mapping) else ():
        if isinstance(row, list | tuple) and len(row) == 3 and all(type(number) is int for number in row):
            offset, nbytes, crc = row
            if 0 <= offset <= offset + nbytes <= size:
                yield Record(f"{prefix}data/{key}", offset, nbytes, nbytes, crc, 0, offset)


def _marks(reader: Reader) -> dict[bytes, list[int]]:
    """Where the marks of headers, directory entries and descriptors stand, data that looks like one included."""
    found: dict[bytes, list[int]] = {mark: [] for mark in (_LOCAL_MARK, _CENTRAL_MARK, _SUMS_MARK, _END_MARK)}
    number = 0
    for start in range(0, reader.size, _WINDOW):
        window = read(reader, start, min(_WINDOW + _MARK - 1, reader.size - start))
        at = window.find(b"PK")
        while 0 <= at < _WINDOW:
            places = found.get(window[at : at + _MARK])
            if places is not None:
                places.append(start + at)
                number += 1
            at = window.find(b"PK", at + 2)
        if number > 3 * _MOST:
            raise HostileFile(
                f"{reader.path} holds more than {3 * _MOST:,} marks of zip records, as no checkpoint does",
                path=reader.path,
            )
    return found


def _ends(reader: Reader, places: Sequence[int]) -> dict[int, tuple[int, int, int]]:
    """First byte of data that a descriptor fits behind -> its end, its length once inflated, its checksum."""
    found: dict[int, tuple[int, int, int]] = {}
    for at in places:
        raw = read(reader, at, _SUMS[1].size)
        for form in _SUMS:
            if len(raw) >= form.size:
                _, crc, stored, nbytes = form.unpack_from(raw)
                if stored <= at:
                    found.setdefault(at - stored, (at, nbytes, crc))
    return found


def _local(reader: Reader, at: int, ends: Mapping[int, tuple[int, int, int]]) -> Record | None:
    """The record of a local header; what a stream leaves out there is taken from the descriptor behind the data."""
    raw = read(reader, at, _LOCAL.size)
    if len(raw) < _LOCAL.size:
        return None
    _, _, flags, method, _, _, crc, stored, nbytes, length, extra = _LOCAL.unpack(raw)
    name = _name(read(reader, at + _LOCAL.size, length)) if 0 < length <= _LONGEST_NAME else None
    if name is None or method not in _METHODS:
        return None
    offset = at + _LOCAL.size + length + extra
    if _LONG in (stored, nbytes):
        nbytes, stored = _wide(read(reader, offset - extra, extra), nbytes, stored)
    if flags & _DESCRIPTOR and not stored:
        end, nbytes, crc = ends.get(offset, (-1, 0, 0))
        stored = max(0, end - offset)
        if end < 0:  # cut short, or its end is damaged: how long it should be only the pickle tells
            return Record(name, offset, -1, -1, None, method, at)
    if offset + stored > reader.size:
        return Record(name, offset, -1, -1, crc or None, method, at)
    return Record(name, offset, nbytes, stored, crc or (None if nbytes else 0), method, at)


def _central(reader: Reader, at: int, starts: Mapping[int, Record]) -> Iterator[Record]:
    """The record of an entry of the directory: where its local header says, and where torch's writer would have it."""
    raw = read(reader, at, _CENTRAL.size)
    if len(raw) < _CENTRAL.size:
        return
    _, _, _, _, method, _, _, crc, stored, nbytes, length, extra, _, _, _, _, header = _CENTRAL.unpack(raw)
    name = _name(read(reader, at + _CENTRAL.size, length)) if 0 < length <= _LONGEST_NAME else None
    if name is None or method not in _METHODS:
        return
    long, far = _LONG in (stored, nbytes), header == _LONG
    if long or far:
        fields = read(reader, at + _CENTRAL.size + length, extra)
        nbytes, stored, header = _wide(fields, nbytes, stored, header)
    plain = header + _LOCAL.size + length
    padded = plain + 4 + ((4 if long or far else 0) + (16 if long else 0) + (8 if far else 0))
    own = starts.get(header)
    places = [own.offset] if own is not None and own.name == name else []
    for offset in dict.fromkeys([*places, padded + -padded % _ALIGNMENT, plain]):
        if offset + stored <= reader.size:
            yield Record(name, offset, nbytes, stored, crc or (None if nbytes else 0), method, header)
            if crc == 0:
                return  # nothing could tell the places apart


def _wide(fields: bytes, *numbers: int) -> list[int]:
    """The numbers, those that are full taken from the ZIP64 field; as they are where it has none."""
    at = 0
    while at + _FIELD.size <= len(fields):
        kind, length = _FIELD.unpack_from(fields, at)
        at += _FIELD.size
        if kind == _ZIP64:
            content = fields[at : at + length]
            words = (int.from_bytes(content[i : i + 8], "little") for i in range(0, len(content) - 7, 8))
            return [next(words, number) if number == _LONG else number for number in numbers]
        at += length
    return list(numbers)


def _name(raw: bytes) -> str | None:
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return name if name.isprintable() else None


def _distinct(records: Sequence[Record]) -> list[Record]:
    """Each place once, in their order."""
    seen: dict[tuple[int, int, int | None], Record] = {}
    for record in records:
        seen.setdefault((record.offset, record.stored, record.crc32), record)
    return list(seen.values())
