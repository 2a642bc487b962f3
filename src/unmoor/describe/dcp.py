"""Folders of torch.distributed.checkpoint: `.metadata` and shard files, described as the whole state they hold.

Layout after torch/distributed/checkpoint/filesystem.py (2.13): every item of a shard file is what torch.save wrote for
one box of a tensor, or for any other value. Nothing is unpickled; torch's own reader unpickles `.metadata` and values.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

from unmoor import places
from unmoor.errors import CorruptFile, FileError, HostileFile, NotACheckpoint, UnsupportedFile
from unmoor.filing import Reader, open_reader, prefetch, read
from unmoor.values.catalog import Catalog
from unmoor.values.finding import Finding
from unmoor.values.nodes import Chunk, Storage, TensorNode
from unmoor.values.pausing import collector_paused
from unmoor.values.text import count, format_bytes, listing

from .assemble import Contents, assemble
from .chunks import TOO_TANGLED, empty_tensor, tiling_fault, whole_tensor
from .dcp_manifest import Beside, read_beside
from .dcp_metadata import Folder, Place, Stored, own_names_left_out, read_folder
from .dcp_tree import gathered, grown, restored_forms
from .items import Item, Items
from .outline import Outline
from .reading import MAX_PICKLE, Reading, read_pickle

__all__ = [
    "METADATA",
    "Found",
    "Wanted",
    "describe_dcp",
    "metadata_kept",
    "opened",
    "read_metadata",
    "tree_of",
    "values_of",
    "wanted_of",
]

METADATA: Final = ".metadata"
_SUFFIX: Final = ".distcp"
_SHOWN: Final = 12
_MARK: Final = b"PK\x03\x04"
_KEPT: Final[ContextVar[dict[str, tuple[Reading, bytes]] | None]] = ContextVar("kept", default=None)
_AHEAD: Final = 100
"""Items whose edges are fetched at once where each would be a request of its own."""
_EDGE: Final = 4 << 10
_ALLOWANCE: Final = 4
"""The list of some 300,000 chunks takes four times the steps that any other pickle may."""


def describe_dcp(path: str, file: str = "") -> Catalog:
    """What a torch.distributed.checkpoint folder holds, whatever number of ranks wrote it, without running any of it.

    Every tensor is whole: the boxes that ranks wrote are proved to fill it. Optimizer state has the form of torch's own
    state dicts, by parameter name where it was saved so. `file` is the name of the folder within that of a larger
    catalog; spans and storage keys bear it.

    Raises NotACheckpoint where there is no `.metadata`, CorruptFile naming each tensor whose data is missing, cut short
    or does not fill it, HostileFile for places outside the folder, UnsupportedFile for items that need code to be read.
    """
    with collector_paused():
        return _describe(path, f"{file}/" if file else "")


def _describe(path: str, prefix: str) -> Catalog:
    reading, data = read_metadata(path)
    size = len(data)
    folder = read_folder(reading.value, places.join(path, METADATA))
    beside = read_beside(path, folder.save_id, (size, zlib.crc32(data)), folder.entries)
    found = _read_items(path, folder, prefix)
    values = values_of(folder, found)
    found.complain(path)
    sums = {name: [found.sizes[name], found.sums.get(name, 0)] for name in sorted(found.sizes)}
    beside.check_files(path, sums)
    tree, moved = tree_of(folder, beside, values, path)
    readings = [own_names_left_out(reading), *found.readings]
    storages = {storage.key: storage for storage in found.storages(values)}
    contents = Contents(
        format="dcp",
        tree=tree,
        readings=readings,
        structure=sum(each.nbytes for each in readings),
        storages=storages,
        faults=found.data_faults,
        findings=[*_findings(path, found, moved), *beside.findings],
        manifest=beside.manifest,
        entries={key: (folder.paths[key], values[key]) for key in folder.paths},
        facts={
            "files": [prefix + name for name in found.sizes],
            "items": found.items,
            "dcp_version": folder.version,
            "sums": sums,
        },
    )
    return assemble(Outline(path, size + sum(found.sizes.values())), contents)


def tree_of(folder: Folder, beside: Beside, values: Mapping[str, Any], path: str) -> tuple[Any, int]:
    """The state dict of a folder's values by flat key, and how many tensors were gathered into its model."""
    tree = beside.tree(values)
    if tree is not None:
        return tree, 0
    return gathered(restored_forms(grown(((folder.paths[key], values[key]) for key in folder.paths), path)))


def values_of(folder: Folder, found: Found) -> dict[str, Any]:
    """The whole value of every entry. Entries that lie in the same places are one tensor under several names."""
    values: dict[str, Any] = {}
    first: dict[Stored, str] = {}
    for key, stored in folder.entries.items():
        twin = first.setdefault(stored, key)
        values[key] = found.value(key, stored) if twin == key else values[twin]
    return values


def read_metadata(path: str) -> tuple[Reading, bytes]:
    """What the `.metadata` of the folder `path` says, and its bytes."""
    place = places.join(path, METADATA)
    if not places.exists(place):
        shards = _shards(path)
        what = f"{count(len(shards), 'shard file')}, but no {METADATA}, which is written last" if shards else "neither"
        raise NotACheckpoint(
            f"{path} is no complete torch.distributed.checkpoint folder: it holds {what}",
            remedy="The save was interrupted. Use the checkpoint before it." if shards else "",
            path=path,
        )
    with open_reader(place) as reader:
        if reader.size > MAX_PICKLE:
            raise HostileFile(f"{place} takes {format_bytes(reader.size)}, more than any such list", path=place)
        data = read(reader, 0, reader.size)
    kept = _KEPT.get()
    known = kept.get(place) if kept is not None else None
    if known is not None and known[1] == data:
        return known
    found = read_pickle(data, path=place, where=place, allowance=_ALLOWANCE), data
    if kept is not None:
        kept[place] = found
    return found


@contextmanager
def metadata_kept() -> Iterator[None]:
    """Take no `.metadata` apart twice, as long as its bytes are the same: that of a large folder takes a second."""
    token = _KEPT.set({})
    try:
        yield
    finally:
        _KEPT.reset(token)


def _shards(path: str) -> list[str]:
    return sorted(name for name in places.names(path) if name.endswith(_SUFFIX))


class Wanted(NamedTuple):
    """One item to read: of which entry, the number of its box, and where."""

    place: Place
    key: str
    number: int


@dataclass(slots=True)
class Found:
    """The items of a folder, by entry and number of the box, and everything that is wrong.

    `prefix` begins the names of its files in the catalog.
    """

    prefix: str
    values: dict[tuple[str, int], Any] = field(default_factory=dict)
    inner: dict[str, list[Storage]] = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    sums: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    data_faults: dict[str, str] = field(default_factory=dict)
    items: int = 0

    def take(self, wanted: Wanted, item: Item, *, tensor: bool) -> None:
        """Keep an item that was read."""
        self.items += 1
        crcs = [storage.crc32 or 0 for storage in item.storages]
        before = self.sums.get(wanted.place.file, 0)
        self.sums[wanted.place.file] = zlib.crc32(repr((wanted.place.at, crcs)).encode(), before)
        self.values[wanted.key, wanted.number] = item.value
        if item.fault and item.storages:
            self.data_faults[item.storages[0].key] = item.fault
        if not tensor:
            self.inner[wanted.key] = list(item.storages)
        if item.reading is not None and (not tensor or item.reading.calls or type(item.value) is not TensorNode):
            self.readings.append(item.reading)

    def again(self, wanted: Wanted, before: Wanted) -> None:
        """The same item under another name."""
        if (before.key, before.number) in self.values:
            self.values[wanted.key, wanted.number] = self.values[before.key, before.number]
        if before.key in self.inner:
            self.inner[wanted.key] = self.inner[before.key]

    def value(self, key: str, stored: Stored) -> Any:
        """The whole value of an entry; None where it has a fault, which is noted."""
        if not stored.dtype:
            return self.values.get((key, 0))
        nodes: list[Any] = [self.values.get((key, number)) for number in range(len(stored.boxes))]
        if any(node is None for node in nodes):
            return None
        fault = _fault(stored, nodes)
        if fault == TOO_TANGLED:
            raise HostileFile(f"{key[:200]}: {fault}")
        if fault:
            self.faults.append(f"{key[:200]}: {fault}")
            return None
        if 0 in stored.shape:
            return empty_tensor(self.prefix + key, stored.dtype, stored.shape, self.prefix + METADATA, "cpu")
        if len(nodes) == 1:
            return nodes[0]
        chunks = [Chunk(box.start, node) for box, node in zip(stored.boxes, nodes, strict=True)]
        return whole_tensor(self.prefix + key, stored.dtype, stored.shape, chunks, "cpu")

    def storages(self, values: Mapping[str, Any]) -> Iterator[Storage]:
        """What the tensors of the tree look into: one of its own for each tensor, those inside of other values."""
        for key, value in values.items():
            if type(value) is TensorNode and value.storage is not None and key not in self.inner:
                yield value.storage
            yield from self.inner.get(key, ())

    def complain(self, path: str) -> None:
        """Raise CorruptFile with all faults there are."""
        if not self.faults:
            return
        faults = list(dict.fromkeys(self.faults))
        more = [f"and {len(faults) - _SHOWN:,} more"] if len(faults) > _SHOWN else []
        raise CorruptFile(
            f"{path}: {count(len(faults), 'entry')} cannot be read whole",
            details=[*faults[:_SHOWN], *more],
            remedy="Files are missing, cut short or of another save. Copy the folder again, or use the one before it.",
            path=path,
        )


def _fault(stored: Stored, nodes: Sequence[Any]) -> str:
    for box, node in zip(stored.boxes, nodes, strict=True):
        if type(node) is not TensorNode or node.storage is None:
            return f"the item of its chunk at {box.start} holds no plain tensor"
        if node.shape != box.sizes or node.dtype != stored.dtype:
            said = f"{list(box.sizes)} of {stored.dtype}"
            return f"its chunk at {box.start} is {list(node.shape)} of {node.dtype}, {METADATA} says {said}"
    return tiling_fault(stored.shape, stored.boxes)


def _read_items(path: str, folder: Folder, prefix: str) -> Found:
    """Every item, file by file, so that few files are open at a time and each is read from begin to end."""
    found, items = Found(prefix), Items()
    wanted = wanted_of(folder)
    _refuse_overlaps(path, wanted, {key for key, stored in folder.entries.items() if stored.dtype})
    with ExitStack() as stack:
        reader: Reader | None = None
        before: Wanted | None = None
        for number, each in enumerate(wanted):
            if before is not None and before.place == each.place:
                found.again(each, before)
                continue
            before = each
            if each.place.file not in found.sizes:
                stack.close()
                reader = opened(stack, path, each.place.file, found)
            if reader is None:
                found.faults.append(f"{each.key[:200]}: the file {each.place.file} is missing")
                continue
            if number % _AHEAD == 0 or wanted[number - 1].place.file != each.place.file:
                prefetch(reader, _edges(wanted[number : number + _AHEAD], each.place.file))
            _read_item(items, reader, each, found, tensor=bool(folder.entries[each.key].dtype))
    return found


def _edges(wanted: Sequence[Wanted], file: str) -> Iterator[tuple[int, int]]:
    """The bytes at which the items of a file meet: the list of one and the structure of the next stand there."""
    for _, at, nbytes in (each.place for each in wanted if each.place.file == file):
        yield at, at + _EDGE
        yield at + nbytes - _EDGE, at + nbytes


def wanted_of(folder: Folder) -> list[Wanted]:
    """All items, file by file in their order."""
    return sorted(
        Wanted(place, key, number)
        for key, stored in folder.entries.items()
        for number, place in enumerate(stored.places)
    )


def opened(stack: ExitStack, path: str, file: str, found: Found) -> Reader | None:
    """One file of the folder, whose size is noted; None where it is not there."""
    place = places.join(path, file)
    found.sizes[file] = 0
    if not places.exists(place):
        return None
    reader = stack.enter_context(open_reader(place))
    found.sizes[file] = reader.size
    return reader


def _read_item(items: Items, reader: Reader, wanted: Wanted, found: Found, *, tensor: bool) -> None:
    file, at, nbytes = wanted.place
    try:
        item = items.read(reader, found.prefix + file, at, nbytes)
    except CorruptFile as fault:
        begin = read(reader, at, len(_MARK))
        if begin != _MARK and any(begin) and at + nbytes <= reader.size:
            raise UnsupportedFile(
                f"{reader.path}: the item of {wanted.key[:200]} is no archive of torch.save",
                remedy="Save the folder with the writer's default serialization_format.",
                path=reader.path,
            ) from None
        found.faults.append(f"{wanted.key[:200]}: {fault.headline}")
        return
    except FileError as fault:
        raise type(fault)(f"{wanted.key[:200]}: {fault.headline}", details=fault.details, remedy=fault.remedy,
                          path=reader.path) from None  # fmt: skip
    found.take(wanted, item, tensor=tensor)


def _refuse_overlaps(path: str, wanted: Sequence[Wanted], tensors: AbstractSet[str]) -> None:
    """Items of one file follow each other, or are one box of a tensor with several names, which is read once."""
    for one, other in pairwise(wanted):
        if one.place == other.place and one.key != other.key and {one.key, other.key} <= tensors:
            continue
        if one.place.file == other.place.file and one.place.at + one.place.nbytes > other.place.at:
            raise CorruptFile(
                f"{path} is damaged: {METADATA} gives {one.key[:200]} and {other.key[:200]} the same bytes of "
                f"{one.place.file}",
                path=path,
            )


def _findings(path: str, found: Found, moved: int) -> list[Finding]:
    findings = []
    stray = [name for name in _shards(path) if name not in found.sizes]
    if stray:
        message = f"{count(len(stray), 'shard file')} of another save: {listing(stray, 4)}"
        findings.append(Finding("stray-shards", "warning", "", message, "save each step into a folder of its own"))
    if moved:
        message = f"{count(moved, 'tensor')} beside the other parts of the run are read as the model"
        findings.append(Finding("gathered", "info", "model", message))
    return findings
