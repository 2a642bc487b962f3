"""A described tree as a folder of torch.distributed.checkpoint, written by one process, a box of a tensor at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, Final

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from unmoor.execute.checksums import crc32
from unmoor.execute.tiling import is_dense, tiles
from unmoor.live.casting import cast_tensor
from unmoor.live.sinks import host_memory
from unmoor.live.trees import Realizer
from unmoor.values.boxes import Box
from unmoor.values.dtypes import dtype_bytes, nbytes_of
from unmoor.values.frames import Framed, framed
from unmoor.values.nodes import CompositeTensor, TensorNode
from unmoor.values.strides import contiguous

from .filling import Wanted, read_whole
from .planners import SavePlanner
from .saving import Share, Writer
from .stored_sources import Sources

__all__ = ["BOX_BYTES", "save_stored", "share_stored"]

BOX_BYTES: Final = 32 << 20
"""The largest part of a tensor that is in memory at a time."""


class _Lazy:
    """A stored tensor in the form that torch.distributed.checkpoint asks for its parts: read when they are written.

    Boxes follow each other in the storage; where they are all of it, `done` gets its checksum with the last.
    """

    def __init__(self, node: TensorNode, key: str, sources: Sources) -> None:
        self._node, self._key, self._fill, self._done = node, key, sources.fill, sources.holding(node)
        self._origin, self._loss = sources.origin(node), sources.loss_of
        self._crc = self._read = 0
        limit = max(1, BOX_BYTES // dtype_bytes(node.dtype))
        order = node.stride if is_dense(node.shape, node.stride) else contiguous(node.shape)
        self.boxes = [Box(tile.start, tile.shape) for tile in tiles(node.shape, order, 0, limit)]
        self.boxes = self.boxes or [Box((0,) * len(node.shape), node.shape)]

    def size(self) -> torch.Size:
        """The shape of the whole tensor."""
        return torch.Size(self._node.shape)

    def __create_write_items__(self, fqn: str, _: Any) -> list[WriteItem]:
        properties = TensorProperties(dtype=getattr(torch, self._node.dtype))
        chunks = [ChunkStorageMetadata(torch.Size(box.start), torch.Size(box.sizes)) for box in self.boxes]
        return [
            WriteItem(
                index=MetadataIndex(fqn, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk, properties, self.size()),
            )
            for chunk in chunks
        ]

    def __get_tensor_shard__(self, index: Any) -> torch.Tensor:
        box = next(box for box in self.boxes if box.start == tuple(index.offset))
        alone = box.sizes == self._node.shape and is_dense(self._node.shape, self._node.stride)
        stride = self._node.stride if alone else contiguous(box.sizes)
        tensor = torch.empty_strided(box.sizes, stride, dtype=getattr(torch, self._origin.dtype), device="cpu")
        self._fill([Wanted(self._origin, box, tensor, self._key)])
        self._sum(tensor)
        cast = self._origin.dtype != self._node.dtype
        return cast_tensor(tensor, self._node.dtype, self._loss(self._node)) if cast else tensor

    def _sum(self, tensor: torch.Tensor) -> None:
        nbytes = tensor.numel() * tensor.itemsize
        if self._done is None or not nbytes:
            return
        self._crc = crc32(host_memory(tensor, nbytes), self._crc)
        self._read += tensor.numel()
        if self._read == prod(self._node.shape):
            self._done(self._crc)


class _Value:
    """A value in which tensors are: read when it is written."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


class _Planner(SavePlanner):
    """Also asks what is read late."""

    def lookup_object(self, index: MetadataIndex) -> Any:
        """The data at an index of the plan."""
        value = super().lookup_object(index)
        return value.make() if isinstance(value, _Value) else value


def share_stored(tree: Any, sources: Sources) -> tuple[Share, frozenset[str]]:
    """What is written of a tree whose tensors are nodes, and the keys of the storages that are summed on the way.

    Raises FrameError for a tree that has no frame.
    """
    made = framed(tree, _is_large, lambda leaf: isinstance(leaf, TensorNode | CompositeTensor | torch.Tensor))
    aliases = _aliases(made)
    summed: set[str] = set()
    values = {key: _value(key, leaf, sources, summed) for key, leaf in made.leaves.items() if key not in aliases}
    paths = {key: made.paths[key] for key in made.leaves}
    return Share(values, paths, aliases, made.frame, {}), frozenset(summed)


def _is_large(leaf: Any) -> bool:
    """Whether a tensor takes a tuple apart that holds it, which torch would write as one value."""
    return _is_plain(leaf) and nbytes_of(leaf.dtype, leaf.numel) > BOX_BYTES


def _is_plain(leaf: Any) -> bool:
    """Whether a tensor is written in boxes; torch's planner knows no size of the elements of bits8 and its kin."""
    if not isinstance(leaf, TensorNode) or leaf.storage is None or leaf.dtype.startswith("bits"):
        return False
    return not leaf.bits and leaf.quantizer is None


def _value(key: str, leaf: Any, sources: Sources, summed: set[str]) -> Any:
    if not _is_plain(leaf):
        realize = Realizer(tensor=partial(read_whole, fill=sources.fill, place=key))
        return _Value(lambda: realize(leaf)) if _holds_nodes(leaf) else leaf
    if sources.sums_tensor(leaf):
        summed.add(sources.read_key(leaf.storage))
    return _Lazy(leaf, key, sources)


def _holds_nodes(leaf: Any) -> bool:
    if type(leaf) in (list, tuple, set):
        return any(map(_holds_nodes, leaf))
    if isinstance(leaf, dict):
        return any(map(_holds_nodes, leaf.values()))
    return isinstance(leaf, TensorNode | CompositeTensor)


def _aliases(made: Framed) -> dict[str, str]:
    """Keys of tensors that were met before under another key -> that key."""
    first: dict[Any, str] = {}
    found: dict[str, str] = {}
    for key, leaf in made.leaves.items():
        if _is_plain(leaf) and leaf.numel:
            mark = (leaf.storage.key, leaf.offset, leaf.shape, leaf.stride, leaf.dtype)
            if first.setdefault(mark, key) != key:
                found[key] = first[mark]
    return found


def save_stored(share: Share, writer: Writer) -> None:
    """Plan and write by the engine's own steps, in this process alone, whether or not it is one of several."""
    planner = _Planner(share.paths)
    planner.set_up_planner(share.values, writer.storage_meta(), True)
    writer.set_up_storage_writer(True)
    plans, metadata = planner.create_global_plan([writer.prepare_local_plan(planner.create_local_plan())])
    plan = planner.finish_plan(writer.prepare_global_plan(plans)[0])
    writer.finish(metadata, [writer.write_data(plan, planner).wait()])
