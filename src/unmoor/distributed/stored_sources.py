"""Where the bytes of a conversion come from: storages of a described file, as data to be written.

A storage that is written as it is read has its checksum held against that of what was written. All others are read and
checked once before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import cached_property, partial
from typing import Final

from unmoor.errors import CorruptFile
from unmoor.execute.reading import OpenSpan
from unmoor.execute.sinks import Blob
from unmoor.execute.sources import AheadBlob, SpanBlob, SummedBlob
from unmoor.execute.tiling import same_layout
from unmoor.execute.verify import Fault, check, corrupt
from unmoor.live.stored import Extent
from unmoor.plan.byteorder import swap_units
from unmoor.plan.taking import Taken
from unmoor.values.catalog import Catalog
from unmoor.values.dtypes import nbytes_of
from unmoor.values.nodes import Storage, TensorNode, deflated
from unmoor.values.strides import contiguous

from .filling import BoxBlob, Filler

__all__ = ["Sources"]

_STAGED: Final = 1 << 20
_ELEMENT: Final = 16


class Sources:
    """The storages of `catalog` that a conversion reads. `fill` reads boxes of tensors, `threads` may read at once."""

    def __init__(
        self, catalog: Catalog, taken: Taken, open_span: OpenSpan, *, verify: bool, buffer_bytes: int, threads: int
    ) -> None:
        self.path = catalog.path
        self.buffer_bytes = buffer_bytes
        self.fill = Filler(open_span, buffer_bytes=min(_STAGED, buffer_bytes), threads=1, verify="none")
        self._open_span, self._verify, self._taken = open_span, verify, taken
        self._units = swap_units(catalog)
        self.threads = 1 if any(_is_deflated(storage) for storage in self._storages()) else threads

    def of_storage(self, extent: Extent) -> Blob:
        """The bytes of a part of a storage, in this machine's byte order."""
        storage = extent.storage
        if storage.chunks:
            whole = TensorNode(storage, 0, storage.shape, contiguous(storage.shape), storage.dtype, storage.device)
            return BoxBlob(self.fill, whole, self._name(storage), start=extent.start)
        if storage.span is None:
            raise CorruptFile(f"{self.path} holds no data for {self._name(storage)}", path=self.path)
        unit = self._units.get(storage.key, 1)
        return SpanBlob(self._open_span, storage.span, extent.start, extent.nbytes, unit=unit)

    def of_tensor(self, node: TensorNode) -> Blob:
        """The values of a tensor in the order of its dimensions; summed on the way where that proves them."""
        storage = node.storage
        if storage is None or storage.chunks or storage.span is None or not self._as_it_lies(node):
            boxes, ahead = BoxBlob(self.fill, node, self._name(storage)), self.buffer_bytes // 2 // _ELEMENT * _ELEMENT
            return AheadBlob(boxes, nbytes_of(node.dtype, node.numel), max(ahead, _ELEMENT))
        nbytes, done = nbytes_of(node.dtype, node.numel), self.holding(node)
        blob = SpanBlob(self._open_span, storage.span, nbytes_of(node.dtype, node.offset), nbytes)
        return blob if done is None or not nbytes else SummedBlob(blob, nbytes, done)

    def sums_storage(self, extent: Extent) -> bool:
        """Whether the sum of what is written tells if a storage was read as it was saved."""
        storage = extent.storage
        whole = extent.start == 0 and extent.end == storage.nbytes
        return whole and storage.span is not None and storage.key not in self._units

    def sums_tensor(self, node: TensorNode) -> bool:
        """Whether the values of a tensor in their order are its storage, byte for byte."""
        storage = node.storage
        return storage is not None and self._as_it_lies(node) and nbytes_of(node.dtype, node.numel) == storage.nbytes

    def holding(self, node: TensorNode) -> Callable[[int], None] | None:
        """What holds the sum of the values of a tensor against the saved one; None where that proves nothing."""
        storage = node.storage
        return partial(self._hold, storage) if storage is not None and self.sums_tensor(node) else None

    def _as_it_lies(self, node: TensorNode) -> bool:
        storage = node.storage
        plain = storage is not None and not storage.chunks and storage.key not in self._units
        return plain and not node.bits and same_layout(node.shape, node.stride, contiguous(node.shape))

    def check_ahead(self, summed: Collection[str]) -> None:
        """Read and check all storages but those in `summed`. Raises CorruptFile naming all that are damaged."""
        if not self._verify:
            return
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
            self._hold(storage, crc)

    def _hold(self, storage: Storage, crc: int) -> None:
        if self._verify and storage.crc32 is not None and storage.span is not None and crc != storage.crc32:
            raise corrupt([Fault(storage, storage.span, self._names(storage.key), storage.crc32, crc)], self.path)

    def _storages(self) -> list[Storage]:
        found = {id(e.node.storage): e.node.storage for e in self._taken.tensors if e.node is not None}
        return [storage for storage in found.values() if storage is not None]

    @cached_property
    def _by_storage(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for entry in self._taken.tensors:
            found.setdefault(entry.storage, []).append(entry.path)
        return found

    def _names(self, key: str) -> tuple[str, ...]:
        return tuple(self._by_storage.get(key, ()))

    def _name(self, storage: Storage | None) -> str:
        names = self._names(storage.key) if storage is not None else ()
        return names[0] if names else "a tensor"


def _is_deflated(storage: Storage) -> bool:
    return any(source.span is not None and deflated(source.span.file) is not None for source in storage.sources())
