"""Flattened tensors, one behind the other, cut into whole ones: as DeepSpeed and FSDP1 keep the parameters of a run.

Pure arithmetic over nodes: opens nothing and proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any

from .boxes import flat_boxes
from .dtypes import DTYPES
from .nodes import Chunk, Span, Storage, TensorNode
from .strides import contiguous

__all__ = ["Slice", "chunks_of", "cut", "joined", "slices_of"]


@dataclass(frozen=True, slots=True)
class Slice:
    """Elements `start` to `stop` of a flat tensor."""

    node: TensorNode
    start: int
    stop: int


def slices_of(nodes: Sequence[Any], start: int, stop: int) -> list[Slice]:
    """Where elements `start` to `stop` lie in flat tensors one behind the other; none of them where one is not flat."""
    if not all(type(node) is TensorNode and len(node.shape) == 1 for node in nodes):
        return []
    found, position = [], 0
    for node in nodes:
        low, high = max(start, position), min(stop, position + node.shape[0])
        if low < high:
            found.append(Slice(node, low - position, high - position))
        position += node.shape[0]
    return found


def chunks_of(part: Slice, shape: tuple[int, ...], position: int) -> Iterator[Chunk]:
    """The boxes of a tensor of `shape` that a slice of its flattened elements covers, from element `position` on."""
    node, step = part.node, part.node.stride[0]
    offset = node.offset + part.start * step
    for box in flat_boxes(shape, position, position + part.stop - part.start):
        stride = tuple(each * step for each in contiguous(box.sizes))
        yield Chunk(box.start, TensorNode(node.storage, offset, box.sizes, stride, node.dtype, node.device))
        offset += prod(box.sizes) * step


def joined(key: str, nodes: Sequence[TensorNode]) -> TensorNode:
    """Flat tensors of one dtype, of which at least one has elements, as one flat tensor on a storage of its own."""
    full = [node for node in nodes if node.shape != (0,)]
    starts = accumulate((node.shape[0] for node in full), initial=0)
    chunks = tuple(Chunk((start,), node) for start, node in zip(starts, full, strict=False))
    return _whole(key, full[0], (sum(node.shape[0] for node in full),), chunks)


def cut(key: str, node: TensorNode, start: int, shape: tuple[int, ...]) -> TensorNode:
    """The tensor of `shape` that lies from element `start` on in what `joined` made."""
    if 0 in shape:
        storage = Storage(key, node.dtype, 0, node.device, Span(0, 0, _file(node)), 0)
        return TensorNode(storage, 0, shape, contiguous(shape), node.dtype, node.device)
    pieces = [chunk.node for chunk in node.storage.chunks] if node.storage is not None else []
    chunks: list[Chunk] = []
    position = 0
    for part in slices_of(pieces, start, start + prod(shape)):
        chunks += chunks_of(part, shape, position)
        position += part.stop - part.start
    return _whole(key, node, shape, tuple(chunks))


def _whole(key: str, like: TensorNode, shape: tuple[int, ...], chunks: tuple[Chunk, ...]) -> TensorNode:
    nbytes = prod(shape) * DTYPES[like.dtype].itemsize
    storage = Storage(key, like.dtype, nbytes, like.device, None, None, shape=shape, chunks=chunks)
    return TensorNode(storage, 0, shape, contiguous(shape), like.dtype, like.device)


def _file(node: TensorNode) -> str:
    sources = node.storage.sources() if node.storage is not None else ()
    spans = [source.span for source in sources if source.span is not None]
    return spans[0].file if spans else ""
