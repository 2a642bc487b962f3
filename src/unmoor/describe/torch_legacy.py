"""torch.save's stream of before torch 1.6, and of `_use_new_zipfile_serialization=False` since.

Layout, after _legacy_save of torch/serialization.py: five pickles one after another (magic number, 1001, system facts,
the object, the list of storage keys), then for each key its number of elements (int64) and its data. Where the data
lies is known only after the object has been read, so the object is read twice: once for its storages, once for itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from unmoor.errors import CorruptFile, UnsupportedFile
from unmoor.filing import Reader, read
from unmoor.values.catalog import Catalog
from unmoor.values.dtypes import DTYPES
from unmoor.values.finding import Finding
from unmoor.values.nodes import Span, Storage, kind_of
from unmoor.values.text import count

from .assemble import Contents, assemble
from .machine import Machine
from .reading import WINDOW, Reading, read_pickle_at
from .rebuild import View, storage_parts

__all__ = ["MAGIC", "describe_legacy", "read_legacy"]

MAGIC: Final = 0x1950A86A20F9469CFC6C
_PROTOCOL: Final = 1001
_COUNT: Final = 8
_PID_FIELDS: Final = 6
_MODULE_FIELDS: Final = 4


def describe_legacy(reader: Reader, file: str = "") -> Catalog:
    """The catalog of a legacy stream. Raises CorruptFile naming the tensors whose data is cut short.

    `file` is the name of the file among those of a larger catalog; spans and storage keys bear it.
    """
    return assemble(reader, read_legacy(reader, file))


def read_legacy(reader: Reader, file: str = "") -> Contents:
    """What a legacy stream holds, storages that are cut short among it."""
    head, start = _read_head(reader)
    where = f"{reader.path}: the object pickle"
    wanted = _Wanted()
    first = read_pickle_at(reader, start, where=where, persistent=wanted, stored=wanted.stored)
    keys = read_pickle_at(reader, start + first.end, where=f"{reader.path}: the list of storages")
    storages, faults, end = _lay_out(reader, _words(reader, keys.value), wanted, start + first.end + keys.end)
    storages = {key: _placed(storage, file) for key, storage in storages.items()} if file else storages
    placed = _Found(storages)
    window = max(first.end, WINDOW)  # its length is known by now
    reading = read_pickle_at(reader, start, where=where, persistent=placed, stored=placed.stored, window=window)
    return Contents(
        format="torch-legacy",
        tree=reading.value,
        readings=[reading, *head, keys],
        structure=reading.end,
        storages={storage.key: storage for storage in storages.values()},
        faults={storages[key].key: why for key, why in faults.items()},
        findings=_findings(reader.size - end, faults),
        facts={
            "protocol": reading.protocol,
            "byteorder": "little",
            "records": len(storages),
            "data_pkl": (start, reading.end),
            "saved_on_little_endian": head[-1].value.get("little_endian") is not False,
        },
    )


def _read_head(reader: Reader) -> tuple[list[Reading], int]:
    """The three pickles before the object, and where that begins: torch unpickles them all."""
    offset = 0
    head = []
    for what in ("the magic number", "the protocol version", "the system facts"):
        head.append(read_pickle_at(reader, offset, where=f"{reader.path}: {what}"))
        offset += head[-1].end
    values = [reading.value for reading in head]
    if values[0] != MAGIC or type(values[2]) is not dict:
        raise CorruptFile(f"{reader.path} does not begin as a torch stream does", path=reader.path)
    if values[1] != _PROTOCOL:
        raise UnsupportedFile(
            f"{reader.path} is a torch stream of version {_short(values[1])}, not {_PROTOCOL}", path=reader.path
        )
    return head, offset


def _short(version: Any) -> str:
    return str(version)[:40] if type(version) is int else kind_of(version)


def _placed(storage: Storage, file: str) -> Storage:
    """A storage as one of several files."""
    span = None if storage.span is None else replace(storage.span, file=file)
    return replace(storage, key=f"{file}/{storage.key}", span=span)


class _Wanted:
    """First pass: which storages the object asks for, in the order of the pickle."""

    def __init__(self) -> None:
        self.parts: dict[str, tuple[str, str, int]] = {}

    def __call__(self, machine: Machine, pid: Any) -> Any:
        if _is_module(pid):
            return pid[1]
        return self.stored(machine, *storage_parts(machine, pid, _PID_FIELDS))

    def stored(self, machine: Machine, dtype: str, key: str, tag: str, numel: int) -> Storage:
        """A storage whose place is not known yet."""
        known = self.parts.setdefault(key, (dtype, tag, numel))
        if known[2] * DTYPES[known[0]].itemsize != numel * DTYPES[dtype].itemsize:
            raise machine.corrupt(f"gives storage {key} two sizes")
        machine.charge(4)
        return Storage(key, known[0], numel * DTYPES[dtype].itemsize, tag, None, None)


class _Found:
    """Second pass: the storages with their places; a view of before torch 0.4 is a window into its root."""

    def __init__(self, storages: dict[str, Storage]) -> None:
        self.storages = storages

    def __call__(self, machine: Machine, pid: Any) -> Any:
        if _is_module(pid):
            return pid[1]
        _, key, _, _ = storage_parts(machine, pid, _PID_FIELDS)
        storage, view = self.storages[key], pid[5]
        if view is None:
            return storage
        if type(view) is not tuple or len(view) != 3 or type(view[1]) is not int or view[1] < 0:
            raise machine.corrupt("holds a view of a storage that is none")
        machine.charge(1)
        return View(storage, view[1])

    def stored(self, machine: Machine, dtype: str, key: str, tag: str, numel: int) -> Storage:  # noqa: ARG002 - a maker of storages has this form
        """The storage of a key that the first pass met."""
        return self.storages[key]


def _is_module(pid: Any) -> bool:
    """("module", class, file, source): the class of a module saved whole; its source is not looked at."""
    return type(pid) is tuple and len(pid) == _MODULE_FIELDS and pid[0] in ("module", b"module")


def _words(reader: Reader, keys: Any) -> list[str]:
    known = type(keys) is list and all(type(key) in (str, bytes) for key in keys)
    if not known:
        raise CorruptFile(f"{reader.path} is damaged: its list of storages is none", path=reader.path)
    return [key.decode("ascii", "replace") if type(key) is bytes else key for key in keys]


def _lay_out(
    reader: Reader, keys: Iterable[str], wanted: _Wanted, offset: int
) -> tuple[dict[str, Storage], dict[str, str], int]:
    """Where each storage lies, why some do not, and where the data ends."""
    places: dict[str, Span] = {}
    faults: dict[str, str] = {}
    broken = ""
    for key in keys:
        if key not in wanted.parts or key in places or key in faults:
            raise CorruptFile(
                f"{reader.path} is damaged: storage {key[:40]} is listed, and not once used", path=reader.path
            )
        dtype, _, numel = wanted.parts[key]
        why = broken or _fault(reader, offset, numel, nbytes := numel * DTYPES[dtype].itemsize)
        if why:
            faults[key], broken = why, "its data comes after data that is cut short"
            continue
        places[key] = Span(offset + _COUNT, nbytes)
        offset += _COUNT + nbytes
    storages = {}
    for key, (dtype, tag, numel) in wanted.parts.items():
        if key not in places and key not in faults and tag != "meta":
            faults[key] = "its storage is missing from the list of storages"
        storages[key] = Storage(key, dtype, numel * DTYPES[dtype].itemsize, tag, places.get(key), None)
    return storages, faults, reader.size if broken else offset


def _fault(reader: Reader, offset: int, numel: int, nbytes: int) -> str:
    head = read(reader, offset, _COUNT)
    if len(head) < _COUNT:
        return f"its data is short by all its {nbytes:,} bytes"
    found = int.from_bytes(head, "little", signed=True)
    if found != numel:
        return f"its data has {found:,} elements at byte {offset:,}, the pickle says {numel:,}"
    missing = offset + _COUNT + nbytes - reader.size
    return f"its data is short by {count(missing, 'byte')}" if missing > 0 else ""


def _findings(trailing: int, faults: dict[str, str]) -> list[Finding]:
    findings = [
        Finding("no-checksums", "info", "", "a legacy stream holds no checksums: damage to its data cannot be seen")
    ]
    if trailing > 0 and not faults:
        message = f"{count(trailing, 'byte')} after the last storage"
        findings.append(Finding("trailing-bytes", "warning", "", message))
    return findings
