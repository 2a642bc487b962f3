"""The buffers between files and devices: each thread has a ring of pinned ones, and a stream on each device.

While the copies out of one buffer are under way, the next is read and summed; a buffer comes round again when its
copies have ended. Sinks and blobs call `put`, `convert` and `fetch`, which use the ring of the calling thread where it
has one for the device; else the copy is done when they return. Conversions are the CPU's, so that values do not depend
on the device; what they make lies in a buffer of the ring too.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any, Final

import torch

from .pinned import Lane, host_memory, pinned, queued

__all__ = ["Rings", "bring", "convert", "fetch", "pieces", "put", "rings_for"]

#: Buffers of a ring: one is being filled, one is on its way, and two for when either is late.
SLOTS: Final = 4
#: Bytes of a buffer of the ring through which `bring` copies.
PASSING: Final = 4 << 20

_here = threading.local()


def rings_for(devices: Iterable[torch.device]) -> Rings | None:
    """Rings for copies to and from `devices`; None where none of them copies beside other work.

    Copies begin after all that is queued now on the devices' current streams of the calling thread.
    """
    starts = {device: start for device in set(devices) if (start := queued(device)) is not None}
    return Rings(starts) if starts else None


def put(target: torch.Tensor, data: memoryview) -> None:
    """Copy bytes into a flat uint8 tensor."""
    source = torch.frombuffer(data, dtype=torch.uint8)
    ring = _ring_for(target.device)
    if ring is None:
        target.copy_(source)
    else:
        ring.copy(target, source, host=source)


def convert(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy a tensor of the CPU into one of the same shape and another dtype or layout. `source` is done with."""
    ring = _ring_for(target.device)
    if ring is None:
        target.copy_(source)
    else:
        ring.convert(target, source)


def fetch(data: memoryview, source: torch.Tensor) -> None:
    """Copy a flat uint8 tensor into bytes. Where these are a ring's they are there when the ring settles them."""
    target = torch.frombuffer(data, dtype=torch.uint8)
    ring = _ring_for(source.device)
    if ring is None:
        target.copy_(source)
    else:
        ring.copy(target, source, host=target)


def pieces(source: torch.Tensor, size: int) -> Iterator[memoryview]:
    """The bytes of a flat uint8 tensor of a device, at most `size` at a time; each is good until the next is asked."""
    rings = rings_for([source.device])
    parts = (source[start : start + size] for start in range(0, len(source), size))
    if rings is None:
        buffer = memoryview(bytearray(min(size, len(source))))
        for part in parts:
            fetch(buffer[: len(part)], part)
            yield buffer[: len(part)]
        return
    with closing(rings.ring(size)) as ring:
        ahead: deque[memoryview] = deque()
        for part in parts:
            ahead.append(ring.take()[: len(part)])
            fetch(ahead[-1], part)
            if len(ahead) == SLOTS:
                ring.settle(ahead[0])
                yield ahead.popleft()
        for chunk in ahead:
            ring.settle(chunk)
            yield chunk


def bring(rows: Iterable[tuple[memoryview, torch.Tensor]]) -> None:
    """Copy flat uint8 tensors of devices into host memory, each into the whole of its own, however that was made.

    It passes through a ring, so that copies out of one buffer go on while devices fill the next. All has arrived when
    this returns; it is what the tensors held once all was done that is queued now on their devices' current streams.
    """
    rows = list(rows)
    rings = rings_for(source.device for _, source in rows)
    if rings is None:
        for target, source in rows:
            fetch(target, source)
        return
    with closing(rings.ring(PASSING)) as ring:
        full: deque[tuple[memoryview, list[tuple[memoryview, int]]]] = deque()
        for pieces in _packed(rows):
            buffer, place, parts = ring.take(), 0, []
            for target, source in pieces:
                fetch(buffer[place : place + len(target)], source)
                parts.append((target, place))
                place += len(target)
            full.append((buffer, parts))
            if len(full) == SLOTS:
                _land(ring, *full.popleft())
        while full:
            _land(ring, *full.popleft())


def _packed(rows: Iterable[tuple[memoryview, torch.Tensor]]) -> Iterator[list[tuple[memoryview, torch.Tensor]]]:
    """The rows, cut and put together so that the pieces of each list fill a buffer."""
    pieces, room = [], PASSING
    for target, source in rows:
        start = 0
        while start < len(target):
            size = min(room, len(target) - start)
            pieces.append((target[start : start + size], source[start : start + size]))
            start, room = start + size, room - size
            if room == 0:
                yield pieces
                pieces, room = [], PASSING
    if pieces:
        yield pieces


def _land(ring: _Ring, buffer: memoryview, parts: Iterable[tuple[memoryview, int]]) -> None:
    ring.settle(buffer)
    arrived = torch.frombuffer(buffer, dtype=torch.uint8)
    for target, place in parts:
        torch.frombuffer(target, dtype=torch.uint8).copy_(arrived[place : place + len(target)])


def _ring_for(device: torch.device) -> _Ring | None:
    ring: _Ring | None = getattr(_here, "ring", None)
    return ring if ring is not None and ring.serves(device) else None


class Rings:
    """The rings of the threads of one stream of bytes. `starts` are events by device: copies begin after them."""

    slots: Final = SLOTS

    def __init__(self, starts: Mapping[torch.device, Any]) -> None:
        self._starts = starts

    def ring(self, nbytes: int) -> _Ring:
        """The ring of the calling thread, until it is closed."""
        return _Ring(self._starts, nbytes)


class _Ring:
    """`SLOTS` buffers of one thread, and its streams."""

    slots: Final = SLOTS

    def __init__(self, starts: Mapping[torch.device, Any], nbytes: int) -> None:
        self._starts, self._nbytes = starts, nbytes
        self._lanes: dict[torch.device, Lane] = {}
        self._memory: list[torch.Tensor] = []
        self._queued: list[set[Lane]] = [set() for _ in range(SLOTS)]
        self._marks: list[list[Any]] = [[] for _ in range(SLOTS)]
        self._turn, self._held = -1, -1
        self._outer, _here.ring = getattr(_here, "ring", None), self

    def take(self) -> memoryview:
        """The next buffer, when its copies have ended."""
        self._held = self._next()
        return host_memory(self._memory[self._held], self._nbytes)

    def settle(self, buffer: memoryview) -> None:
        """Return when what was fetched into `buffer` is there."""
        slot = self._slot(ctypes.addressof(ctypes.c_ubyte.from_buffer(buffer)))
        if slot is not None:
            self._mark()
            self._wait(slot)

    def close(self) -> None:
        """Return when all copies have ended, whatever became of the work."""
        _here.ring = self._outer
        failed: tuple[torch.device, RuntimeError] | None = None
        for lane in self._lanes.values():
            try:
                lane.wait()
            except RuntimeError as error:
                failed = lane.device, error
        if failed is not None:
            raise _failed(*failed) from failed[1]

    def serves(self, device: torch.device) -> bool:
        """Whether copies to and from a device are this ring's."""
        return device in self._starts

    def copy(self, target: torch.Tensor, source: torch.Tensor, *, host: torch.Tensor) -> None:
        """Queue a copy; one of them, `host`, is in host memory. What lies outside the ring is not kept waiting."""
        lane, slot = self._lane(source.device if host is target else target.device), self._slot(host.data_ptr())
        lane.copy(target, source)
        if slot is None:
            lane.wait()
        else:
            self._queued[slot].add(lane)

    def convert(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Convert into buffers of the ring, and queue copies of them."""
        lane = self._lane(target.device)
        for part, values in _fitting(target, source, self._nbytes):
            slot = self._next(skip=self._held)
            made = self._memory[slot][: part.numel() * part.itemsize].view(part.dtype).view(part.shape)
            made.copy_(values)
            lane.copy(part, made)
            self._queued[slot].add(lane)

    def _lane(self, device: torch.device) -> Lane:
        lane = self._lanes.get(device)
        if lane is None:
            lane = self._lanes[device] = Lane(device, after=self._starts[device])
        return lane

    def _next(self, *, skip: int = -1) -> int:
        self._mark()
        self._turn = (self._turn + 1) % SLOTS
        if self._turn == skip:
            self._turn = (self._turn + 1) % SLOTS
        self._wait(self._turn)
        while len(self._memory) <= self._turn:
            self._memory.append(pinned(self._nbytes, next(iter(self._starts))))
        return self._turn

    def _mark(self) -> None:
        """Events behind all that has been queued, for the buffers that it concerns."""
        events: dict[Lane, Any] = {}
        for lanes, marks in zip(self._queued, self._marks, strict=True):
            for lane in lanes:
                if lane not in events:
                    events[lane] = lane.mark()
                marks.append((lane.device, events[lane]))
            lanes.clear()

    def _wait(self, slot: int) -> None:
        for device, event in self._marks[slot]:
            try:
                event.synchronize()
            except RuntimeError as error:
                raise _failed(device, error) from error
        self._marks[slot].clear()

    def _slot(self, address: int) -> int | None:
        return next((i for i, m in enumerate(self._memory) if 0 <= address - m.data_ptr() < self._nbytes), None)


def _failed(device: torch.device, error: RuntimeError) -> OSError:
    return OSError(f"a copy to or from {device} did not end well: {type(error).__name__}: {error}")


def _fitting(target: torch.Tensor, source: torch.Tensor, limit: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Target and source in parts of which each takes at most `limit` bytes."""
    if target.numel() * target.itemsize <= limit:
        yield target, source
        return
    axis = next(i for i, size in enumerate(target.shape) if size > 1)
    half = target.shape[axis] // 2
    for start, size in ((0, half), (half, target.shape[axis] - half)):
        yield from _fitting(target.narrow(axis, start, size), source.narrow(axis, start, size), limit)
