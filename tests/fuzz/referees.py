"""Who else is asked: Python's unpickler with classes that do nothing, zipfile, and the reader of safetensors.

Each answers what is wrong with our answer in words, "" where nothing is. Where we refuse what they accept nothing is
wrong: a file that we do not read harms nobody. Where both accept, what they say must be the same.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import zipfile
import zlib
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Any

import safetensors

from tests.fuzz.fingerprint import difference, fingerprint
from unmoor.describe.reading import Reading
from unmoor.describe.zips import Archive, record_bytes
from unmoor.errors import FileError
from unmoor.filing import Reader
from unmoor.values.catalog import Catalog

__all__ = ["of_pickle", "of_safetensors", "of_zip"]

_HARMLESS = {
    "collections.OrderedDict": OrderedDict, "collections.Counter": Counter, "builtins.set": set,
    "builtins.frozenset": frozenset,
    "builtins.list": list, "builtins.tuple": tuple, "builtins.dict": dict,
}  # fmt: skip
_MOST_NUMBERS = 1 << 16
_LARGE = 1 << 24


class Inert:
    """Stands for any class; nothing of it is run."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, value: Any) -> None:
        pass

    add = append
    extend = append


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")
        self.asked: list[tuple[str, str]] = []
        self.persistent = 0

    def find_class(self, module: str, name: str) -> Any:
        self.asked.append((module, name))
        return _HARMLESS.get(f"{module}.{name}") or type("Inert", (Inert,), {})

    def persistent_load(self, pid: Any) -> Any:
        self.persistent += 1
        return Inert()


def of_pickle(data: bytes, ours: Reading | BaseException) -> str:
    """What Python's unpickler says of a pickle that we read: the same value, and no name that we have not told."""
    if isinstance(ours, BaseException) or _remembers_much(data):
        return ""
    unpickler = _Unpickler(data)
    try:
        theirs = unpickler.load()
    except (Exception, RecursionError):  # noqa: BLE001 - whatever made it stop, what it asked for until then counts
        theirs = None
        compared = False
    else:
        compared = not unpickler.persistent and all(f"{m}.{n}" in _HARMLESS for m, n in unpickler.asked)
    told = set(ours.globals)
    untold = [f"{m}.{n}" for m, n in unpickler.asked if not told & set(_spellings(m, n))]
    if untold:
        return f"Python's unpickler asks for {untold[:3]}, which we do not tell"
    return (
        difference(fingerprint(ours.value), fingerprint(theirs))
        if compared and not ours.calls and not ours.notes
        else ""
    )


def _spellings(module: str, name: str) -> Iterable[str]:
    yield f"{module}.{name}"
    yield ".".join(NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name)))


def _remembers_much(data: bytes) -> bool:
    """Whether a pickle uses numbers for which the C unpickler would make room by the gigabyte."""
    try:
        return any(
            isinstance(arg, int) and arg > _MOST_NUMBERS
            for op, arg, _ in pickletools.genops(data)
            if op.name in ("LONG_BINPUT", "PUT")
        )
    except (ValueError, IndexError, OverflowError):
        return True


def of_zip(reader: Reader, data: bytes, ours: Archive) -> str:
    """What zipfile says of an archive that we read: the same records with the same bytes."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as theirs:
            infos = theirs.infolist()
            names = [
                info.filename.encode("utf-8" if info.flag_bits & 0x800 else "cp437").decode("utf-8", "replace")
                for info in infos
            ]
            if [_cut(name) for name in names] != [_cut(name) for name in ours.records]:
                return f"zipfile lists {names[:6]}, we {list(ours.records)[:6]}"
            for info, record in zip(infos, ours.records.values(), strict=True):
                if (info.file_size, info.compress_size) != (record.nbytes, record.stored):
                    return f"zipfile says {record.name} has {info.file_size} bytes, we {record.nbytes}"
                if fault := _record(theirs, info, reader, record):
                    return fault
    except (zipfile.BadZipFile, NotImplementedError, UnicodeError, RuntimeError, ValueError, OSError):
        return ""
    return ""


def _cut(name: str) -> str:
    """Names end at their first zero byte for zipfile."""
    return name.partition("\0")[0]


def _record(theirs: zipfile.ZipFile, info: zipfile.ZipInfo, reader: Reader, record: Any) -> str:
    if max(record.nbytes, record.stored) > _LARGE:
        return ""
    try:
        due = theirs.read(info)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error, OSError, UnicodeError):
        return ""
    try:
        found = record_bytes(reader, record, _LARGE)
    except FileError as fault:
        return "" if record.crc32 is None else f"zipfile reads {record.name}, we refuse it: {fault}"
    return "" if found == due else f"zipfile reads other bytes in {record.name}"


def of_safetensors(data: bytes, ours: Catalog | BaseException) -> str:
    """What the format's own reader says: it accepts whatever we accept, and every tensor is the same."""
    if isinstance(ours, BaseException):
        return ""
    try:
        theirs = dict(safetensors.deserialize(data))
    except safetensors.SafetensorError as fault:
        return f"safetensors refuses it, we read it: {fault}"
    if set(theirs) != {entry.keys[0] for entry in ours.tensors}:
        return f"safetensors lists {sorted(theirs)[:6]}"
    for entry in ours.tensors:
        told = theirs[entry.keys[0]]
        start = entry.span.offset if entry.span is not None else 0
        if bytes(told["data"]) != data[start : start + entry.nbytes] or (
            entry.dtype != "float4_e2m1fn_x2" and tuple(told["shape"]) != entry.shape
        ):
            return f"safetensors reads {entry.path!r} as {told['shape']} and other bytes"
    return ""
