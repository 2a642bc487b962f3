"""A glance at one checkpoint file: how far its run was, and whether it is whole as far as can be seen at once.

Cheap by law: of a file that unmoor.save wrote the end, the last entry of its directory and the head of its manifest are
read, whatever its size. Of others the pickle, inertly, or the header; of tensor data single numbers. Nothing is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final

from unmoor.errors import CorruptFile, UnsupportedFile
from unmoor.filing import Reader, open_reader, read
from unmoor.values.dtypes import DTYPES
from unmoor.values.manifests import MANIFEST, leading
from unmoor.values.nodes import Storage, TensorNode
from unmoor.values.pausing import collector_paused
from unmoor.values.progress import VALUES
from unmoor.values.text import format_bytes

from .detect import detect
from .glance_tree import tree_tells
from .machine import Machine
from .reading import read_pickle
from .rebuild import storage_parts
from .safetensors import read_header
from .torch_legacy import describe_legacy
from .torch_tar import describe_tar
from .zip_ends import End, read_end
from .zips import Record, record_bytes, records_named

__all__ = ["Glance", "glance_file", "refuse_partial"]

_HEAD: Final = 64 << 10
_ZIP: Final = b"PK\x03\x04"
_ENTRY: Final = b"PK\x01\x02"
_PAGE: Final = 4096
_SHORTEST: Final = 9
_PICKLE: Final = "data.pkl"
_MAX_PICKLE: Final = 64 << 20
"""A pickle of two hundred thousand tensors is smaller; what is larger is too much for a glance."""
_PID_FIELDS: Final = 5
_NUMBERS: Final = {"float32": "f", "float64": "d", "float16": "e", "int64": "q", "int32": "i", "int16": "h"}


@dataclass(frozen=True, slots=True)
class Glance:
    """What a glance tells of a checkpoint that is whole as far as was looked.

    `values` are its plain values by key, `metrics` and `counter` (steps that its optimizer counted, None where nothing
    tells) numbers that it holds as tensors. `notes` are what else to know.
    """

    values: Mapping[Any, Any] = field(default_factory=dict)
    dialect: str = "plain"
    metrics: Mapping[str, float | int] = field(default_factory=dict)
    counter: int | None = None
    notes: tuple[str, ...] = ()


def glance_file(path: str) -> Glance:
    """What a file tells at a glance.

    Raises the FileError that `describe_file` does for what can be seen: no checkpoint, cut short, built to deceive.
    """
    with open_reader(path) as reader, collector_paused():
        if read(reader, 0, len(_ZIP)) == _ZIP:
            return _of_zip(reader)
        kind = detect(reader)
        if kind == "zip":  # without a record
            return _of_zip(reader)
        if kind == "safetensors":
            return _of_safetensors(reader)
        tree = (describe_legacy if kind == "legacy" else describe_tar)(reader, "").tree
        told = tree_tells(tree)
        return Glance(told.values, told.dialect)


def refuse_partial(path: str) -> None:
    """Raise CorruptFile for a file whose end shows that not all of it is there; what has no such end passes."""
    with open_reader(path) as reader:
        head = read(reader, 0, _SHORTEST)
        if not head:
            raise CorruptFile(f"{path} is empty (0 bytes)", path=path)
        if head.startswith(_ZIP):
            _end_of_zip(reader)
        elif head[8:] == b"{":
            _of_safetensors(reader)


def _end_of_zip(reader: Reader) -> End:
    end = read_end(reader)
    if end.offset + end.size != end.start:
        raise CorruptFile(f"{reader.path} is a damaged zip: its directory is not where it says", path=reader.path)
    return end


def _of_zip(reader: Reader) -> Glance:
    end = _end_of_zip(reader)
    values = _own_values(reader, end)
    return _of_pickle(reader, end) if values is None else Glance(values, "unmoor")


def _own_values(reader: Reader, end: End) -> Mapping[str, Any] | None:
    """The values that unmoor's manifest repeats of an archive; None where it has no manifest, or that tells none."""
    record = _manifest_record(reader, end)
    if record is None or record.method:
        return None
    whole = record.nbytes <= _HEAD
    text = record_bytes(reader, record, _HEAD) if whole else read(reader, record.offset, _HEAD)
    values = leading(text, {VALUES}).get(VALUES)
    return values if isinstance(values, dict) else None


def _manifest_record(reader: Reader, end: End) -> Record | None:
    """The manifest: the last record of what unmoor.save wrote, one of all where something was appended."""
    ending = ("/" + MANIFEST,)
    found = _last_record(reader, end, ending) or records_named(reader, end, ending)
    return next(iter(found.values())) if len(found) == 1 else None


def _last_record(reader: Reader, end: End, ending: tuple[str]) -> dict[bytes, Record]:
    """The record that the directory lists last, if it is called so; no more than the directory's end is read."""
    window = min(end.size, _PAGE)
    start = end.offset + end.size - window
    at = read(reader, start, window).rfind(_ENTRY)
    if at < 0:
        return {}
    try:
        return records_named(reader, end._replace(entries=1, size=window - at, offset=start + at), ending)
    except CorruptFile:  # those four bytes were in a name or a checksum
        return {}


def _of_pickle(reader: Reader, end: End) -> Glance:
    """What torch.save wrote, by its pickle."""
    record = _pickle_record(reader, end)
    if max(record.nbytes, record.stored) > _MAX_PICKLE:
        return Glance(notes=(f"its pickle of {format_bytes(record.nbytes)} was not looked into",))
    data = record_bytes(reader, record, _MAX_PICKLE)
    where = f"{reader.path}: {record.name}"
    tree = read_pickle(data, path=reader.path, where=where, persistent=_storage, stored=_stored).value
    told = tree_tells(tree)
    wanted = {**told.metrics, **({"": told.counter} if type(told.counter) is TensorNode else {})}
    numbers = _numbers(reader, end, record.name.removesuffix(_PICKLE), wanted)
    counter = numbers.pop("", told.counter)
    known = type(counter) is int or (type(counter) is float and counter.is_integer())
    return Glance(told.values, told.dialect, numbers, int(counter) if known else None)


def _pickle_record(reader: Reader, end: End) -> Record:
    found = records_named(reader, end, (_PICKLE,))
    for record in found.values():
        if record.name == _PICKLE or record.name.endswith("/" + _PICKLE):
            return record
    raise UnsupportedFile(f"{reader.path} is a zip without a {_PICKLE}, not a torch checkpoint", path=reader.path)


def _storage(machine: Machine, pid: Any) -> Storage:
    return _stored(machine, *storage_parts(machine, pid, _PID_FIELDS))


def _stored(machine: Machine, dtype: str, key: str, tag: str, numel: int) -> Storage:
    """A storage whose place nobody asks for."""
    machine.charge(6)
    return Storage(key, dtype, numel * DTYPES[dtype].itemsize, tag, None, None)


def _numbers(reader: Reader, end: End, prefix: str, wanted: Mapping[str, TensorNode]) -> dict[str, Any]:
    """The values of tensors of one element; of a file of another byte order, or of a rare dtype, none."""
    nodes = {name: node for name, node in wanted.items() if node.dtype in _NUMBERS and node.storage is not None}
    keys = [f"{prefix}data/{node.storage.key}" for node in nodes.values() if node.storage is not None]
    if not keys:
        return {}
    found = {record.name: record for record in records_named(reader, end, (*keys, f"{prefix}byteorder")).values()}
    order = found.get(f"{prefix}byteorder")
    if order is not None and record_bytes(reader, order, _HEAD) != b"little":
        return {}
    made = {}
    for (name, node), key in zip(nodes.items(), keys, strict=True):
        record, form = found.get(key), Struct("<" + _NUMBERS[node.dtype])
        at = node.offset * form.size
        if record is not None and not record.method and at + form.size <= record.nbytes:
            made[name] = form.unpack(read(reader, record.offset + at, form.size))[0]
    return made


def _of_safetensors(reader: Reader) -> Glance:
    """The header alone: what its metadata says in digits, and whether the file reaches as far as its tensors do."""
    start, header = read_header(reader)
    metadata = header.pop("__metadata__", None)
    ends = [_end_of(entry) for entry in header.values()]
    due = start + max(ends, default=0)
    if due > reader.size:
        raise CorruptFile(
            f"{reader.path} is a truncated safetensors file: its tensors reach to byte {due:,}, "
            f"the file to byte {reader.size:,}",
            path=reader.path,
        )
    words = metadata if isinstance(metadata, dict) else {}
    digits = {k: int(v) for k, v in words.items() if type(v) is str and v.isascii() and v.isdigit() and len(v) < 19}
    return Glance(digits)


def _end_of(entry: Any) -> int:
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    last = offsets[-1] if isinstance(offsets, list) and offsets else 0
    return last if type(last) is int else 0
