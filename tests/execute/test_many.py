"""Many small tensors: what each of them costs is counted, and the short ways give what the long ways do."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmoor.execute import streaming
from unmoor.execute.schedule import MANY, TINY, threads_for
from unmoor.execute.streaming import stored_bytes, stream
from unmoor.execute.takers import Block
from unmoor.values.boxes import Box
from unmoor.values.nodes import Span, Storage
from unmoor.values.plan import Copy
from unmoor.values.target import Slot

from .fakes import FileMaker, MemorySlot, numbers
from .scenes import files


def filled(make, *, sinks=None, copies=None, threads=1, buffer_bytes=1 << 16, progress=None):
    reader = make.reader()
    stream(
        copies or make.copies,
        sinks or make.sinks,
        open_span=lambda file: reader,
        buffer_bytes=buffer_bytes,
        threads=threads,
        verify="stream",
        progress=progress,
    )
    return reader


def tiny(number: int, elements: int = 3) -> FileMaker:
    make = FileMaker()
    for _ in range(number):
        make.tensor(make.storage(numbers(elements, "float32")), "float32", (elements,))
    return make


class Boxed:
    """A slot of which this process holds all, as one box."""

    def __init__(self, whole: MemorySlot) -> None:
        self.whole, self.device = whole, getattr(whole, "device", None)

    def part(self, start, shape):
        assert (start, shape) == ((0,) * len(self.whole.shape), self.whole.shape)
        return self.whole


def boxed(make: FileMaker) -> tuple[list[Copy], dict[str, Boxed]]:
    """The same copies into slots that are one box each: the way of tensors that ranks share."""
    copies = []
    for copy in make.copies:
        slot, shape = copy.slot, copy.node.shape
        own = Slot(
            slot.id,
            shape,
            slot.dtype,
            slot.stride,
            slot.device,
            slot.dense,
            alias=slot.alias,
            boxes=(Box((0,) * len(shape), shape),),
        )
        copies.append(Copy(copy.label, copy.name, copy.path, copy.node, own))
    return copies, {name: Boxed(sink) for name, sink in make.sinks.items()}


@settings(deadline=None, max_examples=150)
@given(st.data(), st.sampled_from([64, 300, 1 << 16]), st.integers(1, 3))
def test_a_whole_slot_is_filled_as_one_box_of_it_is(data, buffer_bytes, threads):
    """Tensors that are not cut take the short way: the same bytes are read for the same memory."""
    make = data.draw(files())
    before = {name: bytes(sink.memory) for name, sink in make.sinks.items()}
    calls, again = [], []
    filled(make, threads=threads, buffer_bytes=buffer_bytes, progress=calls.append)
    whole = {name: bytes(sink.memory) for name, sink in make.sinks.items()}
    for name, sink in make.sinks.items():
        sink.memory[:] = before[name]
    copies, sinks = boxed(make)
    filled(make, copies=copies, sinks=sinks, threads=threads, buffer_bytes=buffer_bytes, progress=again.append)
    assert {name: bytes(sink.memory) for name, sink in make.sinks.items()} == whole
    assert sum(calls) == sum(again) == stored_bytes(make.copies, verify="stream")


def test_neighbours_are_read_together_and_each_tensor_is_handed_over_once(monkeypatch):
    """System calls go by bytes, not by tensors; what a tensor's memory is asked for is asked once."""
    asked = []
    make = tiny(2000)
    monkeypatch.setattr(MemorySlot, "direct", lambda sink, nbytes: asked.append(nbytes) or memoryview(sink.memory))
    reader = filled(make)
    assert len(asked) == len(make.copies)
    assert len(reader.reads) <= 1 + 2 * len(make.data) // (1 << 16)
    assert not any(sink.seen for sink in make.sinks.values())
    assert all(make.sinks[copy.slot.id].values() == make.expected(copy) for copy in make.copies)


@pytest.mark.parametrize(
    ("number", "nbytes", "file", "threads"),
    [
        (MANY, TINY - 1, "", 1),
        (MANY, TINY, "", 4),
        (MANY - 1, 4, "", 4),
        (1, 1 << 30, "", 4),
        (0, 0, "", 4),
    ],
)
def test_many_tiny_storages_are_read_by_one_thread(number, nbytes, file, threads):
    """Handing a tiny tensor over takes longer than its bytes, and threads would only take turns at it."""
    storage = Storage("0", "uint8", nbytes, "cpu", None, None)
    blocks = [Block(storage, Span(i * nbytes, nbytes, file)) for i in range(number)]
    assert threads_for(blocks, 4) == threads


def test_many_tiny_tensors_arrive_in_the_thread_that_asked(monkeypatch):
    """One thread is the caller's own."""
    seen = set()
    direct = MemorySlot.direct
    monkeypatch.setattr(MemorySlot, "direct", lambda *a: seen.add(threading.get_ident()) or direct(*a))
    filled(tiny(MANY), threads=4, buffer_bytes=4 << 10)
    assert seen == {threading.get_ident()}


def test_whoever_listens_costs_no_second_look_at_the_tensors(monkeypatch):
    """The bytes at which progress ends are those of the blocks that are there."""
    looks = []
    monkeypatch.setattr(streaming, "bytes_of", lambda copies: looks.append(copies) or 0)
    make, calls = tiny(40), []
    filled(make, progress=calls.append)
    assert not looks
    assert sum(calls) == sum(storage.nbytes for storage in make.storages)
