"""One way, once, as a process of its own does it.

What is asked: {"what", "way", "folder", "nbytes", "tensors", "tiny", "cold", "fsync"}. The same is done with a tiny run
first, so that what is imported or started on first use is there for everyone.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import itertools
import logging
import mmap
import os
import shutil
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from . import common, speed_others, speed_ways
from .speed_runs import Run, Shape, equal, filled, fresh
from .speed_ways import Behind, Restore, Save

__all__ = ["BEHIND", "RESTORES", "SAVES", "folder_of", "once"]


def _ordered(ours: dict[str, Any], others: dict[str, Any], last: int) -> dict[str, Any]:
    """The other environment's ways before the last ones, which everything is held against."""
    rows = list(ours.items())
    return dict([*rows[:-last], *others.items(), *rows[-last:]])


SAVES: Final[dict[str, Save]] = _ordered(speed_ways.SAVES, speed_others.SAVES, 1)
RESTORES: Final[dict[str, Restore]] = _ordered(speed_ways.RESTORES, speed_others.RESTORES, 2)
BEHIND: Final[dict[str, Behind]] = _ordered(speed_ways.BEHIND, speed_others.BEHIND, 2)

_SAVES_BEHIND: Final = 3
_IDLE_STEPS: Final = 10
_PART: Final = 16


def folder_of(folder: Path, way: str) -> Path:
    """Where one way keeps what it writes."""
    return folder / "".join(c if c.isalnum() else "_" for c in way)


def restore(way: str, folder: Path, shape: Shape, asked: dict[str, Any]) -> dict[str, Any]:
    """Seconds until every restored tensor was written in place once, and the peak beside the complete live state."""
    chosen = RESTORES[way]
    path = folder_of(folder, chosen.file)
    run = fresh(shape)
    call = chosen.prepare(path, run)
    resident = _drop(path) if asked["cold"] else None
    common.reset_peak()
    live = common.memory() + 2 * sum(p.numel() * p.itemsize for p in run[0].parameters())
    begin, clock = time.monotonic(), common.Clock()
    run = _run_of(call(), run)
    common.touch(common.state_tensors(*run))
    seconds = clock()
    figures = {"seconds": seconds, "extra": max(0, common.peak_memory() - live) / 2**20}
    trace = {"begin": begin, "end": begin + seconds, "live": live}
    return {**figures, "trace": trace} | ({} if resident is None else {"resident": resident})


def _run_of(returned: Any, run: Run) -> Run:
    replaced = isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[0], nn.Module)
    return returned if replaced else run


def save(way: str, folder: Path, shape: Shape, asked: dict[str, Any]) -> dict[str, Any]:
    """Seconds until the call is back, and with `fsync` until what it wrote is on the disk."""
    run = filled(shape)
    with _scratch(folder, way) as path:
        call = SAVES[way].prepare(path, run)
        common.reset_peak()
        live, clock = common.memory(), common.Clock()
        call()
        if asked["fsync"]:
            _synced(path)
        seconds = clock()
        extra = max(0, common.peak_memory() - live) / 2**20
        return {"seconds": seconds, "extra": extra, "bytes": sum(f.stat().st_size for f in _files(path))}


def behind(way: str, folder: Path, shape: Shape, _asked: dict[str, Any]) -> dict[str, Any]:
    """How long training stands still for a save, the first and later ones, and how it goes while that is written."""
    run = filled(shape)
    with _scratch(folder, way) as path:
        call = BEHIND[way].prepare(path, run)
        step = _training(run)
        common.reset_peak()
        live = common.memory()
        idle = statistics.median(_timed(step) for _ in range(_IDLE_STEPS))
        held, done, busy = [], [], []
        for number in range(_SAVES_BEHIND):
            target = path / str(number)
            target.mkdir()
            clock = common.Clock()
            wait = call(target)
            held.append(clock())
            busy += _until_written(wait, step)
            done.append(clock())
            shutil.rmtree(target)
    return {
        "first": held[0],
        "seconds": statistics.median(held[1:]),
        "done": statistics.median(done[1:]),
        "slower": statistics.median(busy) / idle - 1 if len(busy) >= _SAVES_BEHIND else None,
        "extra": max(0, common.peak_memory() - live) / 2**20,
    }


def _training(run: Run) -> Callable[[], None]:
    """A step of training as a save meets it: a small model's, on one thread, and a part of the state changed."""
    torch.set_num_threads(1)
    small = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
    optimizer, batch = torch.optim.AdamW(small.parameters()), torch.randn(64, 256)
    tensors = common.state_tensors(*run)
    parts = itertools.cycle([tensors[start::_PART] for start in range(min(_PART, len(tensors)))])

    def step() -> None:
        small(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for tensor in next(parts):
                tensor.add_(1e-3)

    return step


def _until_written(wait: Callable[[], Any], step: Callable[[], None]) -> list[float]:
    """The times of the steps that were done while the save was being written."""
    raised: list[BaseException] = []

    def waiting() -> None:
        try:
            wait()
        except BaseException as error:  # noqa: BLE001 (raised below, where it is seen)
            raised.append(error)

    thread, times = threading.Thread(target=waiting), []
    thread.start()
    while thread.is_alive():
        times.append(_timed(step))
    thread.join()
    if raised:
        raise raised[0]
    return times[:-1]  # the last one outlived the save


def _timed(call: Callable[[], Any]) -> float:
    clock = common.Clock()
    call()
    return clock()


@contextlib.contextmanager
def _scratch(folder: Path, way: str) -> Iterator[Path]:
    path = folder_of(folder, way)
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path)


def _files(path: Path) -> Iterator[Path]:
    return (file for file in path.rglob("*") if file.is_file())


def _synced(path: Path) -> None:
    for item in (path, *path.rglob("*")):
        descriptor = os.open(item, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def _drop(path: Path) -> float:
    """Drop the files of a folder from the page cache; the share that stays in it."""
    for file in _files(path):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    pages = [_resident(file) for file in _files(path)]
    return sum(held for held, _ in pages) / max(1, sum(every for _, every in pages))


def _resident(file: Path) -> tuple[int, int]:
    """How many pages of a file are in memory, of how many."""
    size = file.stat().st_size
    if not size:
        return 0, 0
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), size, mmap.MAP_PRIVATE) as mapped:
        flags = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        begin = ctypes.c_char.from_buffer(mapped)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mincore(ctypes.c_void_p(ctypes.addressof(begin)), ctypes.c_size_t(size), flags)
        del begin
        return sum(flag & 1 for flag in flags), len(flags)


def write(way: str, folder: Path, shape: Shape, _asked: dict[str, Any]) -> dict[str, Any]:
    """The file that ways of restoring read; it stays."""
    path = folder_of(folder, way)
    path.mkdir(parents=True)
    SAVES[way].prepare(path, filled(shape))()
    return {"bytes": sum(file.stat().st_size for file in _files(path))}


def proved(way: str, folder: Path, shape: Shape, _asked: dict[str, Any]) -> dict[str, Any]:
    """Whether a way of restoring gives the very run that was saved."""
    saved, live = filled(shape, seed=3), fresh(shape)
    path = folder_of(folder, way)
    path.mkdir()
    SAVES[RESTORES[way].file].prepare(path, saved)()
    return {"equal": equal(saved, _run_of(RESTORES[way].prepare(path, live)(), live))}


def proved_behind(way: str, folder: Path, shape: Shape, _asked: dict[str, Any]) -> dict[str, Any]:
    """Whether a save in the background holds the run as it was, though it is changed as soon as that is allowed."""
    run, before, live = filled(shape, seed=3), filled(shape, seed=3), fresh(shape)
    path = folder_of(folder, way)
    (path / "0").mkdir(parents=True)
    wait = BEHIND[way].prepare(path, run)(path / "0")
    with torch.no_grad():
        for tensor in common.state_tensors(*run):
            tensor.add_(1)
    wait()
    read = RESTORES[BEHIND[way].read].prepare(path if BEHIND[way].keeps_all else path / "0", live)
    read()
    return {"equal": equal(before, live), "changed": not equal(run, live)}


WHATS: Final = {
    "restore": restore,
    "save": save,
    "behind": behind,
    "write": write,
    "proved": proved,
    "proved behind": proved_behind,
}


def once(asked: dict[str, Any]) -> dict[str, Any]:
    """Do what is asked, quietly; its figures, or {"failed": why}."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(2)
    folder, what = Path(asked["folder"]), WHATS[asked["what"]]
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            if asked["tiny"]:
                what(asked["way"], folder / "tiny", Shape(1 << 16, 8), {**asked, "cold": False})
            return what(asked["way"], folder, Shape(asked["nbytes"], asked["tensors"]), asked)
        except Exception as error:  # noqa: BLE001 (a way that fails is told in the table)
            return {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
