"""torch.save's zip (since torch 1.6) and TorchScript archives.

Layout, after torch/serialization.py and caffe2/serialize: `PREFIX/data.pkl`, one record `PREFIX/data/KEY` per storage,
`PREFIX/byteorder`, `PREFIX/version`; TorchScript adds `constants.pkl`, `constants/KEY` and `code/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from unmoor.errors import CorruptFile, UnsupportedFile
from unmoor.filing import Reader
from unmoor.values.catalog import Catalog
from unmoor.values.dtypes import DTYPES
from unmoor.values.finding import Finding
from unmoor.values.manifests import parsed, sound
from unmoor.values.nodes import Span, Storage
from unmoor.values.superseded import RECORD, Superseded, read_record
from unmoor.values.text import count, listing

from .assemble import Contents, assemble
from .machine import Machine
from .reading import MAX_PICKLE, Reading, read_pickle
from .rebuild import storage_parts
from .zips import Archive, Record, read_archive, record_bytes

__all__ = ["Saved", "describe_zip", "read_again", "read_saved"]

_SMALL: Final = 1 << 10
_MAX_INFLATED: Final = 64 << 20
_MAX_MANIFEST: Final = 64 << 20
_MANIFEST: Final = "unmoor/manifest.json"
_PICKLE: Final = "data.pkl"
_CONSTANTS: Final = "constants.pkl"
_CODE: Final = "code/"
_EXPORTED: Final = ("/archive_format", "/serialized_exported_program.json")
_FIRST_SCRIPT: Final = "model.json"
_PID_FIELDS: Final = 5
_WORTH: Final = 4
"""What is created while a pickle is read is paid for by its bytes; a deflated byte pays for so many."""

_MOST_OF_ONE: Final = 1032
"""Bytes that one deflated byte can stand for, at most."""


def describe_zip(reader: Reader, file: str = "") -> Catalog:
    """The catalog of a zip. Raises UnsupportedFile where it is some other kind of zip than torch's.

    `file` is the name of the file among those of a larger catalog; spans and storage keys bear it.
    """
    archive = read_archive(reader)
    prefix = _prefix(reader, archive)
    script = prefix + _CONSTANTS in archive.records
    source = _Source(reader, archive, prefix, file)
    odd, records = _findings(archive, prefix), len(archive.records)
    source.take = archive.records.pop  # each storage is asked for once, and of most records nothing else is wanted
    readings = [source.read(_PICKLE, "data")] + ([source.read(_CONSTANTS, "constants")] if script else [])
    tree = {"data": readings[0].value, "constants": readings[1].value} if script else readings[0].value
    manifest = _manifest(reader, archive, prefix)
    facts, before = _facts(reader, archive, prefix, records), _superseded(reader, archive, prefix)
    if archive.interrupted:
        facts["interrupted"] = reader.size - archive.trailing
    if before is not None:
        facts["relocated"] = {"size": before.size, "devices": before.moves}
    facts |= {"protocol": readings[0].protocol, "byteorder": source.byteorder, "torch_version": _writer(manifest)}
    if prefix + "byteorder" not in archive.records:
        facts["byteorder_assumed"] = True
    storages, faults = source.storages, source.faults
    del archive, source
    contents = Contents(
        format="torchscript" if script else "torch-zip",
        tree=tree,
        readings=readings,
        structure=sum(reading.nbytes for reading in readings),
        storages=storages,
        faults=faults,
        findings=[*odd, *_relocated(before)],
        manifest=manifest,
        facts=facts,
    )
    return assemble(reader, contents)


@dataclass(frozen=True, slots=True)
class Saved:
    """What torch.save wrote in one archive, before anything is judged: its pickle, its storages and their faults."""

    reading: Reading
    storages: Mapping[str, Storage]
    faults: Mapping[str, str]
    archive: Archive
    prefix: str


def read_saved(reader: Reader, file: str, base: int) -> Saved:
    """The archive behind `reader`, which begins at byte `base` of `file`; the spans of its storages say so."""
    archive = read_archive(reader)
    prefix = _prefix(reader, archive)
    source = _Source(reader, archive, prefix, file, base)
    return Saved(source.read(_PICKLE, "data"), source.storages, source.faults, archive, prefix)


def read_again(data: bytes, storages: Mapping[str, Storage] | None, *, before: str, path: str, where: str) -> Any:
    """The tree of a pickle whose storages are known by key; each bears the tag that this pickle gives it.

    `before` is what the keys of the pickle lack of those in `storages`; None knows none, and takes all as they are
    named. Raises CorruptFile for another storage.
    """
    made: dict[str, Storage] = {}

    def stored(machine: Machine, dtype: str, key: str, tag: str, numel: int) -> Storage:
        known = made.get(key)
        if known is None:
            nbytes = numel * DTYPES[dtype].itemsize
            name = before + key
            old = Storage(name, dtype, nbytes, tag, None, None) if storages is None else storages.get(name)
            if old is None or old.nbytes != nbytes:
                raise machine.corrupt(f"names storage {key}, which is another")
            known = made[key] = Storage(old.key, dtype, nbytes, tag, old.span, old.crc32, old.byteorder)
        elif known.device != tag:
            raise machine.corrupt(f"puts storage {key} on two devices")
        return known

    def storage(machine: Machine, pid: Any) -> Storage:
        return stored(machine, *storage_parts(machine, pid, _PID_FIELDS))

    return read_pickle(data, path=path, where=where, persistent=storage, stored=stored).value


def _prefix(reader: Reader, archive: Archive) -> str:
    """What the names of all records begin with: torch takes that of the first."""
    first = next(iter(archive.records), "")
    prefix = first.partition("/")[0] + "/" if "/" in first else ""
    if prefix + _PICKLE in archive.records:
        _refuse_twins(reader.path, archive.records, prefix + _CODE)
        return prefix
    others = [name for name in archive.records if name == _PICKLE or name.endswith("/" + _PICKLE)]
    if len(others) == 1:
        return others[0].removesuffix(_PICKLE)
    names = listing(list(archive.records), 6)
    if any(name.endswith(".npy") for name in archive.records):
        raise UnsupportedFile(
            f"{reader.path} is a numpy .npz archive of arrays ({names}), not a torch checkpoint", path=reader.path
        )
    if any(name.endswith(_EXPORTED) for name in archive.records):
        raise UnsupportedFile(
            f"{reader.path} is a program of torch.export (.pt2), a format of its own",
            remedy="Load it with torch.export.load, and save the state_dict of what that gives.",
            path=reader.path,
        )
    if any(name.rpartition("/")[2] == _FIRST_SCRIPT for name in archive.records):
        raise UnsupportedFile(
            f"{reader.path} is a TorchScript archive of torch 1.0 to 1.3 ({_FIRST_SCRIPT}), a format of its own",
            remedy="Load it with torch.jit.load of a torch that reads it, and save its state_dict().",
            path=reader.path,
        )
    raise UnsupportedFile(
        f"{reader.path} is a zip without a {_PICKLE}, not a torch checkpoint",
        details=[f"it holds {names}" if names else "it is empty"],
        remedy="Where a checkpoint was packed into it, unpack that first and give the file inside." if names else "",
        path=reader.path,
    )


def _refuse_twins(path: str, names: Iterable[str], code: str) -> None:
    """Torch looks records up without regard to case: of two names that differ in nothing else it may take either."""
    text = "\n".join(names)
    if text.lower() == text:
        return
    seen: dict[str, str] = {}
    for name in names:
        other = name if name.startswith(code) else seen.setdefault(name.lower(), name)
        if other != name:
            raise CorruptFile(
                f"{path} holds records whose names differ in case alone: {other[:200]} and {name[:200]}", path=path
            )


class _Source:
    """Answers the persistent ids of a pickle with storages, and keeps what is wrong with their records."""

    def __init__(self, reader: Reader, archive: Archive, prefix: str, file: str, base: int = 0) -> None:
        self.reader, self.records, self.prefix, self.file, self.base = reader, archive.records, prefix, file, base
        self.take: Callable[[str, None], Record | None] = self.records.get
        self.storages: dict[str, Storage] = {}
        self.sizes: dict[int, int] = {}
        self.faults: dict[str, str] = {}
        self.byteorder = self._byteorder()
        self.folder = self.place = ""
        self.named = (f"{file}@{base}/" if base else f"{file}/") if file else ""

    def read(self, name: str, folder: str) -> Reading:
        """The pickle `name`, whose storages are the records under `folder`."""
        record = self.records[self.prefix + name]
        data = record_bytes(self.reader, record, _MAX_INFLATED if record.method else MAX_PICKLE)
        self.folder, self.place = folder, f"{self.prefix}{folder}/"
        path = self.reader.path
        where, weight = f"{path}: {record.name}", min(len(data), _WORTH * record.stored)
        return read_pickle(data, path=path, where=where, persistent=self.storage, stored=self.stored, weight=weight)

    def storage(self, machine: Machine, pid: Any) -> Storage:
        """The storage of a persistent id ("storage", class, key, tag, number of elements)."""
        return self.stored(machine, *storage_parts(machine, pid, _PID_FIELDS))

    def stored(self, machine: Machine, dtype: str, key: str, tag: str, numel: int) -> Storage:
        """The storage of a key, as large as so many elements of a dtype."""
        name = key if self.folder == "data" else f"{self.folder}/{key}"
        name = self.named + name if self.named else name
        nbytes = numel * DTYPES[dtype].itemsize
        known = self.storages.get(name)
        if known is None:
            machine.charge(6)
            nbytes = self.sizes.setdefault(nbytes, nbytes)
            span, crc32 = self._place(name, key, nbytes, tag)
            known = self.storages[name] = Storage(name, dtype, nbytes, tag, span, crc32, self.byteorder)
        elif known.nbytes != nbytes:
            raise machine.corrupt(f"gives storage {key} two sizes, {known.nbytes:,} and {nbytes:,} bytes")
        return known

    def _place(self, name: str, key: str, nbytes: int, tag: str) -> tuple[Span | None, int | None]:
        """Where the bytes of a storage lie, and their checksum."""
        record = self.take(self.place + key, None)
        if record is None:
            if tag != "meta":
                self.faults[name] = f"its record {self.folder}/{key} is missing from the archive"
            return None, None
        _, offset, size, stored, crc32, method, _ = record
        if not method and size == nbytes:
            return Span(self.base + offset, nbytes, self.file), crc32
        if size != nbytes:
            what = f"has {size:,} bytes, the pickle says {nbytes:,}"
            self.faults[name] = f"its record {self.folder}/{key} {what}"
        elif size > _MOST_OF_ONE * (stored + 1):
            what = f"says that {stored:,} bytes inflate to {size:,}, which none do"
            self.faults[name] = f"its record {self.folder}/{key} {what}"
        return record.span(self.file, self.base), crc32

    def _byteorder(self) -> str:
        record = self.records.get(self.prefix + "byteorder")
        if record is None:
            return "little"
        order = record_bytes(self.reader, record, _SMALL)
        if order not in (b"little", b"big"):
            raise CorruptFile(
                f"{self.reader.path}: byte order {order[:20]!r} is neither little nor big", path=self.reader.path
            )
        return order.decode()


def _manifest(reader: Reader, archive: Archive, prefix: str) -> Mapping[str, Any] | None:
    record = archive.records.get(prefix + _MANIFEST)
    if record is None:
        return None
    try:
        manifest = parsed(record_bytes(reader, record, _MAX_MANIFEST))
    except (ValueError, RecursionError) as fault:
        raise CorruptFile(f"{reader.path}: {record.name} is no JSON: {fault}", path=reader.path) from None
    if type(manifest) is not dict:
        raise CorruptFile(f"{reader.path}: {record.name} is no JSON object", path=reader.path)
    return sound(manifest)


def _superseded(reader: Reader, archive: Archive, prefix: str) -> Superseded | None:
    """What the archive was before `unmoor relocate` changed its device tags; None where it did not."""
    record = archive.records.get(prefix + RECORD)
    return None if record is None else read_record(record_bytes(reader, record, _MAX_INFLATED))


def _relocated(before: Superseded | None) -> list[Finding]:
    moves = [f"{tag} to {goal}" for tag, goals in before.moves.items() for goal in goals] if before is not None else []
    if not moves:
        return []
    message = f"unmoor relocate changed device tags: {listing(moves)}"
    return [Finding("relocated", "info", "", message, "unmoor relocate --undo takes it back")]


def _writer(manifest: Mapping[str, Any] | None) -> str | None:
    """The torch that wrote the file, where unmoor's manifest tells; torch itself does not."""
    writer = (manifest or {}).get("writer")
    version = writer.get("torch") if type(writer) is dict else None
    return version if type(version) is str else None


def _facts(reader: Reader, archive: Archive, prefix: str, records: int) -> dict[str, Any]:
    """Where things lie in the container of so many records. `format_version` is the archive's own, not torch's."""
    record = archive.records[prefix + _PICKLE]
    facts: dict[str, Any] = {
        "archive": prefix.removesuffix("/"),
        "records": records,
        "data_pkl": None if record.method else (record.offset, record.nbytes),
        "central_directory": (archive.directory.offset, archive.directory.nbytes),
    }
    version = archive.records.get(prefix + "version")
    if version is not None and version.nbytes <= _SMALL:
        facts["format_version"] = record_bytes(reader, version, _SMALL).decode("ascii", "replace").strip()
    return facts


def _findings(archive: Archive, prefix: str) -> list[Finding]:
    findings = []
    code = prefix + _CODE
    packed = [name for name, record in archive.records.items() if record.method and not name.startswith(code)]
    if packed:
        message = f"{count(len(packed), 'record')} compressed, which torch.save never does: {listing(packed)}"
        findings.append(
            Finding("compressed-record", "warning", "", message, "zip it again without compression to read it faster")
        )
    bare = [record.name for record in archive.records.values() if record.crc32 is None]
    if bare:
        message = f"{count(len(bare), 'record')} without a checksum: damage to them cannot be seen"
        findings.append(Finding("no-checksums", "info", "", message))
    if archive.interrupted:
        message = (
            f"{count(archive.trailing, 'byte')} that an interrupted relocation left behind the archive, which is whole"
        )
        findings.append(Finding("interrupted-relocation", "info", "", message, "unmoor relocate --undo removes them"))
    elif archive.trailing:
        message = f"{count(archive.trailing, 'byte')} after the end of the archive"
        findings.append(Finding("trailing-bytes", "warning", "", message))
    return findings
