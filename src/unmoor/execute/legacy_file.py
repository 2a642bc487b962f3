"""torch.save's stream of before torch 1.6: five pickles, then each storage's number of elements and its data.

Layout after `_legacy_save` of torch/serialization.py (2.13), as `describe.torch_legacy` reads it. Readers of any torch
take it. It holds no checksum and no record beside the data. Decides nothing about what is saved.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

from .sinks import Blob

__all__ = ["StoredData", "legacy_head", "legacy_parts"]

_MAGIC: Final = 0x1950A86A20F9469CFC6C
_PROTOCOL: Final = 1001
_SYSTEM: Final = {
    "protocol_version": _PROTOCOL,
    "little_endian": sys.byteorder == "little",
    "type_sizes": {"short": 2, "int": 4, "long": 4},
}
_COUNT: Final = 8


class StoredData(NamedTuple):
    """One storage: its key in the pickle, its number of elements, its bytes, and where they come from."""

    key: str
    numel: int
    nbytes: int
    blob: Blob


def legacy_head(tree: bytes, storages: Sequence[StoredData]) -> bytes:
    """All that comes before the data: the pickles, of which `tree` is the object's own."""
    facts = (_MAGIC, _PROTOCOL, _SYSTEM)
    keys = [storage.key for storage in storages]
    return b"".join([*(pickle.dumps(fact, protocol=2) for fact in facts), tree, pickle.dumps(keys, protocol=2)])


def legacy_parts(storages: Sequence[StoredData]) -> list[tuple[int, Blob]]:
    """What follows the head: a number of elements and data, storage by storage; each with its bytes."""
    parts: list[tuple[int, Blob]] = []
    for storage in storages:
        parts += [(_COUNT, _Count(storage.numel)), (storage.nbytes, storage.blob)]
    return parts


class _Count:
    """A number of elements as the stream has it."""

    def __init__(self, numel: int) -> None:
        self._data = memoryview(numel.to_bytes(_COUNT, "little"))

    def direct(self, offset: int, nbytes: int) -> memoryview | None:
        """Its bytes."""
        return self._data[offset : offset + nbytes]

    def fetch(self, offset: int, target: memoryview) -> None:
        """Copy its bytes from `offset` on."""
        target[:] = self._data[offset : offset + len(target)]
