"""Writers of files that no torch of today writes: tar archives, streams of Python 2, of big-endian machines, old zips.

They follow the readers of torch 2.13 (legacy_load, _legacy_load and _load of torch/serialization.py), which the tests
ask for a second opinion. Pickles are put together by opcode, because Python 3 writes no strings of bytes.
"""

from __future__ import annotations

import io
import struct
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from unmoor.values.dtypes import DTYPES

MAGIC: Final = 0x1950A86A20F9469CFC6C
FACTS: Final = {b"protocol_version": 1001, b"type_sizes": {b"short": 2, b"int": 4, b"long": 4}}


@dataclass(frozen=True)
class Name:
    """A class or function: its module and its name."""

    module: str
    name: str


@dataclass(frozen=True)
class Call:
    """What a pickle calls, with arguments, and the state it sets on the result (a BUILD) where it is given."""

    function: Name
    args: tuple[Any, ...]
    state: Any = ...


@dataclass(frozen=True)
class Pid:
    """A persistent id."""

    value: Any


@dataclass(frozen=True)
class Long:
    """A `long` of Python 2."""

    value: int


def dump(value: Any) -> bytes:
    """A pickle of protocol 2 as Python 2 wrote it: bytes are its str, str its unicode."""
    return b"\x80\x02" + _encode(value) + b"."


def _encode(value: Any) -> bytes:  # noqa: C901 - one branch a type
    if isinstance(value, bool) or value is None:
        return {True: b"\x88", False: b"\x89", None: b"N"}[value]
    if isinstance(value, int) and -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    if isinstance(value, int | Long):
        number = value.value if isinstance(value, Long) else value
        data = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
        return b"\x8a" + bytes([len(data)]) + data
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if isinstance(value, bytes):
        return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value
    if isinstance(value, str):
        data = value.encode()
        return b"X" + struct.pack("<I", len(data)) + data
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_encode, value)) + b"t"
    if isinstance(value, list):
        return b"](" + b"".join(map(_encode, value)) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(_encode(part) for pair in value.items() for part in pair) + b"u"
    if isinstance(value, Name):
        return f"c{value.module}\n{value.name}\n".encode()
    if isinstance(value, Pid):
        return _encode(value.value) + b"Q"
    made = _encode(value.function) + _encode(value.args) + b"R"
    return made if value.state is ... else made + _encode(value.state) + b"b"


def ordered(pairs: Mapping[Any, Any]) -> Call:
    """An OrderedDict as Python 2 pickled it: called with a list of lists."""
    return Call(Name("collections", "OrderedDict"), ([[key, value] for key, value in pairs.items()],))


def storage_class(tensor: torch.Tensor, place: str = "torch") -> Name:
    return Name(place, DTYPES[str(tensor.dtype).removeprefix("torch.")].storage)


def raw(tensor: torch.Tensor, byteorder: str = "little") -> bytes:
    """The bytes of a whole storage, each number (each part of a complex one) in `byteorder`."""
    data = bytes(tensor.untyped_storage())
    size = tensor.itemsize // 2 if tensor.is_complex() else tensor.itemsize
    if byteorder == "little" or size == 1:
        return data
    return b"".join(data[at : at + size][::-1] for at in range(0, len(data), size))


class Stream:
    """Storages for one file, by the order in which they were asked for."""

    def __init__(self, tag: str = "cpu") -> None:
        self.tag = tag.encode()
        self.tensors: dict[bytes, torch.Tensor] = {}

    def pid(self, tensor: torch.Tensor, *, view: tuple[Any, ...] | None = None, legacy: bool = True) -> Pid:
        key = self._key(tensor)
        numel = tensor.untyped_storage().nbytes() // tensor.itemsize
        return Pid((b"storage", storage_class(tensor), key, self.tag, numel, *([view] if legacy else [])))

    def _key(self, tensor: torch.Tensor) -> bytes:
        same = [k for k, t in self.tensors.items() if t.untyped_storage()._cdata == tensor.untyped_storage()._cdata]
        key = same[0] if same else str(140_000_000_000_000 + 64 * len(self.tensors)).encode()
        self.tensors.setdefault(key, tensor)
        return key

    def tensor(self, tensor: torch.Tensor, *, legacy: bool = True, version: int = 1) -> Call:
        """A tensor as torch 0.1.10 to 0.3 rebuilt it (version 1), or torch 0.4 and later (version 2)."""
        window = (self.pid(tensor, legacy=legacy), tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        if version == 1:
            return Call(Name("torch._utils", "_rebuild_tensor"), window)
        more = (tensor.requires_grad, Call(Name("collections", "OrderedDict"), ()))
        return Call(Name("torch._utils", "_rebuild_tensor_v2"), (*window, *more))

    def untyped(self, tensor: torch.Tensor) -> Call:
        """A tensor of a dtype that has no storage class, as torch 2 rebuilds it."""
        nbytes = tensor.untyped_storage().nbytes()
        pid = Pid((b"storage", Name("torch.storage", "UntypedStorage"), self._key(tensor), self.tag, nbytes))
        window = (pid, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), False)
        dtype = Name("torch", str(tensor.dtype).removeprefix("torch."))
        hooks = Call(Name("collections", "OrderedDict"), ())
        return Call(Name("torch._utils", "_rebuild_tensor_v3"), (*window, hooks, dtype))

    def written(self, value: Any, *, little: bool = True) -> bytes:
        """The whole stream. Data is little-endian on every machine; the facts say which kind wrote it."""
        head = [MAGIC, 1001, {**FACTS, b"little_endian": little}]
        out = [*map(dump, head), dump(value), dump(sorted(self.tensors))]
        for key in sorted(self.tensors):
            data = raw(self.tensors[key])
            out += [struct.pack("<q", len(data) // self.tensors[key].itemsize), data]
        return b"".join(out)

    def zipped(self, value: Any, name: str, records: Iterable[tuple[str, bytes]], byteorder: str = "little") -> bytes:
        """The archive of torch 1.4 and later: `records` are those beside the pickle and the data."""
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            for path, data in [
                ("data.pkl", dump(value)),
                *((f"data/{key.decode()}", raw(tensor, byteorder)) for key, tensor in self.tensors.items()),
                *records,
            ]:
                archive.writestr(zipfile.ZipInfo(f"{name}/{path}"), data)
        return out.getvalue()


class Tar:
    """The archive of torch before 0.1.10: tensors and storages stand in members of their own, by number."""

    def __init__(self, tag: str = "cpu") -> None:
        self.tag = tag.encode()
        self.tensors: list[tuple[int, int, torch.Tensor]] = []
        self.storages: dict[int, torch.Tensor] = {}
        self.views: list[tuple[int, int, int, int]] = []

    def tensor(self, tensor: torch.Tensor, *, window: tuple[int, int] | None = None) -> Pid:
        """A tensor; with `window` (first element, number) it stands on a storage that is a window into its own."""
        root = self._storage(tensor)
        storage, number = root, 2000 + len(self.tensors)
        if window is not None:
            storage = 3000 + len(self.views)
            self.views.append((storage, root, *window))
        self.tensors.append((number, storage, tensor))
        return Pid(str(number).encode())

    def _storage(self, tensor: torch.Tensor) -> int:
        for number, known in self.storages.items():
            if known.untyped_storage()._cdata == tensor.untyped_storage()._cdata:
                return number
        number = 1000 + len(self.storages)
        self.storages[number] = tensor
        return number

    def written(self, value: Any) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w:", format=tarfile.PAX_FORMAT) as archive:
            members = {
                "sys_info": dump({**FACTS, b"little_endian": True}),
                "pickle": dump(value),
                "tensors": self._tensors(),
                "storages": self._storages(),
            }
            for name, data in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        return out.getvalue()

    def _tensors(self) -> bytes:
        out = [dump(len(self.tensors))]
        for number, storage, tensor in self.tensors:
            kind = storage_class(tensor)
            first = next((start for view, _, start, _ in self.views if view == storage), 0)
            out.append(dump((number, storage, Name(kind.module, kind.name.replace("Storage", "Tensor")))))
            out.append(struct.pack("<i4x", tensor.dim()))
            out.append(struct.pack(f"<{2 * tensor.dim()}q", *tensor.shape, *tensor.stride()))
            out.append(struct.pack("<q", tensor.storage_offset() - first))
        return b"".join(out)

    def _storages(self) -> bytes:
        out = [dump(len(self.storages))]
        for number, tensor in self.storages.items():
            data = raw(tensor)
            out += [dump((number, self.tag, storage_class(tensor)))]
            out += [struct.pack("<q", len(data) // tensor.itemsize), data]
        return b"".join([*out, dump([tuple(view) for view in self.views])])
