"""The items of a shard file: small torch archives, one behind the other, each read by its own directory.

A folder may hold a hundred thousand of them that differ in nothing but their data. What decided how one was read is
kept; an item whose bytes are the same, all but those that decide nothing (data, checksums, its random id), is known
without being taken apart again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

from unmoor.errors import CorruptFile, FileError
from unmoor.filing import Reader, grain_of, read
from unmoor.values.nodes import Span, Storage, TensorNode

from .reading import Reading
from .torch_zip import Saved, read_saved
from .zip_bytes import stray_bytes
from .zips import Record, read_archive

__all__ = ["Item", "Items", "Slice"]

_WHOLE: Final = 32 << 10
"""Items up to this size are read by one call, data included."""
_SHAPES: Final = 4
_KNOWN: Final = 4096
_CRC: Final = 16
_LENGTHS: Final = 28
_SUMMED: Final = 8
_ENTRY: Final = 46
_FIELDS: Final = Struct("<HHH")
_NUMBER: Final = Struct("<I").unpack_from
_IDENTITY: Final = ".data/serialization_id"
_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None))


class Slice:
    """A range of a file as a file of its own. `path` is what messages call it."""

    def __init__(self, reader: Reader, offset: int, nbytes: int, path: str) -> None:
        self.path, self.size = path, nbytes
        self._reader, self._offset = reader, offset
        self.grain = grain_of(reader)

    def some_into(self, offset: int, target: memoryview) -> int:
        """Read at most len(target) bytes from `offset` of the range."""
        rest = target[: max(0, self.size - offset)]
        return self._reader.some_into(self._offset + offset, rest) if rest else 0


@dataclass(frozen=True, slots=True)
class Item:
    """One item: what it holds, its storages, why the data of one cannot be had, and its reading if it was read."""

    value: Any
    storages: tuple[Storage, ...]
    fault: str = ""
    reading: Reading | None = None


@dataclass(frozen=True, slots=True)
class _Shape:
    """How an item is laid out: where its data lies, and which of the other bytes decide how it is read.

    `kept` are ranges of the bytes without the data; `crc` is where the checksum of the data stands in there, `sums`
    where that of each record does which may differ, by its name; `ends` are the lengths of these and where the bytes
    after their data stand in there, from and to.
    """

    nbytes: int
    data: int
    data_end: int
    crc: int
    kept: tuple[tuple[int, int], ...]
    sums: tuple[tuple[str, int], ...]
    ends: tuple[tuple[str, int, int, int], ...]

    def outside(self, reader: Reader, at: int) -> bytes:
        """The bytes of the item at `at` without its data."""
        if self.nbytes <= _WHOLE:
            raw = read(reader, at, self.nbytes)
            return raw[: self.data] + raw[self.data_end :]
        return read(reader, at, self.data) + read(reader, at + self.data_end, self.nbytes - self.data_end)

    def deciding(self, outside: bytes) -> bytes:
        """The bytes that decide how the item is read."""
        return b"".join([outside[a:b] for a, b in self.kept])

    def damaged_ends(self, outside: bytes) -> list[str]:
        """The records whose checksum does not stand behind their data too, as torch writes it."""
        sums = dict(self.sums)
        return [
            f"{name}: what follows its data is not its checksum and its length"
            for name, nbytes, start, stop in self.ends
            if outside[start:stop] != _closing(outside[sums[name] : sums[name] + 4], nbytes, stop - start)
        ]


def _closing(crc: bytes, nbytes: int, length: int) -> bytes:
    """The data descriptor of so many bytes; nothing where none has its length."""
    width = (length - _SUMMED) // 2
    return b"PK\7\x08" + crc + 2 * (nbytes % 256**width).to_bytes(width, "little") if width > 0 else b""


class Items:
    """Reads items of one file after another; what it learns from one it knows of the next."""

    def __init__(self) -> None:
        self._shapes: dict[int, list[_Shape]] = {}
        self._known: dict[tuple[_Shape, bytes], Any] = {}
        self._rows: dict[tuple[_Shape, bytes], list[tuple[Record, int | None]]] = {}

    def read(self, reader: Reader, file: str, at: int, nbytes: int) -> Item:
        """The item of `nbytes` bytes at `at` of `file`. Raises FileError where it is no sound archive of torch."""
        if at + nbytes > reader.size:
            raise CorruptFile(
                f"its bytes {at:,} to {at + nbytes:,} of {file} are missing: the file ends at byte {reader.size:,}"
            )
        found = self._find(reader, at, nbytes)
        if found is not None:
            (shape, deciding), outside = found
            return self._again(self._known[shape, deciding], shape, outside, file, at)
        return self._first(reader, file, at, nbytes)

    def records(self, reader: Reader, file: str, at: int, nbytes: int, title: str) -> tuple[list[Record], list[str]]:
        """The records of an item and their checksums, and what is odd about the bytes that these do not cover.

        `title` is what messages call it. Raises FileError where it is no sound zip. One that no tensor can be read from
        has records all the same.
        """
        found = self._find(reader, at, nbytes)
        rows = self._rows.get(found[0]) if found is not None else None
        if found is not None and rows is not None:
            outside = found[1]
            told = [row if place is None else row._replace(crc32=_sum(outside, place, row)) for row, place in rows]
            return told, found[0][0].damaged_ends(outside)
        whole = Slice(reader, at, nbytes, title)
        archive, odd = read_archive(whole), [] if whole.grain else stray_bytes(whole)
        try:
            if found is None:
                self._first(reader, file, at, nbytes)
                found = self._find(reader, at, nbytes)
        except FileError:
            found = None
        records = list(archive.records.values())
        if found is not None and not odd:
            places = dict(found[0][0].sums)
            self._rows[found[0]] = [(record, places.get(record.name)) for record in records]
        return records, odd

    def _find(self, reader: Reader, at: int, nbytes: int) -> tuple[tuple[_Shape, bytes], bytes] | None:
        """What is known of an item, and its bytes without the data; None where nothing is."""
        for shape in self._shapes.get(nbytes, ()):
            outside = shape.outside(reader, at)
            known = shape, shape.deciding(outside)
            if known in self._known:
                return known, outside
        return None

    def _first(self, reader: Reader, file: str, at: int, nbytes: int) -> Item:
        saved = read_saved(Slice(reader, at, nbytes, f"{reader.path}: the item at byte {at:,}"), file, at)
        self._learn(reader, saved, at, nbytes)
        fault = next(iter(saved.faults.values()), "")
        return Item(saved.reading.value, tuple(saved.storages.values()), fault, saved.reading)

    def _again(self, known: Any, shape: _Shape, outside: bytes, file: str, at: int) -> Item:
        if type(known) is not TensorNode or known.storage is None:
            return Item(known, ())
        crc32: int | None = _NUMBER(outside, shape.crc)[0]
        nbytes = shape.data_end - shape.data
        crc32 = crc32 or (None if nbytes else 0)
        old, key = known.storage, f"{file}{f'@{at}' if at else ''}/{known.storage.key.rpartition('/')[2]}"
        span = Span(at + shape.data, nbytes, file)
        storage = Storage(key, old.dtype, old.nbytes, old.device, span, crc32, old.byteorder)
        node = TensorNode(storage, known.offset, known.shape, known.stride, known.dtype, known.device,
                          known.requires_grad, known.parameter, known.bits)  # fmt: skip
        return Item(node, (storage,))

    def _learn(self, reader: Reader, saved: Saved, at: int, nbytes: int) -> None:
        value, storages = saved.reading.value, list(saved.storages.values())
        tensor = type(value) is TensorNode and value.quantizer is None and storages == [value.storage]
        if saved.faults or saved.reading.calls or not (tensor or (not storages and _is_plain(value))):
            return
        record = None
        if tensor:
            record = saved.archive.records.get(f"{saved.prefix}data/{storages[0].key.rpartition('/')[2]}")
            if record is None or record.method:
                return
        shapes = self._shapes.setdefault(nbytes, [])
        shape = _shape(reader, saved, at, nbytes, record)
        if shape not in shapes:
            shapes.insert(0, shape)
            del shapes[_SHAPES:]
        if len(self._known) >= _KNOWN:
            self._known.clear()
            self._rows.clear()
        self._known[shape, shape.deciding(shape.outside(reader, at))] = value


def _sum(outside: bytes, place: int, record: Record) -> int | None:
    """The checksum that stands at `place`; a zip has 0 for that of nothing, and where there is none."""
    crc32: int = _NUMBER(outside, place)[0]
    return crc32 or (None if record.nbytes else 0)


def _is_plain(value: Any) -> bool:
    """Whether a value can be shared by all who hold one like it."""
    return type(value) in _PLAIN or (type(value) is tuple and all(type(part) in _PLAIN for part in value))


def _shape(reader: Reader, saved: Saved, at: int, nbytes: int, record: Record | None) -> _Shape:
    """Where the bytes of an item are that decide nothing: data, random id, what follows either, their checksums."""
    free = {record.name if record is not None else "", saved.prefix + _IDENTITY}
    data, data_end = (record.offset, record.offset + record.stored) if record is not None else (nbytes, nbytes)
    holes, crc, sums, ends = [], nbytes, [], []
    headers = sorted([other.header for other in saved.archive.records.values()] + [saved.archive.directory.offset])
    for name, entry in _entries(reader, saved, at):
        if name in free:
            held = saved.archive.records[name]
            end = next(header for header in headers if header >= held.offset + held.stored)
            holes += [(held.offset, end), (entry + _CRC, entry + _CRC + 4)]
            crc = entry + _CRC if record is not None and name == record.name else crc
            sums.append((name, entry + _CRC))
            ends.append((name, held.stored, held.offset + held.stored, end))
    kept, place = [], 0
    for start, stop in [*sorted(holes), (nbytes, nbytes)]:
        kept += [(place, start)] if place < start else []
        place = max(place, stop)
    missing = data_end - data
    inside = tuple((a - missing * (a >= data_end), b - missing * (b > data)) for a, b in kept)
    after = tuple(
        (name, size, start - missing * (start >= data_end), stop - missing * (stop >= data_end))
        for name, size, start, stop in ends
    )
    return _Shape(nbytes, data, data_end, crc - missing, inside,
                  tuple((name, at - missing) for name, at in sums), after)  # fmt: skip


def _entries(reader: Reader, saved: Saved, at: int) -> Iterator[tuple[str, int]]:
    """Name and place of each entry of the central directory, which was read before and is sound."""
    span, place = saved.archive.directory, 0
    raw = read(reader, at + span.offset, span.nbytes)
    for name in saved.archive.records:
        yield name, span.offset + place
        place += _ENTRY + sum(_FIELDS.unpack_from(raw, place + _LENGTHS))
