"""A tree as the pickle that torch.load reads, and the storages it refers to as blobs of bytes.

The opcodes are those of torch's own writer (protocol 2, persistent ids for storages). A storage is written only as far
as the saved tensors reach into it; tensors that share memory go on sharing it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from unmoor.values.pausing import collector_paused

from .cleaning import depth_refused
from .pickler import TreePickler
from .rings import fetch, pieces
from .windows import Windows, storage_ranges

__all__ = ["StorageBlob", "StorageRef", "pickle_tree", "storage_ranges"]

_PIECE = 4 << 20


class StorageBlob:
    """The bytes of one storage from byte `start` on: read in place on the CPU, copied piece by piece elsewhere.

    There is one for every storage: what memory on the CPU is never asked for is made when it is.
    """

    __slots__ = ("_flat", "_host", "_start", "_storage", "nbytes")

    def __init__(self, storage: torch.UntypedStorage, start: int, nbytes: int) -> None:
        self.nbytes = nbytes
        self._storage, self._start = storage, start
        self._host = storage.device.type == "cpu"
        self._flat: torch.Tensor | None = None

    @property
    def device(self) -> torch.device:
        """Where the bytes are."""
        return self._storage.device

    @property
    def values(self) -> torch.Tensor:
        """The bytes where they are, as a flat tensor of uint8."""
        if self._flat is None:
            flat = torch.empty(0, dtype=torch.uint8, device=self._storage.device)
            self._flat = flat.set_(self._storage, self._start, (self.nbytes,), (1,))
        return self._flat

    def direct(self, offset: int, nbytes: int) -> memoryview | None:
        """These bytes where they are; None where the host cannot see them."""
        if not self._host or nbytes == 0:
            return None
        first = self._storage.data_ptr() + self._start + offset
        return memoryview(_array(nbytes).from_address(first)).cast("B")

    def fetch(self, offset: int, target: memoryview) -> None:
        """Copy bytes from `offset` into `target`, as many as it holds; on their way where that is a ring's buffer."""
        fetch(target, self.values[offset : offset + len(target)])

    def checksum(self, crc32: Callable[..., int], alive: Callable[[], None]) -> int:
        """The CRC-32 of all bytes. `alive` is called for each piece that was read."""
        total = 0
        for data in self._pieces():
            total = crc32(data, total)
            alive()
        return total

    def _pieces(self) -> Iterable[memoryview]:
        if not self._host:
            return pieces(self.values, _PIECE)
        starts = range(0, self.nbytes, _PIECE)
        found = (self.direct(start, min(_PIECE, self.nbytes - start)) for start in starts)
        return (data for data in found if data is not None)


@lru_cache(maxsize=64)
def _array(nbytes: int) -> type[ctypes.Array[ctypes.c_ubyte]]:
    return ctypes.c_ubyte * nbytes


@dataclass(frozen=True, slots=True)
class StorageRef:
    """Stands for a storage inside a pickler: what its persistent id says."""

    type: Any
    key: str
    location: str
    numel: int


@collector_paused()
def pickle_tree(tree: Any, tensors: Iterable[torch.Tensor]) -> tuple[bytes, dict[str, StorageBlob]]:
    """The pickle of `tree`, and key -> blob of every storage in it. `tensors` are all tensors of the tree."""
    pickler = TreePickler(Windows(tensors, parts=True))
    with depth_refused():  # the pickler takes more of the stack than those before it
        pickled = pickler.pickled(tree)
    return pickled, {e.key: StorageBlob(e.storage, e.start, e.end - e.start) for e in pickler.used}
