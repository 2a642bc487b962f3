"""Folders of torch.distributed.checkpoint put together item by item: any boxes, in any files, with any fault.

The items are torch.save's and the classes of `.metadata` torch's own; only who wrote which box is made up.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import metadata as md
from torch.distributed.checkpoint.filesystem import _StorageInfo

Cut = tuple[tuple[int, ...], tuple[int, ...]]
"""Start and sizes of a box."""


def rows(shape: Sequence[int], parts: int) -> list[Cut]:
    """A tensor of `shape` cut along its first dimension."""
    each = -(-shape[0] // parts)
    zeros = (0,) * (len(shape) - 1)
    return [((a, *zeros), (min(each, shape[0] - a), *shape[1:])) for a in range(0, shape[0], each)]


class DcpMaker:
    """A folder in the making. `metadata` is what `write` pickles; tests break it first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, bytearray] = {}
        self.metadata = md.Metadata(state_dict_metadata={}, planner_data={}, storage_data={}, version="1.0.0")

    def tensor(self, path: tuple[str | int, ...], whole: torch.Tensor, cuts: Sequence[Cut] | None = None) -> None:
        """Add a tensor, each box to the file of its own rank."""
        key = self._key(path)
        chunks = []
        for rank, (start, sizes) in enumerate(cuts or [((0,) * whole.dim(), tuple(whole.shape))]):
            box = whole
            for axis, (first, size) in enumerate(zip(start, sizes, strict=True)):
                box = box.narrow(axis, first, size)
            self._item(md.MetadataIndex(key, start, rank), box.clone(), f"__{rank}_0.distcp")
            chunks.append(md.ChunkStorageMetadata(torch.Size(start), torch.Size(sizes)))
        properties = md.TensorProperties(dtype=whole.dtype)
        self.metadata.state_dict_metadata[key] = md.TensorStorageMetadata(properties, whole.size(), chunks)

    def value(self, path: tuple[str | int, ...], value: Any) -> None:
        """Add anything else, to the first file."""
        key = self._key(path)
        self._item(md.MetadataIndex(key), value, "__0_0.distcp")
        self.metadata.state_dict_metadata[key] = md.BytesStorageMetadata()

    def write(self) -> Path:
        """Write everything that was added."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, data in self.files.items():
            (self.folder / name).write_bytes(data)
        (self.folder / ".metadata").write_bytes(pickle.dumps(self.metadata))
        return self.folder

    def _key(self, path: tuple[str | int, ...]) -> str:
        key = ".".join(map(str, path))
        self.metadata.planner_data[key] = path
        return key

    def _item(self, index: md.MetadataIndex, value: Any, file: str) -> None:
        stream = io.BytesIO()
        torch.save(value, stream)
        data = self.files.setdefault(file, bytearray())
        self.metadata.storage_data[index] = _StorageInfo(file, len(data), len(stream.getvalue()))
        data += stream.getvalue()
