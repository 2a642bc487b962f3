"""What one rank holds of a tensor that is spread over several: boxes of it, each in memory of this process.

Speaks the protocol by which torch.distributed.checkpoint asks a tensor for its parts; DTensor has it too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from unmoor.values.boxes import Box

__all__ = ["Held"]


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A tensor of `shape` of which this process holds `parts`: boxes, and for each a live tensor of the box's sizes.

    The parts are views of the live memory: writing to them changes the run. A rank without any part of it has none;
    parts have elements, unless the whole tensor has none. `local` is that memory in the form in which it is kept (the
    local tensor of a DTensor, a flat window of FSDP's), None where nothing keeps it as one. `replicated` tells that
    other ranks may have the same boxes.
    """

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    parts: tuple[tuple[Box, torch.Tensor], ...]
    requires_grad: bool = False
    local: torch.Tensor | None = None
    replicated: bool = False

    def size(self) -> torch.Size:
        """The shape of the whole tensor."""
        return self.shape

    def dim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def numel(self) -> int:
        """The number of elements of the whole tensor."""
        return self.shape.numel()

    def detach(self) -> Held:
        """The same parts, wanting no gradient."""
        return replace(self, requires_grad=False)

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return self.dtype.itemsize

    @property
    def boxes(self) -> tuple[Box, ...]:
        """The parts of the tensor that are here."""
        return tuple(box for box, _ in self.parts)

    def __create_chunk_list__(self) -> list[Any]:
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

        return [ChunkStorageMetadata(torch.Size(box.start), torch.Size(box.sizes)) for box in self.boxes]

    def __create_write_items__(self, fqn: str, _: Any) -> list[Any]:
        from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
        from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

        return [
            WriteItem(
                index=MetadataIndex(fqn, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk, TensorProperties(dtype=self.dtype), self.shape),
            )
            for chunk in self.__create_chunk_list__()
        ]

    def __get_tensor_shard__(self, index: Any) -> torch.Tensor:
        return next(tensor for box, tensor in self.parts if box.start == tuple(index.offset))
