"""Boxes of stored tensors, read into live ones through the executor: only the bytes that lie in the boxes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import torch

from unmoor.execute.reading import OpenSpan
from unmoor.execute.streaming import Streamed, Verify, stream
from unmoor.live.held import Held
from unmoor.live.rings import rings_for
from unmoor.live.sinks import HeldSink
from unmoor.live.trees import Realizer, quantized
from unmoor.values.boxes import Box, flat_boxes
from unmoor.values.dtypes import dtype_bytes
from unmoor.values.nodes import TensorNode
from unmoor.values.plan import Copy
from unmoor.values.strides import contiguous
from unmoor.values.target import Slot

__all__ = ["BoxBlob", "Filler", "Wanted", "read_whole"]


class Wanted(NamedTuple):
    """A box of a stored tensor and the live tensor of the box's sizes that it goes to; `place` is for people."""

    node: TensorNode
    box: Box
    tensor: torch.Tensor
    place: str


class Filler:
    """Fills live tensors with boxes of stored ones.

    A storage that the boxes of one call cover whole is held against its checksum as it is read; of one that is read in
    part, its checksum says nothing.
    """

    def __init__(
        self,
        open_span: OpenSpan,
        *,
        buffer_bytes: int,
        threads: int,
        verify: Verify,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._open_span, self._progress = open_span, progress
        self._buffer_bytes, self._threads, self._verify = buffer_bytes, threads, verify

    def __call__(self, wanted: Iterable[Wanted]) -> Streamed:
        """Fill every tensor. Raises CorruptFile for a wrong checksum or a file cut short."""
        rows = [(_copy(number, each), HeldSink(_held(each))) for number, each in enumerate(wanted)]
        return stream(
            [copy for copy, _ in rows],
            {copy.slot.id: sink for copy, sink in rows},
            buffers=rings_for(sink.device for _, sink in rows),
            open_span=self._open_span,
            buffer_bytes=self._buffer_bytes,
            threads=self._threads,
            verify=self._verify,
            progress=self._progress,
        )


def _held(wanted: Wanted) -> Held:
    tensor = wanted.tensor.detach()
    return Held(torch.Size(wanted.node.shape), tensor.dtype, tensor.device, ((wanted.box, tensor),))


def _copy(number: int, wanted: Wanted) -> Copy:
    node, tensor = wanted.node, wanted.tensor
    dtype = str(tensor.dtype).removeprefix("torch.")
    name, stride = f"{wanted.place}/{number}", contiguous(node.shape)
    slot = Slot(name, node.shape, dtype, stride, str(tensor.device), dense=True, boxes=(wanted.box,))
    return Copy("", wanted.place, wanted.place, node, slot)


def read_whole(node: TensorNode, fill: Filler, place: str) -> torch.Tensor:
    """A stored tensor in memory of its own: on the meta device where the file holds no data of it."""
    dtype: torch.dtype = getattr(torch, node.dtype)
    if node.storage is None:
        return torch.empty(node.shape, dtype=dtype, device="meta")
    if node.quantizer is not None:
        held = TensorNode(node.storage, 0, (node.storage.nbytes,), (1,), "uint8", node.device)
        numbers = Realizer(tensor=partial(read_whole, fill=fill, place=place))(node.quantizer)
        memory = read_whole(held, fill, place).untyped_storage()
        return quantized(memory, node.dtype, (node.offset, node.shape, node.stride), numbers)
    tensor = torch.empty(node.shape, dtype=dtype, device="cpu")
    fill([Wanted(node, Box((0,) * len(node.shape), node.shape), tensor, place)])
    return tensor


class BoxBlob:
    """The elements of a stored tensor in the order of its dimensions, as bytes; read in boxes when asked for.

    `start` is the byte from which offsets count.
    """

    def __init__(self, fill: Filler, node: TensorNode, place: str, *, start: int = 0) -> None:
        self.nbytes = node.numel * dtype_bytes(node.dtype) - start
        self._fill, self._node, self._place, self._start = fill, node, place, start

    def direct(self, offset: int, nbytes: int) -> memoryview | None:  # noqa: ARG002 - a Blob has this form
        """Nothing: the bytes are in files."""
        return None

    def fetch(self, offset: int, target: memoryview) -> None:
        """Read the bytes from `offset`, a whole number of elements, into the whole of `target`."""
        dtype: torch.dtype = getattr(torch, self._node.dtype)
        given = torch.frombuffer(target, dtype=torch.uint8)
        aligned = given.data_ptr() % dtype.itemsize == 0
        flat = (given if aligned else torch.empty_like(given)).view(dtype)
        first = (self._start + offset) // dtype.itemsize
        done, wanted = 0, []
        for box in flat_boxes(self._node.shape, first, first + len(flat)):
            part = flat[done : done + box.numel].view(box.sizes)
            wanted.append(Wanted(self._node, box, part, self._place))
            done += box.numel
        self._fill(wanted)
        if not aligned:
            given.copy_(flat.view(torch.uint8))
