"""The slow ways: what every reader does where nothing is taken in one step, read ahead, kept or put off.

A reader is right only where its fast and its slow way say the same of every file.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from unmoor import filing
from unmoor.describe import items, reading, torch_legacy, torch_zip, zip_bytes, zips
from unmoor.execute import audit, comparing

__all__ = ["WAYS", "slowly"]


class OneByOne:
    """Local headers read each for itself."""

    def __init__(self, reader: Any) -> None:
        self.reader, self.window, self.start, self.stop = reader, bytearray(), 0, 0

    def read(self, header: int, length: int) -> None:
        self.window = bytearray(filing.read(self.reader, header, length))
        self.start, self.stop = header, header + length


class Halting(filing.SeekReader):
    """Reads by seeking that come back short."""

    def some_into(self, offset: int, target: memoryview) -> int:
        return super().some_into(offset, target[: 1 + offset % 4093])


def _small_windows(function: Any) -> Any:
    def read(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **{**kwargs, "window": 37})

    return read


WAYS: dict[str, list[tuple[Any, str, Any]]] = {
    "no phrases": [(reading, "Phrases", lambda *_: None)],
    "header by header": [(zips, "Headers", OneByOne), (zip_bytes, "Headers", OneByOne)],
    "seeking, in short reads": [(filing, "VectorReader", Halting)],
    "no item known": [(items.Items, "_find", lambda *_: None)],
    "manifest at once": [(torch_zip, "parsed", json.loads)],
    "small windows": [(torch_legacy, "read_pickle_at", _small_windows(reading.read_pickle_at))],
    "zlib": [(audit, "crc32", zlib.crc32)],
    "small pieces": [
        (audit, "PIECE", 1 << 12),
        (audit, "CHUNK", 97),
        (audit, "SMALL", 1),
        (comparing, "FLAT", 64),
        (comparing, "STRETCH", 64),
        (comparing, "SMALL", 0),
    ],
}
"""Each slow way by name: modules or classes, what of them is replaced, and by what."""


@contextmanager
def slowly(ways: list[str] | None = None) -> Iterator[None]:
    """Within, readers take the slow ways, all or those named."""
    before = []
    for name in WAYS if ways is None else ways:
        for owner, attribute, way in WAYS[name]:
            before.append((owner, attribute, getattr(owner, attribute)))
            setattr(owner, attribute, way)
    try:
        yield
    finally:
        for owner, attribute, way in reversed(before):
            setattr(owner, attribute, way)
