"""Everything in a checkpoint that has a checksum of its own: tensor data, and the records that are none.

A zip sums up each of its records, the pickle, the manifest and the byte order among them; an item of a sharded folder
is such a zip. Other formats have no checksums. What is damaged is told and the rest listed all the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from unmoor import places
from unmoor.errors import CorruptFile, FileError
from unmoor.filing import FrontReader, Reader, grain_of, open_reader, read
from unmoor.steady import was_read
from unmoor.values.catalog import Catalog
from unmoor.values.nodes import Storage, TensorNode, deflated
from unmoor.values.superseded import RECORD, read_record
from unmoor.values.verification import Record

from .dcp import METADATA, read_metadata
from .dcp_metadata import Place, read_folder
from .detect import detect
from .file import describe_file
from .items import Items
from .safetensors import describe_safetensors
from .torch_zip import read_saved
from .walk import visits, walk
from .zip_bytes import stray_bytes
from .zips import Archive, read_archive, record_bytes

__all__ = ["Held", "base_of", "files_below", "files_of", "held_records", "names_by_span", "names_without"]

_SHARD: Final = ".distcp"
_JSON: Final = ".json"
_DEEPEST: Final = 3
_MOST: Final = 100_000
_MOST_TOLD: Final = 64 << 20
_RECORD_MARK: Final = b"PK\3\4"

Where = tuple[str, int]
"""File and first byte of a storage."""


@dataclass(slots=True)
class Held:
    """The records of some files, the format of each file, and what is wrong with their lists of records."""

    records: list[Record] = field(default_factory=list)
    formats: dict[str, str] = field(default_factory=dict)
    errors: list[CorruptFile] = field(default_factory=list)


def base_of(path: str) -> str:
    """The folder that the names of files count from."""
    return path if places.is_folder(path) else places.parent(path)


def files_of(catalog: Catalog) -> list[str]:
    """The files of a described checkpoint, by their names from its folder; "" is the file itself."""
    listed = catalog.facts.get("files")
    if not isinstance(listed, Sequence):
        return [""]
    spans = (part.span for storage in catalog.storages for part in storage.sources())
    inside = (deflated(span.file) or (span.file,) for span in spans if span is not None)
    found = dict.fromkeys((*listed, *(name for name, *_ in inside)))
    base = base_of(catalog.path)
    sharded = {os.path.dirname(name) for name in found if name.endswith(_SHARD)}
    metadata = (_within(folder, METADATA) for folder in sharded)
    return [name for name in (*found, *metadata) if _is_there(places.join(base, name) if name else catalog.path)]


def _is_there(place: str) -> bool:
    """Whether there is such a file, or was when it was first read."""
    return was_read(place) or places.is_file(place)


def files_below(path: str) -> list[str]:
    """All files of a folder that could not be described, three levels down; "" for a file."""
    return list(islice(_below(path, "", _DEEPEST), _MOST)) if places.is_folder(path) else [""]


def _below(folder: str, inside: str, deep: int) -> Iterator[str]:
    """The files of a folder by their names from the outermost one, then those of its folders."""
    rows = sorted(places.kinds(folder))
    yield from (_within(inside, name) for name, is_folder in rows if not is_folder)
    for name in (name for name, is_folder in rows if is_folder and not name.startswith(".") and deep):
        yield from _below(places.join(folder, name), _within(inside, name), deep - 1)


def held_records(path: str, files: Iterable[str]) -> Held:
    """Every record of `files` of the checkpoint `path`, and of each file what it is.

    What is no checkpoint at all is left out: a folder holds notes and configurations too.
    """
    held = Held()
    shards: dict[str, list[str]] = {}
    base = base_of(path)
    for file in files:
        place = places.join(base, file) if file else path
        folder = os.path.dirname(file)
        if places.name_of(place) == METADATA:
            held.formats[file] = "metadata"
            shards.setdefault(folder, [])
        elif file.endswith(_SHARD):
            held.formats[file] = "dcp"
            shards.setdefault(folder, []).append(file)
        elif place.endswith(_JSON):
            held.formats[file] = "json"
        else:
            _file(place, file, held)
    for folder in shards:
        _items(places.join(base, folder) if folder else base, folder, held)
    return held


def _file(place: str, file: str, held: Held) -> None:
    try:
        with open_reader(place) as reader:
            kind = detect(reader)
            held.formats[file] = kind
            if kind == "zip":
                _archive(reader, file, held)
            if kind == "safetensors":
                storages = describe_safetensors(reader, file).storages
                held.records += [Record(s.key, s.span, s.crc32) for s in storages if s.span and s.crc32 is not None]
    except CorruptFile as error:
        held.errors.append(error)
    except FileError:
        return


def _archive(reader: Reader, file: str, held: Held) -> None:
    """The records of a zip, and those that it had before a relocation, which undoes to them."""
    seen: set[int] = set()
    archive = read_archive(reader)
    behind = reader.size - archive.trailing
    if not archive.interrupted and read(reader, behind, len(_RECORD_MARK)) == _RECORD_MARK:
        headline = f"{reader.path} was written to behind byte {behind:,}, and the end of that is damaged or cut off"
        details = ["what is read is the archive of before; a relocation that is not finished leaves other bytes"]
        held.errors.append(CorruptFile(headline, details=details, path=reader.path))
    while True:
        fresh = [record for record in archive.records.values() if record.header not in seen]
        before = f" (before the relocation of byte {reader.size:,})" if seen else ""
        held.records += [Record(record.name + before, record.span(file), record.crc32) for record in fresh]
        seen.update(record.header for record in fresh)
        lines = [] if grain_of(reader) else stray_bytes(reader)  # each would be a request of its own
        if lines:
            headline = f"{reader.path} is damaged where no tensor data lies{before}"
            held.errors.append(CorruptFile(headline, details=lines, path=reader.path))
        size = _size_before(reader, archive)
        if size is None:
            return
        reader = FrontReader(reader, size)
        try:
            archive = read_archive(reader)
        except FileError as error:
            headline = f"{reader.path}: what it was before its relocation is damaged: {error.headline}"
            held.errors.append(CorruptFile(headline, details=error.details, path=reader.path))
            return


def _size_before(reader: Reader, archive: Archive) -> int | None:
    """How long an archive was before `unmoor relocate` appended to it; None where it did not."""
    record = next((one for name, one in archive.records.items() if name.endswith("/" + RECORD)), None)
    try:
        before = None if record is None else read_record(record_bytes(reader, record, _MOST_TOLD))
    except FileError:
        return None
    return before.size if before is not None and before.size < reader.size else None


def _items(place: str, folder: str, held: Held) -> None:
    """The records of all items of a folder of torch.distributed.checkpoint."""
    try:
        stored = read_folder(read_metadata(place)[0].value, places.join(place, METADATA)).entries
    except CorruptFile as error:
        held.errors.append(error)
        return
    except FileError:
        return
    wanted: dict[str, dict[Place, str]] = {}
    for key, entry in stored.items():
        for where in entry.places:
            wanted.setdefault(where.file, {}).setdefault(where, key)
    read = Items()
    for name, items in wanted.items():
        if _is_there(places.join(place, name)):
            with open_reader(places.join(place, name)) as reader:
                for where, key in sorted(items.items()):
                    _item(read, reader, _within(folder, name), where, key, held)


def _within(folder: str, name: str) -> str:
    """The name of a file as spans bear it."""
    return f"{folder}/{name}" if folder else name


def _item(items: Items, reader: Reader, file: str, where: Place, key: str, held: Held) -> None:
    title = f"{reader.path}: the item of {key[:200]} at byte {where.at:,}"
    if where.at + where.nbytes > reader.size:
        held.errors.append(CorruptFile(f"{title} is cut short: the file ends at byte {reader.size:,}", path=file))
        return
    try:
        records, odd = items.records(reader, file, where.at, where.nbytes, title)
        if odd:
            held.errors.append(CorruptFile(f"{title} is damaged where no tensor data lies", details=odd, path=file))
        held.records += [Record(f"{key[:200]}: {one.name}", one.span(file, where.at), one.crc32) for one in records]
    except CorruptFile as error:
        held.errors.append(error)
    except FileError:
        return


def names_by_span(catalog: Catalog) -> dict[Where, list[str]]:
    """Where a storage begins -> the paths of the tensors on it."""
    found: dict[Where, list[str]] = {}
    for entry in catalog.tensors:
        storage = entry.node.storage if entry.node is not None else None
        for source in storage.sources() if storage is not None else ():
            if source.span is not None:
                found.setdefault((source.span.file, source.span.offset), []).append(entry.path)
    return found


def names_without(path: str, formats: Mapping[str, str]) -> dict[Where, list[str]]:
    """The same for a checkpoint that cannot be described as a whole: what its files tell, each for itself."""
    found: dict[Where, list[str]] = {}
    base = base_of(path)
    for file, kind in formats.items():
        place = places.join(base, file) if file else path
        if kind == "zip":
            found |= _names_in(place, file)
    return found


def _names_in(place: str, file: str) -> dict[Where, list[str]]:
    try:
        return names_by_span(describe_file(place, file=file))
    except FileError:
        return dict(_pickled_names(place, file))


def _pickled_names(place: str, file: str) -> dict[Where, list[str]]:
    """What the pickle alone tells, where other records keep a file from being described."""
    found: dict[Where, list[str]] = {}
    try:
        with open_reader(place) as reader:
            reading = read_saved(reader, file, 0).reading
        for seen in walk(reading.value, budget=visits(reading.nbytes), wanted=(), path=place).tensors:
            storage: Storage | None = seen.node.storage if isinstance(seen.node, TensorNode) else None
            if storage is not None and storage.span is not None:
                found.setdefault((storage.span.file, storage.span.offset), []).append(seen.path)
    except FileError:
        return found
    return found
