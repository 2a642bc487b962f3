"""relocate for zips: new records behind the old bytes, described before they are seen; and its undo."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from unmoor.describe.detect import detect
from unmoor.describe.torch_zip import describe_zip, read_again
from unmoor.describe.zip_ends import End, read_end
from unmoor.describe.zips import Record, record_bytes, records_named
from unmoor.errors import CorruptFile, FileError, SaveError, UnmoorError, UnsupportedFile
from unmoor.execute.commit import save_error
from unmoor.execute.superseding import Addition, addition, append, locked
from unmoor.filing import FrontReader, Reader, open_reader, read
from unmoor.plan.relocating import Retagging
from unmoor.plan.retagging import retagged, retagged_alike
from unmoor.plan.sameness import first_difference
from unmoor.steady import identity_of
from unmoor.values.catalog import Catalog
from unmoor.values.finding import Finding
from unmoor.values.manifests import MANIFEST
from unmoor.values.pausing import collector_paused
from unmoor.values.relocation import RelocatedFile
from unmoor.values.superseded import RECORD, Superseded, left_behind, read_record, record_of, split_ends
from unmoor.values.text import count, format_bytes, listing

__all__ = ["code_findings", "cut_off", "left_finding", "refuse_other", "relocated_zip", "undone_zip", "whole_archive"]

_PICKLE: Final = "data.pkl"
_PICKLES: Final = {_PICKLE: "", "constants.pkl": "constants/", "traced_inputs.pkl": "traced_inputs/"}
"""The pickles of an archive, and what the keys of their storages begin with in a catalog; the last is in none."""
_INPUTS: Final = "traced_inputs/"
_MOST: Final = 1 << 29


@dataclass(frozen=True, slots=True)
class Archive:
    """How long an archive is, how many bytes stand behind it, and whether a relocation that was cut off left these."""

    size: int
    trailing: int
    left: bool


def whole_archive(path: str) -> Archive:
    """Where the archive in a file ends, and what stands behind that."""
    with open_reader(path) as reader:
        return _whole(reader, read_end(reader))


def _whole(reader: Reader, end: End) -> Archive:
    trailing = reader.size - end.after
    ends = split_ends(read(reader, end.start, end.after - end.start))
    left = end.interrupted or (trailing > 0 and left_behind(ends, end.after, read(reader, end.after, trailing)))
    return Archive(end.after, trailing, left)


@contextmanager
def cut_off(path: str, size: int, seen: os.stat_result) -> Iterator[None]:
    """Cut a file off at `size` bytes when the block ends. Raises SaveError where it is not the file that was `seen`."""
    try:
        with locked(path) as (tail, now):
            refuse_other(path, seen, now)
            yield
            tail.truncate(size)
            tail.sync()
    except OSError as error:
        raise _not_done(error, path) from error


@contextmanager
def relocated_zip(
    path: str, catalog: Catalog, made: Retagging, seen: os.stat_result, *, name: str = ""
) -> Iterator[RelocatedFile]:
    """Give the zip at `path` the tags of `made`, when the block ends: until then it can be taken back unseen.

    `seen` is what the system said of the file when it was described, `name` what errors call one that is being made.
    Raises SaveError, and
    leaves the old file, where the disk fails, the file was written to meanwhile, or what was written does not read back
    as it was meant.
    """
    try:
        with locked(path, ours=bool(name)) as (tail, now), open_reader(path) as reader:
            refuse_other(path, seen, now)
            new = _new(reader, catalog, made)
            with append(tail, new.added):
                _check(reader, catalog, new)
                yield RelocatedFile(path, "appended", new.added.size, new.added.end)
    except OSError as error:
        raise _not_done(error, name or path) from error


def _not_done(error: OSError, path: str) -> UnmoorError:
    """An error of the system as ours; the checkpoint itself is never written to."""
    if error.errno in (errno.EACCES, errno.EPERM) and not isinstance(error, SaveError):
        return SaveError(
            f"{path} was not relocated: this user may not write to it",
            remedy="Change its permissions, or work on a copy of it.",
            path=path,
            errno=error.errno,
        )
    return error if isinstance(error, SaveError) else save_error(error, path, os.path.realpath(path), 0, "relocated")


def refuse_other(path: str, seen: os.stat_result, now: os.stat_result) -> None:
    """Raise SaveError where what the system says of a file is not what it was when it was `seen`."""
    if identity_of(seen) != identity_of(now):
        raise SaveError(
            f"{path} was replaced or written to while it was read; nothing was changed",
            remedy="Relocate it once nothing writes to it any more.",
            path=path,
        )


@dataclass(frozen=True, slots=True)
class _New:
    """What is written behind an archive: the addition, its records by name, and how many records there are then."""

    added: Addition
    records: Mapping[bytes, bytes]
    entries: int


def _new(reader: Reader, catalog: Catalog, made: Retagging) -> _New:
    """The records to put in the place of those that hold tags, the pickles proved to say what they should."""
    end = read_end(reader)
    archive = _whole(reader, end)
    if archive.trailing:
        raise _in_the_way(reader.path, archive, "--output FILE makes a relocated copy without them.")
    old = _named(reader, end, catalog)
    records = {raw: _renewed(reader, one, catalog, made) for raw, one in old.items() if not one.name.endswith(RECORD)}
    moves: dict[str, dict[str, int]] = {}
    for move in made.moves:
        moves.setdefault(move.old, {})[move.new] = move.tensors
    top = next(raw for raw in old if raw.endswith(_PICKLE.encode())).removesuffix(_PICKLE.encode())
    records[top + RECORD.encode()] = record_of(Superseded(archive.size, moves))
    raw, ends = read(reader, end.offset, end.size), read(reader, end.start, end.after - end.start)
    return _New(
        addition(archive.size, raw, ends, records), records, end.entries + len(records) - len(old.keys() & records)
    )


def _in_the_way(path: str, archive: Archive, remedy: str) -> UnsupportedFile:
    """Bytes behind an archive that someone else put there: they are never cut off."""
    what = f"{path} holds {count(archive.trailing, 'byte')} after the end of its archive, which are in the way"
    return UnsupportedFile(what, remedy=remedy, path=path)


def _named(reader: Reader, end: End, catalog: Catalog) -> dict[bytes, Record]:
    """The records that a relocation has to do with, those of the top folder of the archive."""
    top = f"{catalog.facts['archive']}/" if catalog.facts["archive"] else ""
    names = [top + name for name in (MANIFEST, RECORD)]
    names += [top + name for name in (_PICKLES if catalog.format == "torchscript" else (_PICKLE,))]
    return {raw: r for raw, r in records_named(reader, end, names).items() if r.name in names}


def _renewed(reader: Reader, record: Record, catalog: Catalog, made: Retagging) -> bytes:
    """A record with the new tags in it."""
    data = record_bytes(reader, record, _MOST)
    if record.name.endswith(MANIFEST):
        return json.dumps(_manifest(json.loads(data), catalog, made), separators=(",", ":")).encode()
    before, where = _before(record), f"{reader.path}: {record.name}"
    old = _tree(data, record, catalog) if before == _INPUTS else _known(catalog, before)
    quick = retagged_alike(data, made.alike())
    if quick != data and not _difference(old, quick, record, catalog, made):
        return quick
    new = retagged(data, lambda key, tag: made.tag(before + key, tag), where=where, path=reader.path)
    why = _difference(old, new, record, catalog, made)
    if why:
        raise _defect(reader.path, why)
    return new


def _known(catalog: Catalog, before: str) -> Any:
    """The tree of a pickle as the catalog has it."""
    if catalog.format != "torchscript":
        return catalog.tree
    return catalog.tree["constants" if before else "data"]


def _difference(old: Any, new: bytes, record: Record, catalog: Catalog, made: Retagging) -> str:
    """In what a new pickle says another thing than that its storages are where they should be; "" for nothing."""
    try:
        tree = _tree(new, record, catalog)
    except FileError as error:
        return str(error)
    return first_difference(old, tree, lambda storage: made.tag(storage.key, storage.device))


def _before(record: Record) -> str:
    """What the keys in a pickle lack of those in a catalog."""
    return _PICKLES[record.name.rpartition("/")[2]]


def _manifest(manifest: dict[str, Any], catalog: Catalog, made: Retagging) -> dict[str, Any]:
    """The manifest, with the devices of each role as they are now."""
    roles = manifest.get("roles")
    rows = roles.values() if isinstance(roles, dict) else ()
    for row in rows:
        if isinstance(row, dict) and isinstance(row.get("devices"), list) and isinstance(row.get("keys"), list):
            keys = tuple(row["keys"])
            inside = (entry for entry in catalog.tensors if entry.keys[: len(keys)] == keys)
            row["devices"] = sorted({made.tags.get(entry.storage, entry.device) for entry in inside})
    return manifest


def _check(reader: Reader, catalog: Catalog, new: _New) -> None:
    """Read what was written as it will be read: the directory, and the records that were proved, byte for byte."""
    front = FrontReader(reader, new.added.end)
    try:
        end = read_end(front)
        data = {raw: record_bytes(front, one, _MOST) for raw, one in _named(front, end, catalog).items()}
    except FileError as error:
        raise _defect(reader.path, str(error)) from error
    if end.after != new.added.end or end.entries != new.entries or data != new.records:
        raise _defect(reader.path, "its records are not those that were written")


def _tree(data: bytes, record: Record, catalog: Catalog) -> Any:
    before = _before(record)
    known = None if before == _INPUTS else {storage.key: storage for storage in catalog.storages}
    with collector_paused():
        return read_again(data, known, before=before, path=catalog.path, where=record.name)


def _defect(path: str, why: str) -> SaveError:
    return SaveError(
        f"{path}: its new records do not read back as they were meant; the file is as it was",
        details=[why],
        remedy="This is a defect of unmoor: please report it with the output of unmoor inspect.",
        path=path,
    )


@contextmanager
def undone_zip(path: str, seen: os.stat_result) -> Iterator[tuple[RelocatedFile, Mapping[str, Any], list[Finding]]]:
    """Cut the zip at `path` off where it ended before its last relocation, when the block ends.

    Yields what becomes of the file and tag -> new tag -> tensors of what is undone, nothing where a relocation had been
    cut off. Raises UnsupportedFile for a file that was not relocated, CorruptFile where it does not hold what it says.
    """
    with open_reader(path) as reader:
        if detect(reader) != "zip":
            raise _not_relocated(path)
        end = read_end(reader)
        archive = _whole(reader, end)
        nothing: Mapping[str, Mapping[str, int]] = {}
        size, moves = (archive.size, nothing) if archive.left else _earlier(reader, end, archive)
        if archive.trailing and not archive.left:
            raise _in_the_way(path, archive, "--output FILE makes a copy without them, which can be undone.")
        findings = [left_finding(archive)] if archive.left else []
        with cut_off(path, size, seen):
            yield RelocatedFile(path, "cut", reader.size, size), moves, findings


def left_finding(archive: Archive) -> Finding:
    """What to say of the bytes that a relocation left that was cut off."""
    what = f"{format_bytes(archive.trailing)} that an interrupted relocation had left behind the archive were cut off"
    return Finding("interrupted-relocation", "info", "", what)


def _earlier(reader: Reader, end: End, archive: Archive) -> tuple[int, Mapping[str, Mapping[str, int]]]:
    """The length of the archive before it was relocated, proved to be one with the same tensors; and what moved."""
    named = records_named(reader, end, (RECORD,))
    record = next(iter(named.values()), None)
    before = None if record is None else read_record(record_bytes(reader, record, _MOST))
    if before is None:
        raise _not_relocated(reader.path)
    try:
        if not before.size < archive.size:
            raise CorruptFile(f"it says that it was {before.size:,} bytes long", path=reader.path)
        old, new = describe_zip(FrontReader(reader, before.size)), describe_zip(reader)
        if old.facts["records"] > new.facts["records"] or _spans(old) != _spans(new):
            raise CorruptFile("the archive that it was holds other tensors", path=reader.path)
    except FileError as error:
        raise CorruptFile(
            f"{reader.path} does not hold the archive that it says it was before it was relocated",
            details=[error.headline],
            remedy="It was packed anew since. --map NEW=OLD writes other tags into it.",
            path=reader.path,
        ) from error
    return before.size, before.moves


def _not_relocated(path: str) -> UnsupportedFile:
    return UnsupportedFile(
        f"{path} was not relocated in place: there is nothing to undo",
        remedy="--map NEW=OLD writes other tags into it.",
        path=path,
    )


def _spans(catalog: Catalog) -> dict[str, Any]:
    return {storage.key: (storage.span, storage.crc32) for storage in catalog.storages}


def code_findings(path: str, tags: Iterable[str]) -> Iterator[Finding]:
    """The places of a TorchScript archive's code that name one of `tags`: a trace keeps the devices it was made on."""
    with open_reader(path) as reader:
        for record in records_named(reader, read_end(reader), (".py",)).values():
            text = record_bytes(reader, record, _MOST)
            named = [tag for tag in tags if b'"' + tag.encode() + b'"' in text]
            if named:
                message = f"the code in {record.name} names {listing(named)}, and is left as it is"
                yield Finding("device-in-code", "warning", "", message, "trace or script the module on the new device")
