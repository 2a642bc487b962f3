"""What a damaged folder of torch.distributed.checkpoint still says: every tensor whose boxes are all there.

Its `.metadata` tells names, shapes and places. Where that is lost too, one flipped bit of it is turned back by the sum
in the manifest; else the items are given by file and place, without names.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final
from zlib import crc32

from unmoor import places
from unmoor.errors import CorruptFile, FileError, HostileFile, NotACheckpoint
from unmoor.filing import Reader, open_reader, read
from unmoor.values.nodes import Storage, TensorNode
from unmoor.values.text import count

from .assemble import Contents
from .dcp import METADATA, Found, Wanted, opened, read_metadata, tree_of, values_of, wanted_of
from .dcp_manifest import MANIFEST, Beside, read_beside
from .dcp_metadata import Folder, Stored, read_folder
from .items import Item, Items, Slice
from .mending import mended
from .reading import MAX_PICKLE, read_pickle
from .torch_zip import read_saved
from .wreck import Wreck

__all__ = ["is_dcp", "read_wrecked_dcp"]

_SHARD: Final = ".distcp"
_END: Final = b"PK\5\6"
_END_SIZE: Final = 22
_WINDOW: Final = 4 << 20
_MOST: Final = 1_000_000
_ALLOWANCE: Final = 4

Rescue = Callable[[Reader, str, int], Wreck]
"""What an item still says: its reader, the name of its file, where in that it begins."""


def is_dcp(path: str) -> bool:
    """Whether a folder holds shards of torch.distributed.checkpoint, or their list."""
    return any(entry.name == METADATA or entry.name.endswith(_SHARD) for entry in places.entries(path))


def read_wrecked_dcp(path: str, rescue: Rescue) -> Wreck:
    """What of a folder can be had. `rescue` reads an item that is damaged. Raises CorruptFile where that is nothing."""
    wreck = Wreck(Contents("dcp", {}, (), 0, {}))
    folder, beside = _listed(path, wreck)
    if folder is None:
        return _without_names(path, wreck)
    found, whys = _items(path, folder, rescue, wreck)
    values = values_of(folder, found)
    for line in found.faults:
        key, _, why = line.partition(": ")
        whys.setdefault(key, why)
    for key, stored in folder.entries.items():
        if values[key] is None and (stored.dtype or key in whys):
            values[key] = _absent(key, stored)
            wreck.faults[key] = whys.get(key, "its data cannot be read")
            wreck.values |= set() if stored.dtype else {key}
    tree, _ = tree_of(folder, beside, values, path)
    storages = {storage.key: storage for storage in found.storages(values)}
    wreck.faults |= found.data_faults
    wreck.contents = replace(
        wreck.contents,
        tree=tree,
        structure=places.tree_bytes(path),
        storages=storages,
        manifest=beside.manifest,
        facts={"files": sorted(found.sizes)},
    )
    return wreck


def _listed(path: str, wreck: Wreck) -> tuple[Folder | None, Beside]:
    """What the folder's list says, where it can be read, and the manifest beside it."""
    place = places.join(path, METADATA)
    try:
        reading, data = read_metadata(path)
        folder = read_folder(reading.value, place)
    except (CorruptFile, NotACheckpoint):
        whole = _mended(path)
        if whole is None:
            wreck.notes.append(f"{METADATA} is missing or damaged: no name of a tensor is known")
            return None, Beside()
        wreck.notes.append(f"one flipped bit of {METADATA} was turned back, as the sum in {MANIFEST} tells")
        data = whole
        reading = read_pickle(data, path=place, where=place, allowance=_ALLOWANCE)
        folder = read_folder(reading.value, place)
    try:
        return folder, read_beside(path, folder.save_id, _sum(data), folder.entries)
    except CorruptFile as fault:
        data = _mended(path) or data
        try:
            return folder, read_beside(path, folder.save_id, _sum(data), folder.entries)
        except CorruptFile:
            wreck.notes.append(f"{fault.headline}: roles and containers are told by structure")
            return folder, Beside()


def _sum(data: bytes) -> tuple[int, int]:
    return len(data), crc32(data)


def _mended(path: str) -> bytes | None:
    """The list as it was saved, where the sum that the manifest has of it tells of one flipped bit."""
    try:
        with open_reader(places.join(path, MANIFEST)) as reader:
            manifest = json.loads(read(reader, 0, min(reader.size, MAX_PICKLE)))
        with open_reader(places.join(path, METADATA)) as reader:
            data = read(reader, 0, min(reader.size, MAX_PICKLE))
    except (FileError, OSError, ValueError, RecursionError):
        return None
    row = manifest.get("metadata") if isinstance(manifest, dict) else None
    if not isinstance(row, list) or len(row) != 2 or row[0] != len(data) or type(row[1]) is not int:
        return None
    return mended(data, row[1])


def _items(path: str, folder: Folder, rescue: Rescue, wreck: Wreck) -> tuple[Found, dict[str, str]]:
    """Every item that can be had, and why the others cannot, by entry."""
    found, items, whys = Found(""), Items(), dict[str, str]()
    with ExitStack() as stack:
        reader: Reader | None = None
        before: Wanted | None = None
        for each in wanted_of(folder):
            if before is not None and before.place == each.place:
                found.again(each, before)
                continue
            before = each
            if each.place.file not in found.sizes:
                stack.close()
                reader = opened(stack, path, each.place.file, found)
            try:
                if reader is None:
                    raise CorruptFile(f"the file {each.place.file} is missing")
                item = _item(items, reader, each, rescue, wreck)
            except HostileFile:
                raise
            except FileError as fault:
                whys.setdefault(each.key, fault.headline)
                continue
            found.take(each, item, tensor=bool(folder.entries[each.key].dtype))
    return found, whys


def _item(items: Items, reader: Reader, wanted: Wanted, rescue: Rescue, wreck: Wreck) -> Item:
    """One item, as it says itself, else as much as is left of it."""
    file, at, nbytes = wanted.place
    try:
        return items.read(reader, file, at, nbytes)
    except HostileFile:
        raise
    except FileError as broken:
        if at + nbytes > reader.size:
            raise
        left = rescue(Slice(reader, at, nbytes, f"{reader.path}: the item at byte {at:,}"), file, at)
        storages = tuple(left.contents.storages.values())
        if left.unnamed or left.faults:
            raise CorruptFile(next(iter(left.faults.values()), broken.headline)) from None
        wreck.notes.append(f"the item of {wanted.key[:200]} was read although its headers are damaged")
        return Item(left.contents.tree, storages)


def _absent(key: str, stored: Stored) -> TensorNode:
    """What stands for a value that is lost."""
    dtype = stored.dtype or "uint8"
    storage = Storage(key, dtype, 0, "cpu", None, None)
    return TensorNode(storage, 0, stored.shape, (1,) * len(stored.shape), dtype, "cpu")


def _without_names(path: str, wreck: Wreck) -> Wreck:
    """The items of all shards by file and place: what they are called only the lost list tells."""
    tree: dict[str, dict[str, Any]] = {}
    storages: dict[str, Storage] = {}
    for entry in places.entries(path):
        if not entry.name.endswith(_SHARD):
            continue
        with open_reader(entry.path) as reader:
            for at, end in _archives(reader):
                part = Slice(reader, at, end - at, f"{entry.path}: the item at byte {at:,}")
                try:
                    saved = read_saved(part, entry.name, at)
                except HostileFile:
                    raise
                except FileError:
                    continue
                wreck.faults |= saved.faults
                storages |= saved.storages
                tree.setdefault(entry.name, {})[str(at)] = saved.reading.value
    if not tree:
        raise CorruptFile(f"nothing can be rescued from {path}: no item of its shards is whole", path=path)
    number = sum(map(len, tree.values()))
    wreck.notes.append(f"{count(number, 'item')} that no name is known for: under 'shards', by file and first byte")
    wreck.unnamed = True
    wreck.contents = replace(
        wreck.contents, tree={"shards": tree}, structure=places.tree_bytes(path), storages=storages
    )
    return wreck


def _archives(reader: Reader) -> list[tuple[int, int]]:
    """Where archives lie in a file that is nothing but archives, one behind the other."""
    found: list[tuple[int, int]] = []
    begin = 0
    for start in range(0, reader.size, _WINDOW):
        window = read(reader, start, min(_WINDOW + _END_SIZE, reader.size - start))
        at = window.find(_END)
        while 0 <= at < _WINDOW and len(found) < _MOST:
            end = start + at + _END_SIZE
            if end >= begin + _END_SIZE and end <= reader.size and read(reader, begin, 4) == b"PK\3\4":
                found.append((begin, end))
                begin = end
            elif read(reader, end, 4) == b"PK\3\4":
                begin = end
            at = window.find(_END, at + 4)
    return found
