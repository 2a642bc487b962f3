"""Buffers that copies are still under way in: how many a thread has, how large they are, and when each is used."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from unmoor.execute import crew
from unmoor.execute.fetching import chunks, copy, gather

DATA = bytes(range(256)) * 3


class LateRing:
    """A ring whose buffers are filled when they are settled, and not before; it notes what is asked of it."""

    def __init__(self, nbytes: int, slots: int) -> None:
        self.slots, self.notes = slots, []
        self._buffers = [bytearray(nbytes) for _ in range(slots)]
        self._waiting: list[list[Callable[[], None]]] = [[] for _ in range(slots)]
        self._turn = -1

    def take(self) -> memoryview:
        self._turn = (self._turn + 1) % self.slots
        assert not self._waiting[self._turn], "a buffer was taken whose bytes nobody has used"
        self.notes.append(f"take {self._turn}")
        return memoryview(self._buffers[self._turn])

    def settle(self, buffer: memoryview) -> None:
        slot = next(i for i, own in enumerate(self._buffers) if own is buffer.obj)
        self.notes.append(f"settle {slot}")
        for fill in self._waiting[slot]:
            fill()
        self._waiting[slot].clear()

    def close(self) -> None:
        self.notes.append("close")

    def later(self, buffer: memoryview, fill: Callable[[], None]) -> None:
        slot = next(i for i, own in enumerate(self._buffers) if own is buffer.obj)
        self._waiting[slot].append(fill)


class LateBlob:
    """Bytes that a device copies: they are there when the ring settles the buffer."""

    def __init__(self, data: bytes, ring: LateRing) -> None:
        self._data, self._ring = data, ring

    def direct(self, offset: int, nbytes: int) -> memoryview | None:
        return None

    def fetch(self, offset: int, target: memoryview) -> None:
        def fill() -> None:
            target[:] = self._data[offset : offset + len(target)]

        self._ring.later(target, fill)


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("size", [1, 7, 64, 100, 1000])
@pytest.mark.parametrize(("start", "end"), [(0, 0), (0, 1), (5, 700), (0, len(DATA))])
def test_chunks_come_in_order_while_the_next_are_fetched(slots: int, size: int, start: int, end: int) -> None:
    """Each chunk is whole when it is given, and as many are under way as the ring has buffers."""
    ring = LateRing(100, slots)
    found = []
    ahead = 0
    for chunk in chunks(LateBlob(DATA, ring), start, end, size, ring):
        assert len(chunk) <= min(size, 100)
        found.append(bytes(chunk))
        taken = sum(note.startswith("take") for note in ring.notes)
        ahead = max(ahead, taken - len(found) + 1)
    assert b"".join(found) == DATA[start:end]
    assert ahead == min(slots, len(found))


def test_chunks_of_what_lies_in_memory_take_no_buffer() -> None:
    """Bytes are given where they are."""
    ring = LateRing(10, 2)
    assert [bytes(chunk) for chunk in chunks(DATA, 3, 700, 300, ring)] == [DATA[3:303], DATA[303:603], DATA[603:700]]
    assert ring.notes == []


def test_what_is_gathered_is_settled_once() -> None:
    """Records of one bundle share a buffer, which is settled when all of them are on their way."""
    ring = LateRing(200, 2)
    blob = LateBlob(DATA, ring)
    found = gather([(b"head", 0, 4), (blob, 10, 50), (blob, 100, 20), (blob, 150, 0)], ring)
    assert [bytes(data) for data in found] == [b"head", DATA[:50], DATA[:20], b""]
    assert ring.notes == ["take 0", "settle 0"]


def test_a_copy_into_other_memory_is_done() -> None:
    """What is not a ring's buffer is filled when the call returns."""
    target = bytearray(5)
    copy(DATA, 3, memoryview(target))
    assert bytes(target) == DATA[3:8]


class Buffers:
    """Rings of late buffers, all of them noted."""

    slots = 4

    def __init__(self) -> None:
        self.made: list[tuple[int, LateRing]] = []

    def ring(self, nbytes: int) -> LateRing:
        ring = LateRing(nbytes, self.slots)
        self.made.append((nbytes, ring))
        return ring


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("buffer_bytes", [1, 1000, 100_000, 32 << 20])
def test_all_rings_together_stay_within_the_buffer(threads: int, buffer_bytes: int) -> None:
    """Each of four buffers is a power of two, however few jobs there are; the least is 64 bytes."""
    buffers = Buffers()
    crew.run(list(range(9)), lambda _, __: None, threads=threads, buffer_bytes=buffer_bytes, buffers=buffers)
    sizes = {nbytes for nbytes, _ in buffers.made}
    assert sizes == {crew.share(buffer_bytes, threads, buffers)}
    (size,) = sizes
    assert size & (size - 1) == 0
    assert len(buffers.made) == threads
    assert size == 64 or size * buffers.slots * threads <= buffer_bytes


@pytest.mark.parametrize("threads", [1, 3])
def test_rings_are_closed_after_an_error_too(threads: int) -> None:
    """Nothing is under way any more when the error reaches the caller."""
    buffers = Buffers()
    everyone = threading.Barrier(threads)

    def work(job: int, _: memoryview) -> None:
        if job < threads:
            everyone.wait()
        raise ValueError(job)

    with pytest.raises(ValueError, match=r"\d"):
        crew.run(list(range(9)), work, threads=threads, buffer_bytes=4096, buffers=buffers)
    assert [ring.notes[-1] for _, ring in buffers.made] == ["close"] * threads


def test_each_job_gets_the_next_buffer() -> None:
    """The buffers of a ring take turns."""
    buffers = Buffers()
    crew.run(list(range(6)), lambda _, __: None, threads=1, buffer_bytes=4096, buffers=buffers)
    assert buffers.made[0][1].notes == [*(f"take {n}" for n in (0, 1, 2, 3, 0, 1)), "close"]
