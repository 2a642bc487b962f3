"""torch.save's tar archive of before torch 0.1.10: four members, of which torch still reads three.

Layout, after legacy_load of torch/serialization.py: `storages` holds a count, then for each storage a pickle of (key,
device tag, class), its number of elements (int64) and its data, then a pickle of windows that count as storages of
their own; `tensors` a count, then for each tensor a pickle of (key, storage key, class), its dimensions, sizes,
strides and offset as raw numbers; `pickle` the object, whose persistent ids are those keys. Data is little-endian.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final

from unmoor.errors import CorruptFile, HostileFile
from unmoor.filing import Reader, read
from unmoor.values.catalog import Catalog
from unmoor.values.dangers import danger_of
from unmoor.values.dtypes import DTYPES
from unmoor.values.finding import Finding
from unmoor.values.nodes import Opaque, Span, Storage, TensorNode
from unmoor.values.text import count, listing

from .assemble import Contents, assemble
from .machine import Machine
from .reading import Reading, read_pickle_at
from .rebuild import View, storage_dtype

__all__ = ["MEMBERS", "describe_tar", "is_torch_tar", "read_tar", "storage_heads"]

MEMBERS: Final = ("sys_info", "pickle", "storages", "tensors")
_BLOCK: Final = 512
_MAX_HEADERS: Final = 64
_MAX_ITEMS: Final = 1_000_000
_MAX_DIMENSIONS: Final = 64
_ITEM: Final = 512
_FILES: Final = (b"0", b"\0")
_COUNT: Final = Struct("<q")
_DIMENSIONS: Final = Struct("<i4x")
_LIMIT: Final = 1 << 63
_CLASS_FIELDS: Final = 3
_TENSORS: Final = {
    f"torch.{place}{row.storage.removesuffix('Storage')}Tensor": row.name
    for row in DTYPES.values() if row.storage for place in ("", "cuda.")
}  # fmt: skip


def is_torch_tar(reader: Reader) -> bool:
    """Whether a tar archive holds what torch wrote into one, whole or cut short."""
    return any(name in _members(reader) for name in MEMBERS)


def describe_tar(reader: Reader, file: str = "") -> Catalog:
    """The catalog of a tar archive of torch. Raises CorruptFile naming the tensors whose data is cut short.

    `file` is the name of the file among those of a larger catalog; spans and storage keys bear it.
    """
    return assemble(reader, read_tar(reader, file))


def read_tar(reader: Reader, file: str = "") -> Contents:
    """What a tar archive of torch holds, storages that are cut short among it."""
    members = _members(reader)
    lacking = [name for name in MEMBERS[1:] if name not in members]
    if lacking:
        raise CorruptFile(
            f"{reader.path} is a torch tar archive (before torch 0.1.10) without its {listing(lacking)}",
            remedy="The file was cut short. Copy it again, or use the checkpoint before it.",
            path=reader.path,
        )
    parts = _Parts(reader, file)
    parts.read_storages(members["storages"])
    parts.read_tensors(members["tensors"])
    start = members["pickle"].offset
    reading = read_pickle_at(reader, start, where=f"{reader.path}: the object pickle", persistent=parts)
    system = _system(parts, members.get("sys_info"))
    return Contents(
        format="torch-tar",
        tree=reading.value,
        readings=[reading, *parts.readings],
        structure=reading.end + members["tensors"].nbytes,
        storages={storage.key: storage for storage in parts.storages.values()},
        faults=parts.faults,
        findings=[Finding("no-checksums", "info", "", "a tar of torch holds no checksums: damage cannot be seen")],
        facts={
            "protocol": reading.protocol,
            "byteorder": "little",
            "records": len(parts.storages),
            "saved_on_little_endian": system.get("little_endian") is not False,
        },
    )


def storage_heads(reader: Reader) -> tuple[Span, list[tuple[Span, str]]]:
    """The member that holds the storages of a whole tar, and where in it the pickle of each stands, with its key."""
    member = _members(reader)["storages"]
    parts, cursor = _Parts(reader, ""), _Cursor(reader, member, "the storages", member.offset)
    heads = []
    for _ in range(cursor.count()):
        start = cursor.at
        key, dtype, _ = parts.storage_head(cursor, cursor.pickle())
        heads.append((Span(start, cursor.at - start), str(key)))
        nbytes = cursor.number(_COUNT) * DTYPES[dtype].itemsize
        cursor.at += nbytes
    return member, heads


def _members(reader: Reader) -> dict[str, Span]:
    """Where each regular file of the archive lies, by name; a member may reach past the end of a file cut short."""
    found: dict[str, Span] = {}
    offset = 0
    for _ in range(_MAX_HEADERS):
        head = read(reader, offset, _BLOCK)
        if len(head) < _BLOCK or not any(head):
            break
        name, digits = head[:100].partition(b"\0")[0], head[124:136].strip(b" \0")
        if not digits or any(digit not in b"01234567" for digit in digits):
            raise CorruptFile(f"{reader.path} is a damaged tar: no size at byte {offset + 124:,}", path=reader.path)
        nbytes = int(digits, 8)
        if head[156:157] in _FILES:
            found.setdefault(name.decode("utf-8", "replace").removeprefix("./"), Span(offset + _BLOCK, nbytes))
        offset += _BLOCK + -(-nbytes // _BLOCK) * _BLOCK
    return found


def _system(parts: _Parts, member: Span | None) -> dict[Any, Any]:
    if member is None:
        return {}
    where = f"{parts.reader.path}: the system facts"
    reading = read_pickle_at(parts.reader, member.offset, where=where, window=_ITEM)
    parts.readings.append(reading)
    return reading.value if type(reading.value) is dict else {}


@dataclass(slots=True)
class _Cursor:
    """A position within one member."""

    reader: Reader
    member: Span
    what: str
    at: int
    readings: list[Reading] = field(default_factory=list)
    """Those that call something, or name what is dangerous: torch unpickles them too."""

    def pickle(self) -> Any:
        """The next pickle of the member."""
        reading = read_pickle_at(self.reader, self.at, where=f"{self.reader.path}: {self.what}", window=_ITEM)
        self.at += reading.end
        self._hold()
        if reading.calls or any(map(danger_of, reading.globals)):
            self.readings.append(reading)
        return reading.value

    def number(self, layout: Struct) -> int:
        """The next raw number."""
        return int(self.numbers(layout)[0])

    def numbers(self, layout: Struct) -> tuple[int, ...]:
        """The next raw numbers."""
        data = read(self.reader, self.at, layout.size)
        self.at += layout.size
        self._hold()
        return layout.unpack(data) if len(data) == layout.size else self._short()

    def count(self) -> int:
        """How many items follow."""
        number = self.pickle()
        if type(number) is not int or number < 0:
            raise self.corrupt("does not begin with a count")
        if number > _MAX_ITEMS:
            raise HostileFile(
                f"{self.reader.path}: {self.what} are {number:,}; at most {_MAX_ITEMS:,} are read",
                path=self.reader.path,
            )
        return number

    def corrupt(self, what: str) -> CorruptFile:
        return CorruptFile(f"{self.reader.path} is damaged: {self.what}, at byte {self.at:,}, {what}",
                           path=self.reader.path)  # fmt: skip

    def _hold(self) -> None:
        if self.at > self.member.end:
            self._short()

    def _short(self) -> Any:
        raise self.corrupt("reach past their end")


class _Parts:
    """The storages, windows and tensors of a tar by key; answers the persistent ids of its object pickle."""

    def __init__(self, reader: Reader, file: str) -> None:
        self.reader, self.file = reader, file
        self.storages: dict[int, Storage] = {}
        self.views: dict[int, View] = {}
        self.tensors: dict[int, TensorNode] = {}
        self.faults: dict[str, str] = {}
        self.readings: list[Reading] = []
        self.broken = False

    def __call__(self, machine: Machine, pid: Any) -> Any:
        if type(pid) is tuple and len(pid) == _CLASS_FIELDS:
            return pid[0]
        key = int(pid) if type(pid) is str and pid.isascii() and pid.isdigit() and len(pid) < 32 else pid
        for known in (self.tensors, self.views, self.storages):
            if type(key) is int and key in known:
                return known[key]
        raise machine.corrupt("recalls a tensor that the archive does not hold")

    def read_storages(self, member: Span) -> None:
        """All storages, and the windows into them. Stops at one that is cut short: all that follow are lost."""
        cursor = _Cursor(self.reader, member, "the storages", member.offset, self.readings)
        number = cursor.count()
        for _ in range(number):
            key, dtype, tag = self.storage_head(cursor, cursor.pickle())
            nbytes = cursor.number(_COUNT) * DTYPES[dtype].itemsize
            if not 0 <= nbytes < _LIMIT:
                raise cursor.corrupt("hold one of a size that is none")
            name = f"{self.file}/{key}" if self.file else str(key)
            missing = cursor.at + nbytes - min(member.end, self.reader.size)
            span = Span(cursor.at, nbytes, self.file)
            self.storages[key] = Storage(name, dtype, nbytes, tag, span if missing <= 0 else None, None)
            cursor.at += nbytes
            if missing > 0:
                self.faults[name] = f"its data is short by {count(missing, 'byte')}"
                self.broken = True
                return
        windows = cursor.pickle()
        for entry in windows if type(windows) is list else ():
            self._view(cursor, entry)

    def storage_head(self, cursor: _Cursor, head: Any) -> tuple[int, str, str]:
        """Key, element type and device tag of a storage."""
        if type(head) is not tuple or len(head) != _CLASS_FIELDS or type(head[0]) is not int:
            raise cursor.corrupt("hold one whose head is none")
        dtype, tag = storage_dtype(head[2]), _word(head[1])
        if dtype is None or tag is None:
            raise cursor.corrupt("hold one of a class that is none of torch's")
        return head[0], dtype, tag

    def _view(self, cursor: _Cursor, entry: Any) -> None:
        whole = type(entry) is tuple and len(entry) == 4 and all(type(part) is int for part in entry)
        if not whole or entry[1] not in self.storages or entry[2] < 0:
            raise cursor.corrupt("hold a window that is none")
        self.views[entry[0]] = View(self.storages[entry[1]], entry[2])

    def read_tensors(self, member: Span) -> None:
        """All tensors, as windows into their storages."""
        cursor = _Cursor(self.reader, member, "the tensors", member.offset, self.readings)
        for _ in range(cursor.count()):
            head = cursor.pickle()
            if type(head) is not tuple or len(head) != _CLASS_FIELDS or type(head[0]) is not int:
                raise cursor.corrupt("hold one whose head is none")
            self.tensors[head[0]] = self._tensor(cursor, head[1], head[2])

    def _tensor(self, cursor: _Cursor, storage_key: Any, kind: Any) -> TensorNode:
        dimensions = cursor.number(_DIMENSIONS)
        if not 0 <= dimensions <= _MAX_DIMENSIONS:
            raise cursor.corrupt(f"hold one of {dimensions:,} dimensions")
        numbers = cursor.numbers(Struct(f"<{2 * dimensions + 1}q"))
        shape, stride, offset = numbers[:dimensions], numbers[dimensions:-1], numbers[-1]
        if type(storage_key) is int and storage_key in self.views:
            view = self.views[storage_key]
            storage, offset = view.storage, offset + view.offset
        elif type(storage_key) is int and storage_key in self.storages:
            storage = self.storages[storage_key]
        else:
            storage = self._lost(cursor, storage_key, kind)
        return TensorNode(storage, offset, shape, stride, storage.dtype, storage.device)

    def _lost(self, cursor: _Cursor, key: Any, kind: Any) -> Storage:
        """What stands for a storage that the archive no longer holds, because one before it is cut short."""
        dtype = _TENSORS.get(kind.name) if type(kind) is Opaque else None
        if not self.broken or dtype is None or type(key) is not int:
            raise cursor.corrupt("hold one on a storage that is not there")
        name = f"{self.file}/{key}" if self.file else str(key)
        self.faults[name] = "its data comes after data that is cut short"
        self.storages[key] = Storage(name, dtype, _LIMIT, "cpu", None, None)
        return self.storages[key]


def _word(value: Any) -> str | None:
    """Text that Python 2 may have written as bytes."""
    if type(value) is bytes:
        return value.decode("ascii", "replace")
    return value if type(value) is str else None
