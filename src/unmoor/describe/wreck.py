"""What a damaged file still says: a tree, its storages, and why some of them cannot be had.

`Wreck` is what the readers of the formats make of one; each lost storage has its reason. Nothing is run, nothing is
raised for what is merely lost, and no size is believed that the file does not hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from unmoor.errors import CorruptFile, FileError
from unmoor.filing import Reader, read
from unmoor.values.dtypes import DTYPES
from unmoor.values.manifests import parsed, sound
from unmoor.values.nodes import Span, Storage, TensorNode
from unmoor.values.text import count

from .assemble import Contents
from .machine import Machine
from .mending import mended
from .reading import MAX_PICKLE, Reading, read_partly, read_pickle
from .rebuild import storage_parts
from .walk import visits, walk
from .wrecked_zip import prefix_of, spanned
from .zips import Record, record_bytes

__all__ = ["Chosen", "Wreck", "read_wrecked_zip", "sums_told"]

_PICKLE: Final = "data.pkl"
_MANIFEST: Final = "unmoor/manifest.json"
_STORAGES: Final = "data/"
_RAW: Final = "storages"
_PID_FIELDS: Final = 5
_MAX_MANIFEST: Final = 64 << 20
_SMALL: Final = 1 << 10


@dataclass(frozen=True, slots=True)
class Chosen:
    """The place of a record that is believed: `holds` tells that its checksum held, None that it has none.

    Where it did not hold, `why` says what was read.
    """

    record: Record
    holds: bool | None
    why: str = ""


@dataclass(slots=True)
class Wreck:
    """`contents` as the reader of a whole file would give them; `faults` say by storage key why its data is lost.

    Of these, `values` stand for plain values, and of `damaged` the bytes are there and are not what was saved. `notes`
    tell how it was read; `unnamed` that names and values may be wrong, because nothing vouches for them. `entries` are
    what was lost before it was a tensor, by name, with the reason.
    """

    contents: Contents
    faults: dict[str, str] = field(default_factory=dict)
    values: set[str] = field(default_factory=set)
    damaged: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    unnamed: bool = False
    entries: dict[str, str] = field(default_factory=dict)


def read_wrecked_zip(reader: Reader, file: str, chosen: Mapping[str, Chosen], *, base: int = 0) -> Wreck:
    """What the archive of torch behind `reader` says, of whose records `chosen` are the places.

    Where the pickle is damaged it is mended by its checksum, else read as far as it goes; storages that it does not
    name are given by their number, as bytes. Raises CorruptFile where nothing can be had at all.
    """
    return _Zip(reader, file, chosen, base).read()


def sums_told(reader: Reader, chosen: Mapping[str, Chosen]) -> dict[str, list[Record]]:
    """Where the manifest says that the storages lie, where one can be read: it says so once more than the zip does."""
    prefix = prefix_of(list(chosen))
    place = chosen.get(prefix + _MANIFEST)
    if place is None or not place.holds or place.record.method or place.record.nbytes > _MAX_MANIFEST:
        return {}
    manifest = _parsed(read(reader, place.record.offset, place.record.nbytes))
    return {} if manifest is None else {row.name: [row] for row in spanned(manifest, prefix, reader.size)}


def _parsed(data: bytes) -> dict[str, Any] | None:
    try:
        manifest = parsed(data)
    except (ValueError, RecursionError):
        return None
    return manifest if type(manifest) is dict else None


class _Zip:
    """Answers the persistent ids of a pickle with storages where the records were found."""

    def __init__(self, reader: Reader, file: str, chosen: Mapping[str, Chosen], base: int) -> None:
        self.reader, self.file, self.chosen, self.base = reader, file, chosen, base
        self.prefix = prefix_of(list(chosen))
        self.storages: dict[str, Storage] = {}
        self.wreck = Wreck(Contents("torch-zip", {}, (), 0, self.storages))
        self.byteorder = self._byteorder()

    def read(self) -> Wreck:
        manifest = self._manifest()
        reading, complete = self._tree()
        value = reading.value if reading is not None else None
        if not complete:
            value = self._with_raw(value)
        if not complete and (value is None or value == {}):
            raise CorruptFile(
                f"nothing can be rescued from {self.reader.path}: it holds neither a pickle nor a storage of torch "
                "that is whole",
                path=self.reader.path,
            )
        self.wreck.contents = replace(
            self.wreck.contents,
            tree=value,
            readings=() if reading is None else (reading,),
            structure=self.reader.size,
            storages=self.storages,
            manifest=manifest,
            facts={"byteorder": self.byteorder},
        )
        return self.wreck

    def _tree(self) -> tuple[Reading | None, bool]:
        """What the pickle says, and whether it was read to its end."""
        place = self.chosen.get(self.prefix + _PICKLE)
        where = f"{self.reader.path}: {self.prefix}{_PICKLE}"
        if place is None or place.record.stored < 0:
            self._note(f"{_PICKLE} is missing: no name of a tensor is known")
            return None, False
        data = self._bytes(place, MAX_PICKLE)
        whole = self._mended(place, data, _PICKLE)
        how: dict[str, Any] = {"path": self.reader.path, "where": where, "persistent": self.storage}
        try:
            reading = read_pickle(data if whole is None else whole, stored=self.stored, **how)
        except CorruptFile:
            self.storages.clear()
            self.wreck.faults.clear()
            self.wreck.damaged.clear()
        else:
            self.wreck.unnamed = whole is None and place.holds is not True
            if self.wreck.unnamed:
                self._note(f"{_PICKLE} does not match its checksum: names, shapes and plain values may be wrong")
            return reading, True
        reading = read_partly(data, **how)
        self._note(
            f"{_PICKLE} is damaged and breaks off at byte {reading.end:,} of {len(data):,}: what it says before that "
            "is not vouched for, what it says after that is lost"
        )
        self.wreck.unnamed = True
        return reading, False

    def _mended(self, place: Chosen, data: bytes, name: str) -> bytes | None:
        """The bytes of a record as they were saved, where that is known."""
        if place.holds is True:
            return data
        made = mended(data, place.record.crc32) if place.record.crc32 is not None else None
        if made is not None:
            self._note(f"one flipped bit of {name} was turned back, as its checksum tells")
        return made

    def _manifest(self) -> Mapping[str, Any] | None:
        place = self.chosen.get(self.prefix + _MANIFEST)
        if place is None or place.record.stored < 0:
            return None
        data = self._bytes(place, _MAX_MANIFEST)
        manifest = _parsed(data if (whole := self._mended(place, data, _MANIFEST)) is None else whole)
        if manifest is None or (whole is None and place.holds is False):
            self._note(f"{_MANIFEST} is damaged: roles are told by structure")
            return None
        return sound(manifest)

    def _byteorder(self) -> str:
        place = self.chosen.get(self.prefix + "byteorder")
        data = self._bytes(place, _SMALL) if place is not None and place.record.stored >= 0 else b"little"
        return "big" if data == b"big" else "little"

    def _bytes(self, place: Chosen, limit: int) -> bytes:
        """The bytes of a record, its sum unasked; b"" for what does not inflate."""
        record = place.record
        if not record.method:
            return read(self.reader, record.offset, min(record.stored, limit))
        try:
            return record_bytes(self.reader, record._replace(crc32=None), limit)
        except FileError:
            return b""

    def storage(self, machine: Machine, pid: Any) -> Storage:
        """The storage of a persistent id ("storage", class, key, tag, number of elements)."""
        return self.stored(machine, *storage_parts(machine, pid, _PID_FIELDS))

    def stored(self, machine: Machine, dtype: str, key: str, tag: str, numel: int) -> Storage:
        """The storage of a key; one that is lost has no place, and a reason."""
        name = f"{self.file}{f'@{self.base}' if self.base else ''}/{key}" if self.file else key
        nbytes = numel * DTYPES[dtype].itemsize
        known = self.storages.get(name)
        if known is None:
            machine.charge(6)
            span, crc32, why = (None, None, "") if tag == "meta" else self._place(key, nbytes)
            if why:
                self.wreck.faults[name] = why
            if why and span is not None:
                self.wreck.damaged.add(name)
            known = self.storages[name] = Storage(name, dtype, nbytes, tag, span, crc32, self.byteorder)
        elif known.nbytes != nbytes:
            raise machine.corrupt(f"gives storage {key} two sizes, {known.nbytes:,} and {nbytes:,} bytes")
        return known

    def _place(self, key: str, nbytes: int) -> tuple[Span | None, int | None, str]:
        """Where the bytes of a storage lie, their checksum, and why they are lost."""
        place = self.chosen.get(f"{self.prefix}{_STORAGES}{key}")
        if place is None:
            return None, None, "its record is nowhere in the file"
        record = place.record
        if record.stored < 0:
            short = record.offset + nbytes - self.reader.size
            if short > 0:
                return None, None, f"its data is short by {count(short, 'byte')}"
            return Span(self.base + record.offset, nbytes, self.file), None, ""
        if record.nbytes != nbytes:
            return None, None, f"its record {_STORAGES}{key} has {record.nbytes:,} bytes, the pickle says {nbytes:,}"
        return record.span(self.file, self.base), record.crc32 if place.holds else None, place.why

    def _with_raw(self, value: Any) -> Any:
        """The tree with the storages that no tensor of it lies on, as bytes by their number."""
        rest: dict[str, TensorNode] = {}
        begin = self.prefix + _STORAGES
        found = walk(value, budget=visits(self.reader.size), wanted=(), path=self.reader.path).tensors
        named = {seen.node.storage.key for seen in found if type(seen.node) is TensorNode and seen.node.storage}
        for name, place in self.chosen.items():
            key, record = name.removeprefix(begin), place.record
            inner = f"{self.file}/{key}" if self.file else key
            if not name.startswith(begin) or "/" in key or key.startswith(".") or record.stored < 0:
                continue
            if inner not in named and place.holds is not False:
                span = record.span(self.file, self.base)
                made = self.storages[inner] = Storage(inner, "uint8", record.nbytes, "cpu", span, record.crc32)
                rest[key] = TensorNode(made, 0, (record.nbytes,), (1,), "uint8", "cpu")
        if not rest:
            return value
        self._note(
            f"{count(len(rest), 'storage')} that no name is known for: bytes under {_RAW!r}, by number of the record"
        )
        tree = value if isinstance(value, dict) else {} if value is None else {"tree": value}
        return {**tree, (_RAW if _RAW not in tree else "unnamed storages"): rest}

    def _note(self, text: str) -> None:
        self.wreck.notes.append(text)
