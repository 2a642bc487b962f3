"""Files, slots and copies made of plain bytes: what execution works on, without torch."""

from __future__ import annotations

import itertools
import math
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from unmoor.execute.sinks import Window
from unmoor.execute.tiling import extent, is_dense
from unmoor.values.nodes import Chunk, Span, Storage, TensorNode
from unmoor.values.plan import Copy
from unmoor.values.target import Slot

CODES = {"float64": "d", "float32": "f", "int64": "q", "int32": "i", "int16": "h", "uint8": "B", "complex64": "ff"}


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    stride, step = [], 1
    for size in reversed(shape):
        stride.insert(0, step)
        step *= max(size, 1)
    return tuple(stride)


def indices(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*map(range, shape))


def itemsize(dtype: str) -> int:
    return struct.calcsize("<" + CODES[dtype])


def element(data: bytes | memoryview, index: int, dtype: str, byteorder: str = "little", bits: Any = ()) -> Any:
    """Element `index` of `data` as a Python number."""
    form = ("<" if byteorder == "little" else ">") + CODES[dtype]
    values = struct.unpack_from(form, data, index * itemsize(dtype))
    value = complex(*values) if dtype == "complex64" else values[0]
    value = value.conjugate() if "conj" in bits else value
    return -value if "neg" in bits else value


class MemorySlot:
    """A sink in a bytearray. `device` memory cannot be seen from outside. Strides may leave gaps."""

    def __init__(self, shape: tuple[int, ...], dtype: str, stride: tuple[int, ...] | None, *, device: bool) -> None:
        self.shape, self.dtype, self.device = shape, dtype, device
        self.stride = contiguous(shape) if stride is None else stride
        self.memory = bytearray(b"\xaa" * (extent(shape, self.stride) * itemsize(dtype)))
        self.base, self.boxed = 0, False
        self.seen: list[int] = []

    @property
    def dense(self) -> bool:
        return is_dense(self.shape, self.stride)

    def direct(self, nbytes: int) -> memoryview | None:
        if self.device or not self.dense:
            return None
        first = self.base * itemsize(self.dtype)
        return memoryview(self.memory)[first : first + nbytes] if self.boxed else memoryview(self.memory)

    def expect(self, start: int, end: int) -> None:
        """Nothing: the memory is there."""

    def part(self, start: tuple[int, ...], shape: tuple[int, ...]) -> MemorySlot:
        box = MemorySlot(shape, self.dtype, self.stride, device=self.device)
        box.memory, box.seen, box.boxed = self.memory, self.seen, True
        box.base = self.base + sum(i * step for i, step in zip(start, self.stride, strict=True))
        return box

    def put(self, offset: int, data: memoryview) -> None:
        assert self.dense
        self.seen.append(len(data))
        first = self.base * itemsize(self.dtype) + offset
        self.memory[first : first + len(data)] = data

    def accept(self, window: Window, data: memoryview) -> None:
        self.seen.append(len(data))
        for index in indices(window.shape):
            source = window.offset + sum(i * step for i, step in zip(index, window.stride, strict=True))
            place = [first + i for first, i in zip(window.start, index, strict=True)]
            self._store(place, element(data, source, window.dtype, window.byteorder, window.bits))

    def _store(self, place: Sequence[int], value: Any) -> None:
        element = self.base + sum(i * step for i, step in zip(place, self.stride, strict=True))
        where = element * itemsize(self.dtype)
        values = (value.real, value.imag) if self.dtype == "complex64" else (value,)
        struct.pack_into("<" + CODES[self.dtype], self.memory, where, *values)

    def values(self) -> list[Any]:
        """All elements in the order of their indices."""
        places = (sum(i * s for i, s in zip(index, self.stride, strict=True)) for index in indices(self.shape))
        return [element(self.memory, place, self.dtype) for place in places]


class BytesReader:
    """A file in memory that gives at most `most` bytes a read, and notes every read."""

    def __init__(self, data: bytes, *, most: int = 1 << 30) -> None:
        self.path, self.size = "run.pt", len(data)
        self.reads: list[tuple[int, int]] = []
        self._data, self._most, self._lock = data, most, threading.Lock()

    def some_into(self, offset: int, target: memoryview) -> int:
        part = self._data[offset : offset + min(len(target), self._most)]
        target[: len(part)] = part
        with self._lock:
            self.reads.append((offset, len(part)))
        return len(part)


class FileMaker:
    """A file in the making, with the copies that read it and the slots that they fill."""

    def __init__(self) -> None:
        self.data = bytearray(b"a header of odd length!")
        self.copies: list[Copy] = []
        self.sinks: dict[str, MemorySlot] = {}
        self.storages: list[Storage] = []

    def storage(
        self, data: bytes, dtype: str = "uint8", *, crc: bool = True, byteorder: str = "little", gap: int = 5
    ) -> Storage:
        """Append a storage behind a small gap."""
        self.data += b"\xee" * gap
        span = Span(len(self.data), len(data))
        self.data += data
        checksum = zlib.crc32(data) if crc else None
        made = Storage(str(len(self.storages)), dtype, len(data), "cpu", span, checksum, byteorder)
        self.storages.append(made)
        return made

    def tensor(
        self,
        storage: Storage,
        dtype: str,
        shape: tuple[int, ...],
        stride: tuple[int, ...] | None = None,
        offset: int = 0,
        *,
        bits: frozenset[str] = frozenset(),
        slot_dtype: str = "",
        slot_stride: tuple[int, ...] | None = None,
        device: bool = False,
        alias: str = "",
    ) -> MemorySlot:
        """A tensor on `storage`, to be copied into a slot of its own."""
        name = f"t{len(self.copies)}"
        node = TensorNode(
            storage, offset, shape, contiguous(shape) if stride is None else stride, dtype, "cpu", bits=bits
        )
        sink = MemorySlot(shape, slot_dtype or dtype, slot_stride, device=device)
        if alias:
            sink.memory = self.sinks[alias].memory
        slot = Slot(name, shape, sink.dtype, sink.stride, "sim:0" if device else "cpu", sink.dense, alias=alias)
        self.copies.append(Copy("model", name, f"model.{name}", node, slot))
        self.sinks[name] = sink
        return sink

    def chunked(
        self,
        chunks: Sequence[tuple[tuple[int, ...], TensorNode]],
        shape: tuple[int, ...],
        *,
        slot_dtype: str = "",
        slot_stride: tuple[int, ...] | None = None,
        device: bool = False,
    ) -> MemorySlot:
        """A tensor of `shape` in several chunks, each (start, node), to be copied into a slot of its own."""
        dtype = chunks[0][1].dtype
        parts = tuple(Chunk(start, node) for start, node in chunks)
        count = math.prod(shape) * itemsize(dtype)
        whole = Storage(f"whole{len(self.copies)}", dtype, count, "cpu", None, None, shape=shape, chunks=parts)
        return self.tensor(whole, dtype, shape, slot_dtype=slot_dtype, slot_stride=slot_stride, device=device)

    def expected(self, copy: Copy) -> list[Any]:
        """The elements of the stored tensor, one by one."""
        node = copy.node
        if 0 in node.shape:
            return []
        if node.storage.chunks:
            return self._expected_of_chunks(node)
        return self._stored(node)

    def _expected_of_chunks(self, node: TensorNode) -> list[Any]:
        values = dict.fromkeys(indices(node.shape))
        for chunk in node.storage.chunks:
            for index, value in zip(indices(chunk.node.shape), self._stored(chunk.node), strict=True):
                place = tuple(first + i for first, i in zip(chunk.start, index, strict=True))
                assert values[place] is None
                values[place] = value
        return list(values.values())

    def _stored(self, node: TensorNode) -> list[Any]:
        span = node.storage.span
        data = bytes(self.data[span.offset : span.end])
        return [
            element(
                data,
                node.offset + sum(i * s for i, s in zip(index, node.stride, strict=True)),
                node.dtype,
                node.storage.byteorder,
                node.bits,
            )
            for index in indices(node.shape)
        ]

    def reader(self, *, most: int = 1 << 30) -> BytesReader:
        return BytesReader(bytes(self.data), most=most)

    def opener(self, reader: BytesReader | None = None) -> Callable[[str], BytesReader]:
        used = reader or self.reader()
        return lambda file: used

    def damage(self, storage: Storage, byte: int) -> None:
        """Flip one bit of a storage."""
        self.data[storage.span.offset + byte] ^= 1


def numbers(count: int, dtype: str, byteorder: str = "little") -> bytes:
    """`count` different small elements of `dtype`."""
    mark = "<" if byteorder == "little" else ">"
    width = len(CODES[dtype])
    limit = 251 if dtype == "uint8" else 30011
    return struct.pack(f"{mark}{count * width}{CODES[dtype][0]}", *((i * 7 + 3) % limit for i in range(count * width)))
