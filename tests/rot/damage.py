"""What disks and copies do to a file, done in place and undone again."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.rot.subjects import files_of

SECTOR: Final = 512
BLOCK: Final = 4096


@dataclass(frozen=True)
class Damage:
    """Other bytes at some places of a file, or another length. `kind` and `at` say what and where."""

    kind: str
    file: Path
    at: int
    bit: int = 0
    other: int = 0

    def __str__(self) -> str:
        return f"{self.kind} of {self.file.name} at byte {self.at:,}" + (f", bit {self.bit}" * (self.kind == "flip"))

    def done(self, handle: int) -> list[tuple[int, bytes]]:
        """Do it; what stood there before, to be written back."""
        size = os.fstat(handle).st_size
        if self.kind == "cut":
            before = [(self.at, os.pread(handle, size - self.at, self.at))]
            os.ftruncate(handle, self.at)
        elif self.kind == "tail twice":
            before = []
            os.pwrite(handle, os.pread(handle, size - self.at, self.at), size)
        elif self.kind == "swapped blocks":
            before = [(place, os.pread(handle, BLOCK, place)) for place in (self.at, self.other)]
            os.pwrite(handle, before[1][1], self.at)
            os.pwrite(handle, before[0][1], self.other)
        else:
            length = 1 if self.kind == "flip" else SECTOR
            before = [(self.at, os.pread(handle, length, self.at))]
            old = before[0][1]
            os.pwrite(handle, bytes([old[0] ^ 1 << self.bit]) if self.kind == "flip" else bytes(len(old)), self.at)
        return before


class Harm:
    """A file that is damaged within the block, and as before after it. `changed` tells whether any byte differs."""

    def __init__(self, damage: Damage) -> None:
        self._damage = damage

    def __enter__(self) -> bool:
        self._handle = os.open(self._damage.file, os.O_RDWR)
        self._size = os.fstat(self._handle).st_size
        self._before = self._damage.done(self._handle)
        if os.fstat(self._handle).st_size != self._size:
            return True
        return any(os.pread(self._handle, len(old), at) != old for at, old in self._before)

    def __exit__(self, *_: object) -> None:
        os.ftruncate(self._handle, self._size)
        for at, old in self._before:
            os.pwrite(self._handle, old, at)
        os.close(self._handle)


def every_flip(path: Path, step: int = 1) -> Iterator[Damage]:
    """Every flip of one bit of a checkpoint, or each `step`-th of them."""
    number = 0
    for file in files_of(path):
        for place in range(-number % step, 8 * file.stat().st_size, step):
            yield Damage("flip", file, place // 8, place % 8)
        number += 8 * file.stat().st_size


def random_flips(path: Path, number: int, seed: int = 0) -> Iterator[Damage]:
    """Flips anywhere, each bit as likely as any other."""
    chance = random.Random(seed)
    files = list(files_of(path))
    sizes = [file.stat().st_size for file in files]
    for _ in range(number):
        file = chance.choices(files, sizes)[0]
        yield Damage("flip", file, chance.randrange(file.stat().st_size), chance.randrange(8))


def random_harm(path: Path, number: int, seed: int = 0) -> Iterator[Damage]:
    """Zeroed sectors, swapped blocks, files cut short and tails that stand there twice, anywhere."""
    chance = random.Random(seed)
    files = list(files_of(path))
    for turn in range(number):
        file = chance.choice(files)
        size = file.stat().st_size
        kind = ("zeroed sector", "swapped blocks", "cut", "tail twice")[turn % 4]
        if kind == "zeroed sector":
            yield Damage(kind, file, chance.randrange(-(-size // SECTOR)) * SECTOR)
        elif kind == "swapped blocks" and size >= 2 * BLOCK:
            one, other = chance.sample(range(size // BLOCK), 2)
            yield Damage(kind, file, one * BLOCK, other=other * BLOCK)
        else:
            yield Damage("cut" if kind == "cut" else "tail twice", file, chance.randrange(1, size))
