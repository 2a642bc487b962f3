"""A glance at a folder of torch.distributed.checkpoint: is every file there in its length, how far was the run.

Of a folder that unmoor.save wrote the head of its manifest is read; of others `.metadata`, which lists every item, and
of the items no more than the numbers that tell how far the run was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from unmoor.errors import CorruptFile
from unmoor.filing import open_reader, read
from unmoor.places import join
from unmoor.values.manifests import leading
from unmoor.values.pausing import collector_paused
from unmoor.values.progress import PATHS, RUN, VALUES
from unmoor.values.text import listing

from .dcp import METADATA, read_metadata
from .dcp_manifest import MANIFEST
from .dcp_metadata import Folder, read_folder
from .glance import Glance
from .items import Items

__all__ = ["glance_shards", "is_sharded"]

_SHARD: Final = ".distcp"
_HEAD: Final = 256 << 10
_SMALL: Final = 1 << 16
_SHOWN: Final = 3
_MOST: Final = 64
"""How many values are read at most."""
_WANTED: Final = frozenset(PATHS)
_END: Final = 22
_END_MARK: Final = b"PK\x05\x06"

Sizes = Mapping[str, int]
"""The files of a folder by name, with their bytes."""


def is_sharded(names: Sizes) -> bool:
    """Whether a folder with such files is one of torch.distributed.checkpoint, whole or not."""
    return METADATA in names or any(name.endswith(_SHARD) for name in names)


def glance_shards(path: str, names: Sizes) -> Glance:
    """What the folder `path` of such files tells at a glance.

    Raises CorruptFile for what is missing or cut short, all of it named; other FileErrors as `describe_dcp` does.
    """
    if METADATA not in names:
        cut = [f"{name} is cut short" for name in _cut(path, names)]
        raise CorruptFile(f"{path}: {listing([f'{METADATA} is missing', *cut], 1 + _SHOWN)}", path=path)
    own = _recorded(path, names)
    files, values = own.get("files"), own.get(VALUES)
    if isinstance(values, dict) and isinstance(files, dict) and all(map(_is_row, files.values())):
        _complain(path, _wrong({name: row[0] for name, row in files.items()}, names, exact=True))
        return Glance(values, "unmoor")
    with collector_paused():
        folder = read_folder(read_metadata(path)[0].value, join(path, METADATA))
        due: dict[str, int] = {}
        for stored in folder.entries.values():
            for place in stored.places:
                due[place.file] = max(due.get(place.file, 0), place.at + place.nbytes)
        _complain(path, _wrong(due, names, exact=False))
        return Glance(_values(path, folder), "unmoor" if own else "dcp")


def _recorded(path: str, names: Sizes) -> dict[str, Any]:
    """What the head of unmoor's manifest says, where it is of the same save as `.metadata`; empty where it is not."""
    if MANIFEST not in names:
        return {}
    with open_reader(join(path, MANIFEST)) as reader:
        found = leading(read(reader, 0, _HEAD), {VALUES, "metadata", "files"})
    row = found.get("metadata")
    return found if row is not None and _is_row(row) and row[0] == names[METADATA] else {}


def _is_row(row: Any) -> bool:
    """Bytes and checksum."""
    return type(row) is list and len(row) == 2 and all(type(number) is int for number in row)


def _wrong(due: Sizes, names: Sizes, *, exact: bool) -> Iterator[str]:
    """What is wrong with the files of a folder, which have to reach as far as `due` says."""
    for name, nbytes in sorted(due.items()):
        there = names.get(name)
        if there is None:
            yield f"{name} is missing"
        elif there < nbytes:
            yield f"{name} is cut short: {there:,} of {nbytes:,} bytes"
        elif exact and there != nbytes:
            yield f"{name} has {there:,} bytes, {nbytes:,} were saved"


def _complain(path: str, faults: Iterable[str]) -> None:
    lines = list(faults)
    if lines:
        raise CorruptFile(f"{path}: {listing(lines, _SHOWN)}", path=path)


def _cut(path: str, names: Sizes) -> Iterator[str]:
    """The shard files that do not end as such a file does: with the end of the archive of their last item."""
    for name in sorted(names):
        if name.endswith(_SHARD):
            with open_reader(join(path, name)) as reader:
                if reader.size < _END or read(reader, reader.size - _END, len(_END_MARK)) != _END_MARK:
                    yield name


def _values(path: str, folder: Folder) -> dict[str, Any]:
    """The values that tell how far the run was, of those that were saved as values; all that unmoor.Run keeps."""
    made: dict[str, Any] = {}
    items, left = Items(), _MOST
    for key, keys in folder.paths.items():
        place = folder.entries[key].places[0] if not folder.entries[key].dtype else None
        if place is None or place.nbytes > _SMALL or not left or not (keys in _WANTED or keys[0] == RUN):
            continue
        left -= 1
        with open_reader(join(path, place.file)) as reader:
            value = items.read(reader, place.file, place.at, place.nbytes).value
        inner = made
        for word in keys[:-1]:
            below = inner.setdefault(str(word), {})
            inner = below if isinstance(below, dict) else {}
        inner[str(keys[-1])] = value
    return made
