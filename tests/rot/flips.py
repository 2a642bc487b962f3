"""Every flip of a bit, tried at the real doors: what verify says, what a restore gives, what torch.load gives.

`table` gives the figures of a page; `python -m tests.rot.flips` prints them (all flips take minutes).
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import unmoor
from tests.rot.subjects import SUBJECTS, Live, Subject, content, files_of


@dataclass
class Tally:
    """What became of the flips of one form: at each door the number of each outcome, and the places of some."""

    flips: int = 0
    seconds: float = 0.0
    verify: Counter[str] = field(default_factory=Counter)
    restore: Counter[str] = field(default_factory=Counter)
    torch: Counter[str] = field(default_factory=Counter)
    missed: list[tuple[str, int, int]] = field(default_factory=list)
    silent: list[tuple[str, int, int]] = field(default_factory=list)
    crashed: list[tuple[str, int, int, str]] = field(default_factory=list)
    harmless: list[tuple[str, int, int]] = field(default_factory=list)


def every_bit(path: Path, step: int = 1, first: int = 0) -> Iterator[tuple[Path, int, int]]:
    """File, byte and bit of every flip of a checkpoint, or of each `step`-th."""
    number = 0
    for file in files_of(path):
        for at in range(file.stat().st_size):
            for bit in range(8):
                if number % step == first % step:
                    yield file, at, bit
                number += 1


def random_bits(path: Path, number: int, seed: int = 0) -> Iterator[tuple[Path, int, int]]:
    """Flips anywhere in the files of a checkpoint, each byte as likely as any other."""
    chance = random.Random(seed)
    files = list(files_of(path))
    sizes = [file.stat().st_size for file in files]
    for _ in range(number):
        file = chance.choices(files, sizes)[0]
        yield file, chance.randrange(file.stat().st_size), chance.randrange(8)


def tried(
    subject: Subject, path: Path, flips: Iterable[tuple[Path, int, int]], *, doors: str = "verify restore torch"
) -> Tally:
    """Turn each bit round, knock at the doors, and turn it back."""
    made, live = Tally(), Live(subject)
    whole = live.restore(path)
    loaded = content(torch.load(path)) if path.is_file() and path.suffix == ".pt" else None
    begin = time.perf_counter()
    for file, at, bit in flips:
        place = (file.name, at, bit)
        handle = os.open(file, os.O_RDWR)
        try:
            before = os.pread(handle, 1, at)
            os.pwrite(handle, bytes([before[0] ^ 1 << bit]), at)
            made.flips += 1
            if "verify" in doors:
                found = _door(lambda: unmoor.verify(path), made, place, bad=lambda one: not one.ok)
                made.verify[found] += 1
                if found == "passed":
                    made.missed.append(place)
            if "restore" in doors:
                found = _door(lambda: live.restore(path), made, place, bad=None)
                found = found if found != "passed" else "same" if _last[0] == whole else "SILENT"
                made.restore[found] += 1
                if found in ("SILENT", "same"):
                    (made.silent if found == "SILENT" else made.harmless).append(place)
            if "torch" in doors and loaded is not None:
                made.torch[_torch(path, loaded)] += 1
        finally:
            os.pwrite(handle, before, at)
            os.close(handle)
    made.seconds = time.perf_counter() - begin
    return made


_last: list[Any] = [None]


def _door(call: Callable[[], Any], made: Tally, place: tuple[str, int, int], *, bad: Callable[[Any], bool] | None) -> str:
    try:
        _last[0] = call()
    except unmoor.UnmoorError:
        return "raised"
    except Exception as error:  # noqa: BLE001 - what is no error of ours is what is looked for
        made.crashed.append((*place, repr(error)[:200]))
        return "CRASHED"
    return "found" if bad is not None and bad(_last[0]) else "passed"


def _torch(path: Path, whole: tuple[Any, ...]) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return "same" if content(torch.load(path)) == whole else "SILENT"
        except Exception:  # noqa: BLE001 - whatever torch raises
            return "raised"


def table(step: int = 1, names: Iterable[str] = SUBJECTS) -> dict[str, Tally]:
    """Form -> what became of every flip of it, or of each `step`-th."""
    made = {}
    for name in names:
        with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
            path = SUBJECTS[name].make(Path(folder))
            made[name] = tried(SUBJECTS[name], path, every_bit(path, step))
    return made


def main(step: int, names: Iterable[str]) -> None:
    """Print the table."""
    for name, made in table(step, names).items():
        print(f"{name}: {made.flips:,} flips, {made.flips / made.seconds:.0f}/s")
        print(f"  verify {dict(made.verify)}  restore {dict(made.restore)}  torch.load {dict(made.torch)}")
        for what in ("missed", "silent", "crashed"):
            if getattr(made, what):
                print(f"  {what}: {getattr(made, what)[:40]}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1, sys.argv[2:] or SUBJECTS)
