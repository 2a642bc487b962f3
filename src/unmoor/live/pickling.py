"""A tree as the pickle that torch.load reads, and the storages it refers to as blobs of bytes.

The opcodes are those of torch's own writer (protocol 2, persistent ids for storages). A storage is written only as far
as the saved tensors reach into it; tensors that share memory go on sharing it.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.serialization import location_tag

from .sinks import host_memory

__all__ = ["StorageBlob", "StorageRef", "pickle_tree", "storage_ranges"]

_ALIGN = 16
_PIECE = 4 << 20


class StorageBlob:
    """The bytes of one storage from byte `start` on: read in place on the CPU, copied piece by piece elsewhere."""

    def __init__(self, storage: torch.UntypedStorage, start: int, nbytes: int) -> None:
        self.nbytes = nbytes
        self._bytes = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, start, (nbytes,), (1,))
        self._host = storage.device.type == "cpu"

    def direct(self, offset: int, nbytes: int) -> memoryview | None:
        """These bytes where they are; None where the host cannot see them."""
        if not self._host or nbytes == 0:
            return None
        return host_memory(self._bytes, self.nbytes)[offset : offset + nbytes]

    def fetch(self, offset: int, target: memoryview) -> None:
        """Copy bytes from `offset` into `target`, as many as it holds."""
        torch.frombuffer(target, dtype=torch.uint8).copy_(self._bytes[offset : offset + len(target)])

    def checksum(self, crc32: Callable[..., int], alive: Callable[[], None]) -> int:
        """The CRC-32 of all bytes. `alive` is called for each piece that was read."""
        total = 0
        buffer = bytearray(0 if self._host else min(_PIECE, self.nbytes))
        for offset in range(0, self.nbytes, _PIECE):
            size = min(_PIECE, self.nbytes - offset)
            data = self.direct(offset, size)
            if data is None:
                data = memoryview(buffer)[:size]
                self.fetch(offset, data)
            total = crc32(data, total)
            alive()
        return total


@dataclass(slots=True)
class _Range:
    key: str
    storage: torch.UntypedStorage
    start: int
    end: int
    dtypes: set[torch.dtype] = field(default_factory=set)

    def typed(self, tensor: torch.Tensor) -> str | None:
        """The storage class to name; None where only an untyped storage tells the truth to every reader."""
        if len(self.dtypes) > 1 or (self.end - self.start) % tensor.itemsize:
            return None
        name: str | None = torch.storage._dtype_to_storage_type_map().get(tensor.dtype)
        return name


@dataclass(frozen=True, slots=True)
class StorageRef:
    """Stands for a storage inside a pickler: what its persistent id says."""

    type: Any
    key: str
    location: str
    numel: int


def pickle_tree(tree: Any, tensors: Iterable[torch.Tensor]) -> tuple[bytes, dict[str, StorageBlob]]:
    """The pickle of `tree`, and key -> blob of every storage in it. `tensors` are all tensors of the tree."""
    ranges = storage_ranges(tensors)
    sink = io.BytesIO()
    pickler = _Pickler(sink, ranges)
    pickler.dump(tree)
    blobs = {r.key: StorageBlob(r.storage, r.start, r.end - r.start) for r in pickler.used.values()}
    return sink.getvalue(), blobs


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout == torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def storage_ranges(tensors: Iterable[torch.Tensor]) -> dict[int, _Range]:
    """Storage -> the bytes of it that plain tensors reach, from a multiple of the largest element size on."""
    found: dict[int, _Range] = {}
    whole: set[int] = set()
    for tensor in tensors:
        if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
            continue
        storage = tensor.untyped_storage()
        if not _is_plain(tensor):
            whole.add(storage._cdata)
        low, high = _extent(tensor)
        entry = found.setdefault(storage._cdata, _Range("", storage, low, high))
        entry.start, entry.end = min(entry.start, low), max(entry.end, high)
        entry.dtypes.add(tensor.dtype)
    for identity, entry in found.items():
        entry.start = 0 if identity in whole else entry.start - entry.start % _ALIGN
        entry.end = entry.storage.nbytes() if identity in whole else entry.end
    return found


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    first = int(tensor.storage_offset()) * tensor.itemsize
    if tensor.numel() == 0:
        return first, first
    reach = sum((int(size) - 1) * int(stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (reach + 1) * tensor.itemsize


def _storage_class(storage: torch.storage.TypedStorage) -> Any:
    return getattr(torch, torch.storage._dtype_to_storage_type_map()[storage.dtype])


def _no_hooks() -> OrderedDict[str, Any]:
    return OrderedDict()


class _Pickler(pickle.Pickler):
    """Writes tensors as torch does, with storages by persistent id."""

    def __init__(self, sink: io.BytesIO, ranges: dict[int, _Range]) -> None:
        super().__init__(sink, protocol=2)
        self._ranges = ranges
        self.used: dict[tuple[int, bool], _Range] = {}

    def persistent_id(self, obj: Any) -> Any:
        """The id of a storage; None for everything else."""
        if isinstance(obj, StorageRef):
            return ("storage", obj.type, obj.key, obj.location, obj.numel)
        if isinstance(obj, torch.storage.TypedStorage):
            return self._whole(obj._untyped_storage, _storage_class(obj), obj.dtype.itemsize)
        if isinstance(obj, torch.UntypedStorage):
            return self._whole(obj, torch.UntypedStorage, 1)
        return None

    def reducer_override(self, obj: Any) -> Any:
        """Plain tensors by their window into the written range; the rest as pickle and torch do."""
        if type(obj) is torch.Tensor and _is_plain(obj):
            return self._reduce(obj)
        return NotImplemented

    def _reduce(self, tensor: torch.Tensor) -> Any:
        storage = tensor.untyped_storage()
        entry = self._use(storage, trimmed=True)
        typed = entry.typed(tensor)
        offset = tensor.storage_offset() - entry.start // tensor.itemsize
        shape, stride = tuple(tensor.size()), tensor.stride()
        if tensor.numel() == 0:
            offset = max(0, min(offset, (entry.end - entry.start) // tensor.itemsize))
        nbytes = entry.end - entry.start
        where = location_tag(storage)
        if typed is not None:
            ref = StorageRef(getattr(torch, typed), entry.key, where, nbytes // tensor.itemsize)
            return torch._utils._rebuild_tensor_v2, (ref, offset, shape, stride, tensor.requires_grad, _no_hooks())
        ref = StorageRef(torch.UntypedStorage, entry.key, where, nbytes)
        arguments = (ref, offset, shape, stride, tensor.requires_grad, _no_hooks(), tensor.dtype)
        return torch._utils._rebuild_tensor_v3, arguments

    def _whole(self, storage: torch.UntypedStorage, kind: Any, itemsize: int) -> Any:
        entry = self._use(storage, trimmed=False)
        return ("storage", kind, entry.key, location_tag(storage), (entry.end - entry.start) // itemsize)

    def _use(self, storage: torch.UntypedStorage, *, trimmed: bool) -> _Range:
        known = self._ranges.get(storage._cdata)
        covers = known is not None and (trimmed or (known.start == 0 and known.end == storage.nbytes()))
        identity = (storage._cdata, covers)
        if identity not in self.used:
            entry = known if covers and known is not None else _Range("", storage, 0, storage.nbytes())
            entry.key = str(len(self.used))
            self.used[identity] = entry
        return self.used[identity]
