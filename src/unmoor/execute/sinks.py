"""The abstract ends of execution: what takes tensor data, what gives it, and the buffers that are between.

`live` implements both with torch, tests with plain bytearrays. Must not know torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["Blob", "Buffers", "Parts", "Ring", "Sink", "Window"]


@dataclass(frozen=True, slots=True)
class Window:
    """Elements in a run of stored bytes, and the part of a slot that they go to.

    They go to `slot[start : start + shape]`, dimension by dimension. Element `(i, j, ...)` stands at element
    `offset + i * stride[0] + j * stride[1] + ...` of the data, in `dtype` and `byteorder` ("little" or "big"). `bits`
    holds "conj" and "neg" where the stored values are to be conjugated or negated. A stride may be 0.
    """

    start: tuple[int, ...]
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: str
    byteorder: str
    bits: frozenset[str]


class Parts(Protocol):
    """What is here of a slot: all of it, or its boxes, of which each is asked for by itself."""

    def part(self, start: tuple[int, ...], shape: tuple[int, ...]) -> Sink:
        """The memory of `slot[start : start + shape]`, dimension by dimension, as a sink of its own."""


class Sink(Parts, Protocol):
    """The memory behind one slot, or a box of one. Called from several threads, for different parts of it at once."""

    @property
    def dense(self) -> bool:
        """Whether the memory has neither gaps nor overlap."""

    @property
    def stride(self) -> tuple[int, ...]:
        """The strides of the memory, in elements."""

    def direct(self, nbytes: int) -> memoryview | None:
        """The whole memory as `nbytes` writable bytes in storage order, None where it is on a device or not dense."""

    def expect(self, start: int, end: int) -> None:
        """Be told that bytes `start` to `end` of what `direct` gave are written next: memory may be made ready."""

    def put(self, offset: int, data: memoryview) -> None:
        """Take `data` at byte `offset` of the memory in storage order.

        Called only for dense slots, with bytes of the slot's own dtype. The caller reuses `data` after the return; if
        it is a buffer of the calling thread's `Ring`, when the ring gives it again.
        """

    def accept(self, window: Window, data: memoryview) -> None:
        """Take the elements of `window` out of `data`, converted to the slot's dtype and layout.

        `data` need not be aligned to the element size. The caller reuses it as after `put`.
        """


class Blob(Protocol):
    """Tensor data to be written, as bytes in storage order. Called from several threads."""

    def direct(self, offset: int, nbytes: int) -> memoryview | None:
        """Bytes `offset` to `offset + nbytes` where they lie, None where they must be fetched."""

    def fetch(self, offset: int, target: memoryview) -> None:
        """Copy the bytes from `offset` on into the whole of `target`.

        Into a buffer of the calling thread's `Ring` the copy may go on after the return, until the ring settles it.
        """


class Ring(Protocol):
    """The buffers of one thread, in turn. Sinks and blobs that it calls may still be at earlier ones."""

    @property
    def slots(self) -> int:
        """How many buffers there are."""

    def take(self) -> memoryview:
        """The next buffer, when nothing copies out of it or into it any more."""

    def settle(self, buffer: memoryview) -> None:
        """Return when what was fetched into `buffer`, or a part of one, is there."""

    def close(self) -> None:
        """Return when all copies have ended, after an error too. The buffers are gone then."""


class Buffers(Protocol):
    """Where the threads of one stream of bytes get their buffers, each thread `slots` of them."""

    @property
    def slots(self) -> int:
        """How many buffers a ring has."""

    def ring(self, nbytes: int) -> Ring:
        """The ring of the calling thread, of buffers of `nbytes` each."""
