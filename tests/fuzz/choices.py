"""Where generators take their choices from: a seeded generator of numbers, hypothesis, or the bytes of a guided fuzzer.

All generators are written against `random.Random`; `Choices` is one whose numbers are bytes that another program chose.
"""

from __future__ import annotations

import random
from typing import Any

__all__ = ["Choices", "Files", "packed", "unpacked"]

Files = dict[str, bytes]
"""An input: the files of a folder by name, or one file under the name ""."""


class Choices(random.Random):
    """Numbers out of given bytes, zeros once they are used up: like bytes give like choices."""

    def __init__(self, data: bytes) -> None:
        super().__init__(0)
        self._data, self._at = data, 0

    def getrandbits(self, k: int) -> int:
        nbytes = (k + 7) // 8
        taken = self._data[self._at : self._at + nbytes]
        self._at += nbytes
        return int.from_bytes(taken.ljust(nbytes, b"\0"), "big") >> (8 * nbytes - k)

    def random(self) -> float:
        return self.getrandbits(32) / (1 << 32)

    def seed(self, *_: Any, **__: Any) -> None:
        """The bytes decide alone."""

    def randbytes(self, n: int) -> bytes:
        return self.getrandbits(8 * n).to_bytes(n, "big") if n else b""


def packed(files: Files) -> bytes:
    """An input as one string of bytes."""
    rows = [
        len(raw := name.encode()).to_bytes(1, "big") + raw + len(data).to_bytes(4, "big") + data
        for name, data in files.items()
    ]
    return b"".join(rows)


def unpacked(data: bytes) -> Files:
    """What `packed` was given."""
    files, at = {}, 0
    while at < len(data):
        stop = at + 1 + data[at]
        name, length = data[at + 1 : stop].decode(), int.from_bytes(data[stop : stop + 4], "big")
        at = stop + 4 + length
        files[name] = data[stop + 4 : at]
    return files
