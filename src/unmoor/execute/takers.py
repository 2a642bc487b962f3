"""What wants the bytes of a storage, and the reads that bring them: the words that schedule and reading share.

Opens nothing. A storage is a block; it is read whole, for the sake of its checksum, unless this rank wants parts of it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import cast

from unmoor.values.dtypes import dtype_bytes
from unmoor.values.nodes import Span, Storage, TensorNode
from unmoor.values.plan import Copy

from .cuts import Cut, covered, cuts_of, nbytes_of
from .sinks import Parts, Sink, Window
from .tiling import is_dense, same_layout

__all__ = ["Batch", "Block", "Gather", "Job", "Piece", "Run", "Scatter", "blocks_of", "bytes_of", "place_of"]


@dataclass(slots=True, eq=False)
class Run:
    """Bytes `start` to `end` of a storage, laid out in the file as in the slot. `place` is what to call the tensor.

    `node` are the elements; `part` tells that they are not all of what was stored as a tensor.
    """

    place: str
    slot: str
    sink: Sink
    node: TensorNode
    part: bool
    start: int
    end: int

    def memory(self) -> memoryview | None:
        """The slot's memory where the host can see it. Asked for when needed: a view for each tensor adds up."""
        memory = self.sink.direct(self.end - self.start)
        if memory is not None and memory.nbytes != self.end - self.start:
            raise ValueError(f"the sink gave {memory.nbytes} bytes of memory for {self.end - self.start}")
        return memory

    def take(self, start: int, data: memoryview) -> None:
        """Store what is this run's of `data`, which begins at byte `start` of the storage."""
        first, last = start, start + len(data)
        if first != self.start or last != self.end:
            first, last = max(first, self.start), min(last, self.end)
            data = data[first - start : last - start]
        memory = self.memory()
        if memory is None:
            self.sink.put(first - self.start, data)
        else:
            memory[first - self.start : last - self.start] = data


@dataclass(slots=True, eq=False)
class Scatter:
    """Elements of a storage that the slot holds in another order, dtype or byte order."""

    place: str
    slot: str
    sink: Sink
    node: TensorNode
    part: bool
    window: Window
    itemsize: int


@dataclass(slots=True, eq=False)
class Block:
    """One storage and all that wants its bytes. `names` are the tensors on it where nothing wants them.

    `in_part` tells that only what is wanted of it is read, which its checksum cannot vouch for.
    """

    storage: Storage
    span: Span
    takers: list[Run | Scatter] = field(default_factory=list)
    names: Sequence[str] = ()
    in_part: bool = False

    @property
    def places(self) -> tuple[str, ...]:
        """The tensors on this storage, for people."""
        return (*self.names, *(taker.place for taker in self.takers))

    @property
    def runs(self) -> list[Run]:
        """What is laid out in the file as in its slot."""
        return [taker for taker in self.takers if isinstance(taker, Run)]

    @property
    def scatters(self) -> list[Scatter]:
        """What is not."""
        return [taker for taker in self.takers if isinstance(taker, Scatter)]

    @property
    def wanted(self) -> int:
        """The bytes that are read of it; in part as often as they are wanted."""
        return sum(nbytes_of(taker.node) for taker in self.takers) if self.in_part else self.span.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Whole storages, neighbours in one file, that one read takes into the buffer."""

    offset: int
    nbytes: int
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Bytes `start` to `end` of one storage.

    They are read into the memory of `into` where there is one, else into the buffer; then `runs` get their part of
    them and the scatters their windows. `counted` pieces make up the storage for its checksum, each byte once. A piece
    that reads bytes `again` does so because windows interleave.
    """

    block: Block
    start: int
    end: int
    into: Run | None = None
    runs: tuple[Run, ...] = ()
    windows: tuple[tuple[Scatter, Window], ...] = ()
    counted: bool = True
    again: bool = False

    @property
    def nbytes(self) -> int:
        """The bytes that are read."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, eq=False)
class Gather:
    """Runs of `size` bytes of one storage, read into the buffer one behind the other, for one window over all of them.

    The first is at byte `start`; `loops` are (number, bytes from one to the next), the outermost first.
    """

    block: Block
    start: int
    size: int
    loops: tuple[tuple[int, int], ...]
    scatter: Scatter
    window: Window

    @property
    def nbytes(self) -> int:
        """The bytes that are read."""
        return self.size * prod(number for number, _ in self.loops)

    def starts(self) -> Iterator[int]:
        """The first byte of each run."""
        for steps in product(*(range(0, number * step, step) for number, step in self.loops)):
            yield self.start + sum(steps)


Job = Batch | Piece | Gather

_Part = tuple[TensorNode, bool, Sink, tuple[int, ...] | None]
"""Elements that lie in one storage, whether they are not all of what was stored as a tensor, the memory that takes
them, and its strides, None where it has gaps."""


def blocks_of(copies: Iterable[Copy], sinks: Mapping[str, Parts]) -> list[Block]:
    """Copies grouped by the storage they read, in file order. Copies without elements are left out."""
    blocks: dict[int, Block] = {}
    for copy in copies:
        for part in _parts(copy, sinks):
            node, is_part, _, _ = part
            storage = node.storage
            if storage is None or storage.span is None or 0 in node.shape:
                continue
            block = blocks.get(id(storage))
            if block is None:
                block = blocks[id(storage)] = Block(storage, storage.span)
            block.takers.append(_taker(copy, part, storage.byteorder))
            block.in_part |= is_part
    for block in blocks.values():
        block.in_part = block.in_part and in_part(block.takers, block.span.nbytes)
    return sorted(blocks.values(), key=lambda block: (block.span.file, block.span.offset))


def in_part(wanted: Sequence[Run | Scatter | Cut], nbytes: int) -> bool:
    """Whether a storage is read in part: this rank wants parts of its tensors, which leave some of its bytes out."""
    return any(one.part for one in wanted) and not covered([one.node for one in wanted], nbytes)


def bytes_of(copies: Iterable[Copy]) -> int:
    """The bytes that are read for copies, each storage once; in part as often as it is wanted."""
    wanted: dict[int, tuple[Storage, list[Cut]]] = {}
    for copy in copies:
        for cut in cuts_of(copy) if 0 not in copy.node.shape else ():
            if cut.node.storage is not None and cut.node.storage.span is not None:
                wanted.setdefault(id(cut.node.storage), (cut.node.storage, []))[1].append(cut)
    return sum(_bytes_of(storage, cuts) for storage, cuts in wanted.values())


def _bytes_of(storage: Storage, cuts: Sequence[Cut]) -> int:
    whole = storage.span.nbytes if storage.span is not None else 0
    return sum(nbytes_of(cut.node) for cut in cuts) if in_part(cuts, whole) else whole


def place_of(copy: Copy) -> str:
    """What to call the stored tensor of a copy: where it stands in the file."""
    return copy.path or copy.name or copy.slot.id


def _parts(copy: Copy, sinks: Mapping[str, Parts]) -> Iterable[_Part]:
    """What a copy wants of each storage."""
    slot, sink, storage = copy.slot, sinks[copy.slot.id], copy.node.storage
    if slot.boxes is None and (storage is None or not storage.chunks):
        whole = cast("Sink", sink)  # a slot without boxes has memory of its own
        return ((copy.node, False, whole, slot.stride if slot.dense else None),)
    return _cut_parts(copy, sink)


def _cut_parts(copy: Copy, sink: Parts) -> Iterator[_Part]:
    slot = copy.slot
    boxes = {box: sink.part(box.start, box.sizes) for box in slot.boxes or ()}
    for cut in cuts_of(copy):
        shape = cut.node.shape
        if cut.box is None:
            stride = slot.stride if is_dense(shape, slot.stride) else None
            yield cut.node, cut.part, sink.part(cut.start, shape), stride
        else:
            box = boxes[cut.box]
            own = box if shape == cut.box.sizes else box.part(cut.start, shape)
            yield cut.node, cut.part, own, own.stride if own.dense else None


def _taker(copy: Copy, part: _Part, byteorder: str) -> Run | Scatter:
    """What takes elements into their memory."""
    node, is_part, sink, stride = part
    slot, place = copy.slot.id, place_of(copy)
    itemsize = dtype_bytes(node.dtype)
    as_stored = node.dtype == copy.slot.dtype and not node.bits and (byteorder == sys.byteorder or itemsize == 1)
    if stride is not None and as_stored and same_layout(node.shape, node.stride, stride):
        start = node.offset * itemsize
        return Run(place, slot, sink, node, is_part, start, start + prod(node.shape) * itemsize)
    zeros = (0,) * len(node.shape)
    window = Window(zeros, node.shape, node.stride, node.offset, node.dtype, byteorder, node.bits)
    return Scatter(place, slot, sink, node, is_part, window, itemsize)
