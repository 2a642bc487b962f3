"""Two checkpoints, read side by side in pieces: equal bytes are told here, all else goes to whoever measures.

Memory is two small buffers for each thread, whatever the size of a tensor. Knows nothing of arithmetic: what differs is
handed on as bytes and how they lie.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Final, NamedTuple, Protocol

from unmoor.filing import read_into
from unmoor.values.dtypes import DTYPES, nbytes_of
from unmoor.values.elements import Form, Order
from unmoor.values.nodes import TensorNode, deflated

from . import crew
from .cuts import strand_of
from .patches import Piece, elements_of, patches, pieces
from .reading import OpenSpan

__all__ = ["BUFFER", "Measure", "Pair", "compare", "total_bytes"]

#: Bytes of each side that are read at once; two of them and what is made of them stay in the cache.
FLAT: Final = 512 << 10
#: Bytes of each side of a job: few jobs, so that making them costs nothing, and enough for all threads.
STRETCH: Final = 8 << 20
#: Bytes of each side of a piece whose elements lie in different orders: large, so that its runs are long.
BOX: Final = 8 << 20
#: Bytes of buffers of one thread, at most.
BUFFER: Final = 2 * BOX
#: Small tensors that lie behind one another on both sides are read by one call each.
SMALL: Final = 64 << 10


class Measure(Protocol):
    """Takes elements that are to be held against each other, from any thread."""

    def differ(
        self, pair: int, a: memoryview, b: memoryview, forms: tuple[Form, Form], order: Order, first: int
    ) -> bool:
        """Elements of both sides of a pair, number `first` of `order` and those that follow; whether any differs."""

    def same(self, pair: int, a: memoryview, form: Form) -> None:
        """Elements that are equal on both sides, of a pair that differs elsewhere."""


@dataclass(slots=True, eq=False)
class Pair:
    """Two stored tensors of one shape, by a number.

    `differs` is set when bytes were met that do; `unlike` are these, by the number of the piece and of the element.
    """

    number: int
    a: TensorNode
    b: TensorNode
    differs: bool = False
    unlike: set[tuple[int, int]] = field(default_factory=set)


class _One(NamedTuple):
    """One piece of a pair, by its number among those of the pair."""

    pair: Pair
    piece: Piece
    number: int


@dataclass(frozen=True, slots=True)
class _Near:
    """Small pairs that lie behind one another in one file of each side, in the same order."""

    items: tuple[_One, ...]


_Job = _One | _Near


def compare(
    pairs: Sequence[Pair],
    measure: Measure | None,
    *,
    open_a: OpenSpan,
    open_b: OpenSpan,
    threads: int,
    progress: Callable[[int], None] | None,
) -> None:
    """Read every pair once and set its `differs`; pieces that differ, and the equal ones beside them, go to `measure`.

    Without it pieces that are not laid out alike count as different. `progress` gets the bytes read on both sides.
    """
    meter = crew.Meter(progress)
    packed = any(_packed(node) for pair in pairs for node in (pair.a, pair.b))
    threads = 1 if packed else threads
    work = _Work(measure, open_a, open_b, meter)
    jobs = _Jobs(_together(_pieces(pairs)))
    crew.run(jobs, work.do, threads=threads, buffer_bytes=64 * threads)
    if measure is not None:
        rest = (one for one in _pieces([pair for pair in pairs if pair.differs]) if one.piece.alike)
        crew.run(_Jobs(rest), work.again, threads=threads, buffer_bytes=64 * threads)


def total_bytes(pairs: Iterable[Pair]) -> int:
    """The bytes that `compare` reads of pairs, where their elements lie without gaps."""
    return sum(nbytes_of(node.dtype, node.numel) for pair in pairs for node in (pair.a, pair.b))


def _packed(node: TensorNode) -> bool:
    sources = node.storage.sources() if node.storage is not None else ()
    return any(source.span is not None and deflated(source.span.file) for source in sources)


def _pieces(pairs: Sequence[Pair]) -> Iterator[_One]:
    """Every piece, tensor after tensor in the order of the first file."""
    for pair in sorted(pairs, key=lambda pair: _place(pair.a)):
        found = (piece for patch in patches(pair.a, pair.b) for piece in pieces(patch, STRETCH if patch.alike else BOX))
        for number, piece in enumerate(found):
            yield _One(pair, piece, number)


def _place(node: TensorNode) -> tuple[str, int]:
    storage = node.storage
    source = storage.sources()[0] if storage is not None and storage.sources() else None
    if source is None or source.span is None:
        return ("", 0)
    return source.span.file, source.span.offset + nbytes_of(node.dtype, node.offset)


def _together(ones: Iterable[_One]) -> Iterator[_Job]:
    near: list[_One] = []
    for one in ones:
        small = one.piece.alike and one.piece.nbytes <= SMALL
        if near and not (small and _follows(near, one.piece)):
            yield _Near(tuple(near))
            near = []
        if small:
            near.append(one)
        else:
            yield one
    if near:
        yield _Near(tuple(near))


def _follows(near: Sequence[_One], piece: Piece) -> bool:
    """Whether one read of each side takes this piece with those before it."""
    first, last = near[0].piece, near[-1].piece
    for begin, before, node in ((first.a, last.a, piece.a), (first.b, last.b, piece.b)):
        (file, start), (_, reached), (other, at) = _place(begin), _place(before), _place(node)
        if file != other or at < reached + last.nbytes or at + piece.nbytes - start > FLAT:
            return False
    return True


class _Jobs(Sequence[_Job]):
    """Jobs that are made while they are done: there are many for a large checkpoint."""

    def __init__(self, jobs: Iterator[_Job]) -> None:
        self._jobs = jobs

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: object) -> _Job:  # type: ignore[override]
        raise TypeError(index)

    def __iter__(self) -> Iterator[_Job]:
        return self._jobs


class _Buffers(threading.local):
    """The buffers of one thread. Bytearrays: their `startswith` compares bytes without a copy."""

    def __init__(self) -> None:
        self.a, self.b = bytearray(FLAT), bytearray(FLAT)
        self.views = memoryview(self.a)[:FLAT], memoryview(self.b)[:FLAT]

    def grown(self, nbytes_a: int, nbytes_b: int) -> tuple[bytearray, bytearray]:
        if len(self.a) < nbytes_a:
            self.a = bytearray(nbytes_a)
        if len(self.b) < nbytes_b:
            self.b = bytearray(nbytes_b)
        self.views = memoryview(self.a)[:FLAT], memoryview(self.b)[:FLAT]
        return self.a, self.b


class _Work:
    def __init__(self, measure: Measure | None, open_a: OpenSpan, open_b: OpenSpan, meter: crew.Meter) -> None:
        self._measure, self._open_a, self._open_b, self._meter = measure, open_a, open_b, meter
        self._buffers = _Buffers()
        self._lock = threading.Lock()

    def do(self, job: _Job, buffer: memoryview) -> None:
        """Read and compare one job."""
        del buffer
        if isinstance(job, _Near):
            self._near(job)
        elif job.piece.alike:
            self._alike(job)
        else:
            self._boxed(job)

    def again(self, job: _Job, buffer: memoryview) -> None:
        """Read what was equal on both sides of a piece once more, for what all elements together tell."""
        del buffer
        if isinstance(job, _Near):
            return
        file, start = _place(job.piece.a)
        for at, number, nbytes in _chunks(job.piece):
            if (job.number, at) not in job.pair.unlike and self._measure is not None:
                data = memoryview(self._buffers.grown(nbytes, 0)[0])[:nbytes]
                read_into(self._open_a(file), start + nbytes_of(job.piece.a.dtype, at), data)
                self._measure.same(job.pair.number, data, _flat_form(job.piece.a, number))

    def _near(self, job: _Near) -> None:
        first, last = job.items[0].piece, job.items[-1].piece
        (file_a, start_a), (file_b, start_b) = _place(first.a), _place(first.b)
        long_a, long_b = (_place(last.a)[1] + last.nbytes - start_a, _place(last.b)[1] + last.nbytes - start_b)
        buffer, other = self._buffers.grown(long_a, long_b)
        mine, theirs = memoryview(buffer), memoryview(other)
        read_into(self._open_a(file_a), start_a, mine[:long_a])
        read_into(self._open_b(file_b), start_b, theirs[:long_b])
        for one in job.items:
            at, to, nbytes = _place(one.piece.a)[1] - start_a, _place(one.piece.b)[1] - start_b, one.piece.nbytes
            part = theirs[to : to + nbytes]
            if not buffer.startswith(part, at):
                self._unlike(one, 0, one.piece.a.numel, (mine[at : at + nbytes], part))
            self._meter.advance(2 * nbytes)

    def _alike(self, one: _One) -> None:
        piece = one.piece
        (file_a, start_a), (file_b, start_b) = _place(piece.a), _place(piece.b)
        reader_a, reader_b = self._open_a(file_a), self._open_b(file_b)
        buffer, other = self._buffers.a, self._buffers.b
        mine, theirs = self._buffers.views
        for at in range(0, piece.nbytes, FLAT):
            size = min(FLAT, piece.nbytes - at)
            if size < len(theirs):
                mine, theirs = memoryview(buffer)[:size], memoryview(other)[:size]
            if (got := reader_a.some_into(start_a + at, mine)) != size:
                read_into(reader_a, start_a + at + got, mine[got:])
            if (got := reader_b.some_into(start_b + at, theirs)) != size:
                read_into(reader_b, start_b + at + got, theirs[got:])
            if not buffer.startswith(theirs):
                first = elements_of(piece.a.dtype, at) if at else 0
                self._unlike(one, first, min(elements_of(piece.a.dtype, size), piece.a.numel - first), (mine, theirs))
        self._meter.advance(2 * piece.nbytes)

    def _unlike(self, one: _One, at: int, number: int, data: tuple[memoryview, memoryview]) -> None:
        """Bytes of both sides that differ: `number` elements from element `at` of a piece."""
        with self._lock:
            one.pair.differs = True
            one.pair.unlike.add((one.number, at))
        if self._measure is not None:
            forms = (_flat_form(one.piece.a, number), _flat_form(one.piece.b, number))
            self._measure.differ(one.pair.number, *data, forms, one.piece.order, one.piece.first + at)

    def _boxed(self, one: _One) -> None:
        """Elements that lie in another order, dtype or byte order on each side: only arithmetic can compare them."""
        pair, piece = one.pair, one.piece
        if self._measure is None:
            pair.differs = True
        else:
            nbytes_a, nbytes_b = _gathered_bytes(piece.a), _gathered_bytes(piece.b)
            buffer, other = self._buffers.grown(nbytes_a, nbytes_b)
            mine, theirs = memoryview(buffer)[:nbytes_a], memoryview(other)[:nbytes_b]
            self._gather(self._open_a, piece.a, mine)
            self._gather(self._open_b, piece.b, theirs)
            forms = (_gathered_form(piece.a), _gathered_form(piece.b))
            if self._measure.differ(pair.number, mine, theirs, forms, piece.order, piece.first):
                pair.differs = True
        self._meter.advance(sum(nbytes_of(node.dtype, node.numel) for node in (piece.a, piece.b)))

    def _gather(self, open_span: OpenSpan, node: TensorNode, target: memoryview) -> None:
        """Read the runs that the elements of a window lie in, one behind the other."""
        file, at = _place(node)
        reader, strand, size = open_span(file), strand_of(node), DTYPES[node.dtype].itemsize
        run, done = strand.size * size, 0
        loops = (range(0, node.shape[i] * node.stride[i] * size, node.stride[i] * size) for i in strand.outer)
        for steps in product(*loops):
            read_into(reader, at + sum(steps), target[done : done + run])
            done += run


def _chunks(piece: Piece) -> Iterator[tuple[int, int, int]]:
    """Element, number of elements and bytes of what is read at once of a piece that is laid out alike."""
    dtype, numel = piece.a.dtype, piece.a.numel
    most = elements_of(dtype, FLAT)
    for at in range(0, numel, most):
        number = min(most, numel - at)
        yield at, number, nbytes_of(dtype, number)


def _flat_form(node: TensorNode, number: int) -> Form:
    order = node.storage.byteorder if node.storage is not None else "little"
    return Form(node.dtype, order, node.bits, (number,), (1,))


def _gathered_form(node: TensorNode) -> Form:
    order = node.storage.byteorder if node.storage is not None else "little"
    return Form(node.dtype, order, node.bits, node.shape, strand_of(node).stride)


def _gathered_bytes(node: TensorNode) -> int:
    strand, number = strand_of(node), 1
    for axis in strand.outer:
        number *= node.shape[axis]
    return strand.size * number * DTYPES[node.dtype].itemsize
