"""convert --salvage: a damaged checkpoint -> every place where data may lie -> what checksums vouch for -> a Catalog.

What is whole in structure is described as ever and only its data is held against the sums. What is not is searched:
file by file, each format in its own way. Nothing of it is run, and no size is believed that the file does not hold.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from unmoor import places
from unmoor.describe import describe_path
from unmoor.describe.assemble import Contents
from unmoor.describe.detect import detect
from unmoor.describe.folder_index import read_weight_map
from unmoor.describe.salvage import settled
from unmoor.describe.torch_legacy import read_legacy
from unmoor.describe.torch_tar import read_tar
from unmoor.describe.wreck import Chosen, Wreck, read_wrecked_zip, sums_told
from unmoor.describe.wrecked_dcp import is_dcp, read_wrecked_dcp
from unmoor.describe.wrecked_flat import read_wrecked_flat
from unmoor.describe.wrecked_index import index_of
from unmoor.describe.wrecked_zip import candidates
from unmoor.describe.zips import Record as Place
from unmoor.errors import CorruptFile, FileError, HostileFile, NotACheckpoint
from unmoor.execute.audit import audit
from unmoor.execute.verify import Fault, check
from unmoor.filing import Reader, open_reader
from unmoor.values.catalog import Catalog
from unmoor.values.finding import Finding
from unmoor.values.nodes import Storage
from unmoor.values.salvage import Salvage
from unmoor.values.text import count, listing
from unmoor.values.verification import Record

from .spans import open_spans

__all__ = ["lost_findings", "salvaged"]


@dataclass(frozen=True, slots=True)
class _How:
    """How data is read while it is judged."""

    buffer_bytes: int
    threads: int


def salvaged(path: str, *, keep_damaged: bool, buffer_bytes: int, threads: int) -> tuple[Catalog, Salvage]:
    """What can be had of a damaged checkpoint, as the catalog of a whole one, and the account of it.

    With `keep_damaged`, data whose checksum does not hold is taken as it is. Raises CorruptFile where nothing is left.
    """
    how = _How(buffer_bytes, threads)
    wreck, size = _wreck(path, how)
    damaged = _summed(path, wreck, how)
    wreck.faults |= damaged
    wreck.damaged |= damaged.keys()
    return settled(path, size, wreck, keep=wreck.damaged if keep_damaged else ())


def lost_findings(salvage: Salvage | None) -> list[Finding]:
    """What a rescue lost, as one finding for all that went and one for all that was kept though it is damaged."""
    lost = [one for one in salvage.lost if not one.kept] if salvage is not None else []
    kept = [one for one in salvage.lost if one.kept] if salvage is not None else []
    found = []
    if lost:
        word = "tensor" if all(one.tensor for one in lost) else "value"
        message = f"{count(len(lost), word)} could not be rescued: {listing([one.path for one in lost])}"
        remedy = 'restore(..., missing="fresh") goes on with what there is'
        found.append(Finding("lost-data", "error", "", message, remedy))
    if kept:
        message = f"{count(len(kept), 'tensor')} written as they are, damaged: {listing([one.path for one in kept])}"
        found.append(Finding("damaged-data", "error", "", message, "look at their values before you use them"))
    return found


def _wreck(path: str, how: _How) -> tuple[Wreck, int]:
    """What a path still says, and how many bytes there are."""
    size = places.tree_bytes(path)
    try:
        return _described(describe_path(path)), size
    except HostileFile:
        raise
    except FileError as error:
        broken = error
    if not places.is_folder(path):
        index = index_of(path)
        wreck = _index(path, how) if index else _file(path, "", how)
    elif is_dcp(path):
        wreck = read_wrecked_dcp(path, lambda reader, file, base: _zip(reader, file, base, how))
    elif index := index_of(path):
        wreck = _index(places.join(path, index), how)
    else:
        names = [entry.name for entry in places.entries(path) if not entry.is_folder]
        raise CorruptFile(
            f"{path} cannot be rescued as one: {broken.headline}",
            details=broken.details,
            remedy=f"Rescue its files one by one: {listing(names, 6)}" if names else "",
            path=path,
        ) from None
    wreck.notes.insert(0, broken.headline)
    return wreck, size


def _described(catalog: Catalog) -> Wreck:
    """A checkpoint that is whole in structure."""
    return Wreck(
        Contents(
            format=catalog.format,
            tree=catalog.tree,
            readings=(),
            structure=catalog.size,
            storages={storage.key: storage for storage in catalog.storages},
            findings=catalog.findings,
            manifest=catalog.manifest,
            facts=catalog.facts,
            entries=catalog.entries,
        )
    )


def _file(path: str, file: str, how: _How) -> Wreck:
    """What one file still says."""
    with open_reader(path) as reader:
        try:
            kind = detect(reader)
        except HostileFile:
            raise
        except FileError:
            kind = ""
        if kind == "zip":
            return _zip(reader, file, 0, how)
        if kind in _STREAMS:
            contents = _STREAMS[kind](reader, file)
            return Wreck(replace(contents, faults={}), dict(contents.faults))
        if kind == "safetensors" or path.lower().endswith(".safetensors"):
            return read_wrecked_flat(reader, file)
        try:
            return _zip(reader, file, 0, how)  # its first bytes may be what is damaged
        except CorruptFile:
            detect(reader)
            raise


_STREAMS: Mapping[str, Callable[[Reader, str], Contents]] = {"legacy": read_legacy, "tar": read_tar}


def _zip(reader: Reader, file: str, base: int, how: _How) -> Wreck:
    """What an archive of torch still says, whose lists of records cannot be believed."""
    found = candidates(reader)
    chosen = _chosen(reader, found, how)
    told = sums_told(reader, chosen)
    again = {name: places_ for name, places_ in told.items() if name not in chosen or not chosen[name].holds}
    better = _chosen(reader, again, how)
    chosen |= {name: place for name, place in better.items() if name not in chosen or place.holds}
    return read_wrecked_zip(reader, file, chosen, base=base)


def _chosen(reader: Reader, found: Mapping[str, list[Place]], how: _How) -> dict[str, Chosen]:
    """Of each record the first place whose checksum holds, else the first of all with what was read there."""
    chosen: dict[str, Chosen] = {}
    left = {name: list(records) for name, records in found.items() if records}
    while left:
        tried = {name: records.pop(0) for name, records in left.items()}
        wrong = _wrong(reader, tried, how)
        for name, record in tried.items():
            holds = None if record.crc32 is None or record.stored < 0 else name not in wrong
            if name not in chosen or holds:
                chosen[name] = Chosen(record, holds, wrong.get(name, ""))
        left = {name: records for name, records in left.items() if records and not chosen[name].holds}
    return chosen


def _wrong(reader: Reader, tried: Mapping[str, Place], how: _How) -> dict[str, str]:
    """The records whose bytes have not the sum that they should have, and what they have."""
    rows = [Record(name, record.span(), record.crc32) for name, record in tried.items() if record.stored >= 0]
    with open_spans(reader.path) as named:

        def opened(file: str) -> Reader:
            return reader if not file else named(file)

        wrong = audit(rows, open_span=opened, buffer_bytes=how.buffer_bytes, threads=how.threads, progress=None)
    return {one.record.name: one.why or f"CRC-32 saved {one.record.crc32:08x}, read {one.read:08x}" for one in wrong}


def _index(path: str, how: _How) -> Wreck:
    """What the files of one state dict still say, of which an index tells which tensor lies in which."""
    folder = os.path.dirname(path)
    named = read_weight_map(path)
    made = Wreck(Contents("folder", {}, (), 0, {}))
    tree: dict[str, Any] = {}
    storages: dict[str, Storage] = {}
    for file in dict.fromkeys(named.values()):
        try:
            wreck = _shard(places.join(folder, file), file, how)
        except HostileFile:
            raise
        except (FileError, OSError) as error:
            why = error.headline if isinstance(error, FileError) else f"{file} is missing"
            made.entries |= {name: why for name, place in named.items() if place == file}
            continue
        held = wreck.contents.tree if isinstance(wreck.contents.tree, dict) else {}
        for name, place in named.items():
            if place == file and name in held:
                tree[name] = held[name]
            elif place == file:
                made.entries[name] = wreck.entries.get(name, f"{file} does not tell of it any more")
        storages |= wreck.contents.storages
        made.faults |= wreck.faults
        made.damaged |= wreck.damaged
        made.notes += [f"{file}: {note}" for note in wreck.notes]
    made.contents = replace(made.contents, tree=tree, storages=storages, structure=places.tree_bytes(path))
    return made


def _shard(path: str, file: str, how: _How) -> Wreck:
    from unmoor.describe import describe_file

    if not places.exists(path):
        raise NotACheckpoint(f"{file} is missing", path=path)
    try:
        return _described(describe_file(path, file=file))
    except HostileFile:
        raise
    except FileError:
        return _file(path, file, how)


def _summed(path: str, wreck: Wreck, how: _How) -> dict[str, str]:
    """The storages whose bytes have not the sum that they should have, by key."""
    sources: dict[str, Storage] = {}
    for storage in wreck.contents.storages.values():
        sources |= {source.key: source for source in storage.sources() if source.key not in wreck.faults}
    with open_spans(path) as opened:
        rows = _there(sources.values(), opened)
        faults = check(
            [(storage, ()) for storage in rows],
            open_span=opened,
            buffer_bytes=how.buffer_bytes,
            threads=how.threads,
            progress=None,
        )
    return {fault.storage.key: _words(fault) for fault in faults}


def _there(storages: Iterable[Storage], opened: Callable[[str], Reader]) -> list[Storage]:
    """The storages whose files are there."""
    return [storage for storage in storages if storage.span is not None and _opens(storage.span.file, opened)]


def _opens(file: str, opened: Callable[[str], Reader]) -> bool:
    try:
        opened(file)
    except (FileError, OSError):
        return False
    return True


def _words(fault: Fault) -> str:
    return "its data is damaged: " + str(fault)
