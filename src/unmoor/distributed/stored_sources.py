"""Where the bytes of a conversion come from: storages of a described file, as data to be written.

A storage that is written as it is read, or cast piece by piece, has its checksum held against what was read. All others
are read and checked once before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import cached_property, partial
from threading import Lock
from typing import Final

from unmoor.errors import CorruptFile
from unmoor.execute.checksums import combine, crc32
from unmoor.execute.reading import OpenSpan
from unmoor.execute.sinks import Blob
from unmoor.execute.sources import AheadBlob, SpanBlob, SummedBlob
from unmoor.execute.tiling import same_layout
from unmoor.execute.verify import Fault, check, corrupt
from unmoor.live.casting import Loss, cast_bytes
from unmoor.live.stored import Extent
from unmoor.plan.byteorder import swap_units
from unmoor.plan.taken import Taken
from unmoor.values.catalog import Catalog
from unmoor.values.dtypes import DTYPES, nbytes_of
from unmoor.values.nodes import Storage, TensorNode, deflated
from unmoor.values.strides import contiguous

from .filling import BoxBlob, Filler

__all__ = ["Sources"]

_STAGED: Final = 1 << 20
_ELEMENT: Final = 16


class Sources:
    """The storages of `catalog` that a conversion reads. `fill` reads boxes of tensors, `threads` may read at once.

    `verify` is none, stream (data is checked as it is written where that is possible) or first (all of it before).
    `losses` is key of a storage -> what casting its numbers lost.
    """

    def __init__(
        self, catalog: Catalog, taken: Taken, open_span: OpenSpan, *, verify: str, buffer_bytes: int, threads: int
    ) -> None:
        self.path = catalog.path
        self.buffer_bytes = buffer_bytes
        self.fill = Filler(open_span, buffer_bytes=min(_STAGED, buffer_bytes), threads=1, verify="none")
        self.losses: dict[str, Loss] = {}
        self._open_span, self._taken = open_span, taken
        self._verify, self._first = verify != "none", verify == "first"
        self._units = swap_units(catalog)
        self.threads = 1 if any(_is_deflated(storage) for storage in self._storages()) else threads

    def of_storage(self, extent: Extent) -> Blob:
        """The bytes of a part of a storage, in this machine's byte order."""
        storage = extent.storage
        made = self._taken.made.get(storage.key)
        if made is not None:
            return self._made(made.node, made.dtype, storage.key, extent.start)
        if storage.chunks:
            whole = TensorNode(storage, 0, storage.shape, contiguous(storage.shape), storage.dtype, storage.device)
            return BoxBlob(self.fill, whole, self._name(storage), start=extent.start)
        if storage.span is None:
            raise CorruptFile(f"{self.path} holds no data for {self._name(storage)}", path=self.path)
        return SpanBlob(self._open_span, storage.span, extent.start, extent.nbytes, unit=self._unit(storage))

    def of_storage_in_order(self, extent: Extent) -> Blob:
        """The same, asked for piece after piece; summed on the way where that proves it."""
        blob = self.of_storage(extent)
        summed = self.sums_storage(extent) and extent.storage.key not in self._taken.made and extent.nbytes > 0
        return SummedBlob(blob, extent.nbytes, partial(self._hold, extent.storage)) if summed else blob

    def of_tensor(self, node: TensorNode) -> Blob:
        """The values of a tensor in the order of its dimensions; summed on the way where that proves them."""
        origin = self._taken.origin(node)
        if origin.dtype != node.dtype:
            key = node.storage.key if node.storage is not None else ""
            return self._made(origin, node.dtype, key, 0, self._ahead(origin))
        storage = origin.storage
        if storage is None or storage.chunks or storage.span is None or not self._as_it_lies(origin):
            boxes, ahead = (
                BoxBlob(self.fill, origin, self._name(storage)),
                self.buffer_bytes // 2 // _ELEMENT * _ELEMENT,
            )
            return AheadBlob(boxes, nbytes_of(node.dtype, node.numel), max(ahead, _ELEMENT))
        nbytes, done = nbytes_of(node.dtype, node.numel), self.holding(node)
        blob = SpanBlob(self._open_span, storage.span, nbytes_of(origin.dtype, origin.offset), nbytes)
        return blob if done is None or not nbytes else SummedBlob(blob, nbytes, done)

    def _ahead(self, node: TensorNode) -> Blob:
        """The values of a tensor whose elements lie apart, read for several pieces at once; asked for in order."""
        boxes, ahead = BoxBlob(self.fill, node, self._name(node.storage)), self.buffer_bytes // 2 // _ELEMENT * _ELEMENT
        return AheadBlob(boxes, nbytes_of(node.dtype, node.numel), max(ahead, _ELEMENT))

    def origin(self, node: TensorNode) -> TensorNode:
        """The tensor of the file of which a tensor has the values."""
        return self._taken.origin(node)

    def loss_of(self, node: TensorNode) -> Loss:
        """What counts the loss of a tensor that is cast."""
        return self.losses.setdefault(node.storage.key if node.storage is not None else "", Loss())

    def _made(self, node: TensorNode, dtype: str, key: str, start: int, apart: Blob | None = None) -> Blob:
        """The values of a tensor of the file in the order of its dimensions, as `dtype`, from byte `start` on.

        `apart` reads them where they do not lie in one run.
        """
        storage = node.storage
        if node.dtype == dtype:
            return BoxBlob(self.fill, node, self._name(storage), start=start)
        if storage is not None and storage.span is not None and not storage.chunks and self._as_it_lies(node):
            nbytes = nbytes_of(node.dtype, node.numel)
            data: Blob = SpanBlob(self._open_span, storage.span, nbytes_of(node.dtype, node.offset), nbytes)
        else:
            data = apart or BoxBlob(self.fill, node, self._name(storage))
        done = self.holding(node) if start == 0 else None
        sums = None if done is None else _Sums(nbytes_of(node.dtype, node.numel), done)
        return _CastBlob(data, node.dtype, dtype, start, self.losses.setdefault(key, Loss()), sums)

    def sums_storage(self, extent: Extent) -> bool:
        """Whether the sum of what is written, or cast, tells if a storage was read as it was saved."""
        storage = extent.storage
        whole = extent.start == 0 and extent.end == storage.nbytes
        made = self._taken.made.get(storage.key)
        if made is not None:
            return whole and made.node.dtype != made.dtype and self.sums_tensor(made.node)
        return whole and storage.span is not None and storage.key not in (*self._units, *self._taken.shares)

    def sums_tensor(self, node: TensorNode) -> bool:
        """Whether the values of a tensor in their order are its storage, byte for byte."""
        origin = self._taken.origin(node)
        storage = origin.storage
        return (
            storage is not None and self._as_it_lies(origin) and nbytes_of(origin.dtype, origin.numel) == storage.nbytes
        )

    def read_key(self, storage: Storage) -> str:
        """The key under which the file has what a storage is written from."""
        made = self._taken.made.get(storage.key)
        source = storage if made is None or made.node.storage is None else made.node.storage
        return self._taken.shares.get(source.key, source.key)

    def holding(self, node: TensorNode) -> Callable[[int], None] | None:
        """What holds the sum of a tensor's values, as read, against the saved one; None where it proves nothing."""
        storage = self._taken.origin(node).storage
        return partial(self._hold, storage) if storage is not None and self.sums_tensor(node) else None

    def _unit(self, storage: Storage) -> int:
        return self._units.get(self._taken.shares.get(storage.key, storage.key), 1)

    def _as_it_lies(self, node: TensorNode) -> bool:
        storage = node.storage
        plain = storage is not None and not storage.chunks and self._unit(storage) == 1
        return plain and not node.bits and same_layout(node.shape, node.stride, contiguous(node.shape))

    def check_ahead(self, summed: Collection[str]) -> None:
        """Read and check all storages but those in `summed`. Raises CorruptFile naming all that are damaged."""
        if not self._verify:
            return
        summed = () if self._first else summed
        storages = {s.key: (s, self._names(s.key)) for s in self._storages() if s.key not in summed}
        faults = check(
            [(source, names) for whole, names in storages.values() for source in whole.sources()],
            open_span=self._open_span,
            buffer_bytes=self.buffer_bytes,
            threads=self.threads,
            progress=None,
        )
        if faults:
            raise corrupt(faults, self.path)

    def hold(self, sums: Iterable[tuple[Storage, int]]) -> None:
        """Hold the sums of storages as they were written against their own."""
        for storage, crc in sums:
            if storage.key not in self._taken.made:
                self._hold(storage, crc)

    def _hold(self, storage: Storage, crc: int) -> None:
        if self._verify and storage.crc32 is not None and storage.span is not None and crc != storage.crc32:
            names = self._names(self.read_key(storage))
            raise corrupt([Fault(storage, storage.span, names, storage.crc32, crc)], self.path)

    def _storages(self) -> list[Storage]:
        origins = (self._taken.origin(entry.node) for entry in self._taken.tensors if entry.node is not None)
        return [storage for storage in {id(o.storage): o.storage for o in origins}.values() if storage is not None]

    @cached_property
    def _by_storage(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for entry in self._taken.read:
            found.setdefault(entry.storage, []).append(entry.path)
        return found

    def _names(self, key: str) -> tuple[str, ...]:
        return tuple(self._by_storage.get(key, ()))

    def _name(self, storage: Storage | None) -> str:
        names = self._names(self.read_key(storage)) if storage is not None else ()
        return names[0] if names else "a tensor"


def _is_deflated(storage: Storage) -> bool:
    return any(source.span is not None and deflated(source.span.file) is not None for source in storage.sources())


class _Sums:
    """The sum of data that is read in parts, each once, in any order: handed to `done` with the last."""

    def __init__(self, nbytes: int, done: Callable[[int], None]) -> None:
        self._left, self._done = nbytes, done
        self._parts: dict[int, tuple[int, int]] = {}
        self._lock = Lock()

    def add(self, offset: int, data: memoryview) -> None:
        crc = crc32(data)
        with self._lock:
            self._parts[offset] = (crc, len(data))
            self._left -= len(data)
            if self._left:
                return
        total = 0
        for _, (piece, nbytes) in sorted(self._parts.items()):
            total = combine(total, piece, nbytes)
        self._done(total)


class _CastBlob:
    """The numbers of another blob in another dtype; cast as they are asked for, from byte `start` of the result on."""

    def __init__(self, blob: Blob, before: str, after: str, start: int, loss: Loss, sums: _Sums | None) -> None:
        self._blob, self._before, self._after, self._start = blob, before, after, start
        self._loss, self._sums = loss, sums

    def direct(self, offset: int, nbytes: int) -> memoryview | None:  # noqa: ARG002 - a Blob has this form
        """Nothing: the numbers are made when they are asked for."""
        return None

    def fetch(self, offset: int, target: memoryview) -> None:
        """Read the numbers and fill the whole of `target`, which holds whole numbers."""
        wide, narrow = DTYPES[self._before].itemsize, DTYPES[self._after].itemsize
        first = (self._start + offset) // narrow * wide
        data = memoryview(bytearray(len(target) // narrow * wide))
        if not data:
            return
        self._blob.fetch(first, data)
        if self._sums is not None:
            self._sums.add(first, data)
        cast_bytes(data, self._before, target, self._after, self._loss)
