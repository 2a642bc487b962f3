"""The bytes of what is written, where they lie or in buffers into which a device copies them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from .sinks import Blob, Ring

__all__ = ["chunks", "copy", "gather"]


def chunks(source: bytes | Blob, start: int, end: int, size: int, ring: Ring) -> Iterator[memoryview]:
    """Bytes `start` to `end` in order, at most `size` at a time; each is good until the next is asked for.

    Of what must be fetched, the next ones are on their way meanwhile: as many as the ring has buffers.
    """
    ahead: deque[memoryview] = deque()
    while start < end:
        chunk = view(source, start, min(size, end - start))
        if chunk is not None:
            while ahead:
                yield _settled(ahead.popleft(), ring)
            yield chunk
        elif not isinstance(source, bytes):
            chunk = ring.take()[: end - start][:size]
            source.fetch(start, chunk)
            ahead.append(chunk)
            if len(ahead) == ring.slots:
                yield _settled(ahead.popleft(), ring)
        start += len(chunk or b"")
    while ahead:
        yield _settled(ahead.popleft(), ring)


def copy(source: bytes | Blob, offset: int, target: memoryview) -> None:
    """Bytes from `offset` on into the whole of `target`, which the ring settles where it is one of its buffers."""
    found = view(source, offset, len(target)) if target else memoryview(b"")
    if found is None and not isinstance(source, bytes):
        source.fetch(offset, target)
    elif found is not None:
        target[:] = found


def gather(sources: Iterable[tuple[bytes | Blob, int, int]], ring: Ring) -> list[bytes | memoryview]:
    """All bytes of each (source, place, bytes): where they lie, or fetched to its place in one buffer of the ring."""
    found: list[bytes | memoryview] = []
    buffer: memoryview | None = None
    for source, place, nbytes in sources:
        if isinstance(source, bytes):
            found.append(source)
            continue
        data = source.direct(0, nbytes) if nbytes else memoryview(b"")
        if data is None:
            buffer = ring.take() if buffer is None else buffer
            data = buffer[place : place + nbytes]
            source.fetch(0, data)
        found.append(data)
    if buffer is not None:
        ring.settle(buffer)
    return found


def view(source: bytes | Blob, offset: int, nbytes: int) -> memoryview | None:
    """Bytes where they lie; None where they must be fetched."""
    if isinstance(source, bytes):
        return memoryview(source)[offset : offset + nbytes]
    return source.direct(offset, nbytes)


def _settled(chunk: memoryview, ring: Ring) -> memoryview:
    ring.settle(chunk)
    return chunk
