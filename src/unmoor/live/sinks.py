"""Where tensor data goes: live memory behind the three calls that the executor makes.

A sink writes through to the memory that a live tensor already has; it never replaces the tensor and never keeps a
reference to the executor's buffer.
"""

from __future__ import annotations

from typing import Any

import torch

from unmoor.values.boxes import Box

from .held import Held
from .memory import map_pages
from .modules import is_dense
from .pinned import host_memory
from .rings import convert, put

__all__ = ["HeldSink", "TensorSink", "host_memory", "sink_of"]


class TensorSink:
    """Puts stored bytes into one strided tensor on any device.

    There is one for every tensor: what most of them are never asked for is made when it is. `fresh` tells that the
    tensor was made to be filled: its memory is not there before it is written to.
    """

    __slots__ = ("_fresh", "_own", "dense")

    def __init__(self, tensor: torch.Tensor, *, dense: bool, fresh: bool = False) -> None:
        self._own = tensor
        self._fresh = fresh
        self.dense = dense

    @property
    def stride(self) -> tuple[int, ...]:
        """The strides of the tensor, in elements."""
        return tuple(self._own.stride())

    @property
    def device(self) -> torch.device:
        """Where the tensor is."""
        return self._own.device

    @property
    def _tensor(self) -> torch.Tensor:
        return self._own.detach()

    def direct(self, nbytes: int) -> memoryview | None:
        """The tensor's memory as bytes in storage order; None where it is on a device or has gaps."""
        if not self.dense or nbytes == 0 or not self._own.is_cpu:
            return None
        return host_memory(self._own, nbytes)

    def expect(self, start: int, end: int) -> None:
        """Have the memory there for bytes `start` to `end` of what `direct` gives."""
        if self._fresh:
            map_pages(self._own.data_ptr() + start, end - start)

    def put(self, offset: int, data: memoryview) -> None:
        """Take bytes at byte `offset` of a dense tensor, in storage order."""
        put(self._bytes()[offset : offset + len(data)], data)

    def accept(self, window: Any, data: memoryview) -> None:
        """Take the elements that `window` describes, converting dtype and layout on the way."""
        convert(_box(self._tensor, window.start, window.shape), _strided(window, data))

    def part(self, start: tuple[int, ...], shape: tuple[int, ...]) -> TensorSink:
        """A box of the tensor as a sink of its own."""
        box = _box(self._tensor, start, shape)
        return TensorSink(box, dense=is_dense(box), fresh=self._fresh)

    def _bytes(self) -> torch.Tensor:
        tensor = self._tensor
        whole = tensor.as_strided((tensor.numel(),), (1,))
        return whole.view(torch.uint8) if whole.dtype != torch.uint8 else whole


class HeldSink:
    """The boxes of a tensor that this process holds, each a sink of its own. There is no memory of the whole."""

    def __init__(self, held: Held, *, fresh: bool = False) -> None:
        self._parts, self._fresh, self.device = dict(held.parts), fresh, held.device

    def part(self, start: tuple[int, ...], shape: tuple[int, ...]) -> TensorSink:
        """The memory of one box."""
        tensor = self._parts[Box(start, shape)]
        return TensorSink(tensor, dense=is_dense(tensor), fresh=self._fresh)


def sink_of(tensor: torch.Tensor | Held, *, dense: bool, fresh: bool = False) -> TensorSink | HeldSink:
    """The sink of a live tensor, or of the parts of one. `fresh` ones were made to be filled."""
    if isinstance(tensor, Held):
        return HeldSink(tensor, fresh=fresh)
    return TensorSink(tensor, dense=dense, fresh=fresh)


def _box(tensor: torch.Tensor, start: tuple[int, ...], shape: tuple[int, ...]) -> torch.Tensor:
    for axis, (first, size) in enumerate(zip(start, shape, strict=True)):
        if size != tensor.shape[axis]:
            tensor = tensor.narrow(axis, first, size)
    return tensor


def _strided(window: Any, data: memoryview) -> torch.Tensor:
    dtype = getattr(torch, window.dtype)
    flat = torch.frombuffer(data, dtype=torch.uint8)
    if window.byteorder == "big" or flat.data_ptr() % dtype.itemsize:
        flat = flat.clone()
    usable = len(data) - len(data) % dtype.itemsize
    storage = flat[:usable].untyped_storage()
    if window.byteorder == "big":
        storage.byteswap(dtype)  # type: ignore[no-untyped-call]
    base = torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, (usable // dtype.itemsize,), (1,))
    tensor = base.as_strided(window.shape, window.stride, window.offset)
    if "conj" in window.bits:
        tensor = tensor.conj()
    if "neg" in window.bits:
        tensor = torch._neg_view(tensor)
    return tensor
