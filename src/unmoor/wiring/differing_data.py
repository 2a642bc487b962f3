"""The data of two checkpoints, pair by pair: both read side by side, and measured where they differ.

PyTorch is imported when the first difference is met. Where it is missing, what differs is told and by how much is not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from unmoor.execute.comparing import Pair, compare, total_bytes
from unmoor.execute.reading import OpenSpan
from unmoor.execute.verify import check
from unmoor.filing import Reader
from unmoor.plan.pairing import TensorPair
from unmoor.plan.pairing_leaves import MEMORY, in_memory
from unmoor.values.catalog import Catalog
from unmoor.values.difference import Distance
from unmoor.values.elements import Form, Order
from unmoor.values.nodes import Storage, TensorNode

from .repeats import refuse_repeats
from .spans import open_spans

if TYPE_CHECKING:
    from unmoor.live.comparison import Alone, Comparison

__all__ = ["Outcome", "compare_data", "has_data"]

_FEW: Final = 4
"""Data that differs is held against its checksums where it is at most one part in so many of what was compared."""
_QUICK: Final = 64 << 20


@dataclass(slots=True)
class Outcome:
    """Distance by the number of the pair; names of damaged data by side; bytes read; whether PyTorch was there."""

    distances: dict[int, Distance] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)
    nbytes: int = 0
    measured: bool = True


def has_data(pair: TensorPair) -> bool:
    """Whether both sides have elements that can be read, as many as each other."""
    return pair.a.shape == pair.b.shape and all(_is_readable(leaf.node) for leaf in (pair.a, pair.b))


def _is_readable(node: object) -> bool:
    if not isinstance(node, TensorNode):
        return node is None or in_memory(node, 0) is not None
    sources = node.storage.sources() if node.storage is not None else ()
    return bool(sources) and all(source.span is not None for source in sources)


def compare_data(
    a: Catalog,
    b: Catalog,
    pairs: Sequence[TensorPair],
    *,
    atol: float,
    rtol: float,
    buffer_bytes: int,
    threads: int,
    progress: Callable[[int], None] | None,
) -> Outcome:
    """Compare the data of `pairs`; distances are by their place in it."""
    refuse_repeats(a.path, ((pair.name, pair.a.node) for pair in pairs))
    refuse_repeats(b.path, ((pair.name, pair.b.node) for pair in pairs))
    memory: dict[str, Reader] = {}
    jobs = [_job(number, pair, memory) for number, pair in enumerate(pairs)]
    measure = _Measure(atol, rtol) if _has_torch() else None
    made = Outcome(nbytes=total_bytes(jobs), measured=measure is not None)
    with open_spans(a.path) as open_a, open_spans(b.path) as open_b:
        sides = _with_memory(open_a, memory), _with_memory(open_b, memory)
        try:
            compare(jobs, measure, open_a=sides[0], open_b=sides[1], threads=threads, progress=progress)
        finally:
            if measure is not None:
                measure.close()
        for number, pair in enumerate(pairs):
            found = measure.distance(number, pair) if measure is not None else _unmeasured(jobs[number])
            if found is not None:
                made.distances[number] = found
        for side, open_span in enumerate((open_a, open_b)):
            made.damaged += _damaged(side, pairs, made, open_span, buffer_bytes=buffer_bytes, threads=threads)
    return made


def _has_torch() -> bool:
    """Whether PyTorch is installed, without importing it."""
    try:
        return find_spec("torch") is not None
    except ImportError:
        return False


def _unmeasured(job: Pair) -> Distance | None:
    return Distance(None) if job.differs else None


def _job(number: int, pair: TensorPair, memory: dict[str, Reader]) -> Pair:
    nodes = []
    for leaf in (pair.a, pair.b):
        held = in_memory(leaf.node, len(memory))
        if held is None:
            nodes.append(leaf.node)
        else:
            node, data = held
            memory[f"{MEMORY}{len(memory)}"] = _Bytes(data)
            nodes.append(node)
    return Pair(number, *nodes)


class _Bytes:
    """Bytes in memory as a file."""

    def __init__(self, data: bytes) -> None:
        self.path, self.size, self._data = "a value of the tree", len(data), data

    def some_into(self, offset: int, target: memoryview) -> int:
        """Copy at most len(target) bytes from `offset`."""
        part = self._data[offset : offset + len(target)]
        target[: len(part)] = part
        return len(part)


def _with_memory(open_span: OpenSpan, memory: Mapping[str, Reader]) -> OpenSpan:
    return lambda file: memory[file] if file in memory else open_span(file)


class _Measure:
    """A Comparison that is made when the first difference is met: equal checkpoints need no PyTorch."""

    def __init__(self, atol: float, rtol: float) -> None:
        self._atol, self._rtol = atol, rtol
        self._made: Comparison | None = None
        self._alone: Alone | None = None
        self._lock = threading.Lock()

    def differ(
        self, pair: int, a: memoryview, b: memoryview, forms: tuple[Form, Form], order: Order, first: int
    ) -> bool:
        """Elements of both sides of a pair; whether any differs."""
        return self._comparison().differ(pair, a, b, forms, order, first)

    def same(self, pair: int, a: memoryview, form: Form) -> None:
        """Elements that are equal on both sides, of a pair that differs elsewhere."""
        self._comparison().same(pair, a, form)

    def distance(self, number: int, pair: TensorPair) -> Distance | None:
        """How far a pair is apart; None where it is not."""
        return None if self._made is None else self._made.distance(number, pair.a.shape)

    def close(self) -> None:
        """Everything has been measured."""
        if self._alone is not None:
            self._alone.end()

    def _comparison(self) -> Comparison:
        with self._lock:
            if self._made is None or self._alone is None:
                from unmoor.live.comparison import Alone, Comparison

                self._made, self._alone = Comparison(atol=self._atol, rtol=self._rtol), Alone()
                self._alone.begin()
        self._alone.here()
        return self._made


def _damaged(
    side: int, pairs: Sequence[TensorPair], made: Outcome, open_span: OpenSpan, *, buffer_bytes: int, threads: int
) -> list[str]:
    """The tensors of a side that differ because their data is not what was saved.

    Looked for where little differs: two steps of a run differ everywhere, and damage is a few tensors.
    """
    wanted: dict[str, tuple[Storage, list[str]]] = {}
    for number in made.distances:
        leaf = pairs[number].b if side else pairs[number].a
        storage = leaf.node.storage if isinstance(leaf.node, TensorNode) else None
        for source in storage.sources() if storage is not None else ():
            wanted.setdefault(source.key, (source, []))[1].append(leaf.path)
    nbytes = sum(storage.nbytes for storage, _ in wanted.values())
    if nbytes > _QUICK and nbytes * 2 * _FEW > made.nbytes:
        return []
    faults = check(wanted.values(), open_span=open_span, buffer_bytes=buffer_bytes, threads=threads, progress=None)
    return [f"{'b' if side else 'a'}: {path}" for fault in faults for path in fault.paths]
