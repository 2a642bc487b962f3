"""The tables of the speed suite: what is measured, with which ways, and their figures as plain JSON.

Ways take turns (A B C ... A B C ...), each in a fresh process: one that is forked from a server that has imported torch
and done nothing else. What does not fit in memory, fails or takes too long is left out by name, with the reason.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from .speed_child import RESTORES, SAVES, once

__all__ = ["ONCE", "Point", "Table", "child", "fitting", "measure", "slow"]

Report = Callable[[str], None]

FILES: Final = {way: restore.file for way, restore in RESTORES.items()}
ONCE: Final = 15.0
"""What takes longer, in seconds of its whole process, is done once: its spread is small beside what it takes."""
_BEHIND: Final = 3.5
"""Copies that a save in the background may keep beside the run and its file."""
_KEPT_FREE: Final = 1 << 30
_POLL: Final = 0.004


@dataclass(frozen=True)
class Point:
    """One size of run: bytes with optimizer state, and tensors in its file as `speed_runs.Shape` has it."""

    nbytes: int
    tensors: int = 0


@dataclass(frozen=True)
class Table:
    """`what` is done by every way once a round for every point. `traced` keeps memory over time."""

    what: str
    where: str
    points: tuple[Point, ...]
    ways: tuple[str, ...]
    rounds: int
    cold: bool = False
    fsync: bool = False
    traced: bool = False

    def settings(self) -> dict[str, Any]:
        """What has to be the same for figures to be kept."""
        return {**asdict(self), "points": [asdict(point) for point in self.points], "ways": list(self.ways)}


def measure(table: Table, folder: Path, limit: float, report: Report) -> dict[str, Any]:
    """All figures of a table: {"settings", "points": [{"nbytes", "tensors", "ways", "left_out"}]}."""
    points: list[dict[str, Any]] = []
    for point in table.points:
        before = points[-1] if points else None
        points.append(_point(table, point, before, folder, limit, report))
    return {"settings": table.settings(), "points": points}


def _point(
    table: Table, point: Point, before: dict[str, Any] | None, parent: Path, limit: float, report: Report
) -> dict[str, Any]:
    ways, left_out = fitting(table, point)
    left_out |= slow(point, before, limit)
    figures: dict[str, list[dict[str, Any]]] = {way: [] for way in ways if way not in left_out}
    with tempfile.TemporaryDirectory(dir=parent) as name:
        folder = Path(name)
        (folder / "tiny").mkdir()
        asked = {"folder": name, "tiny": True, "cold": table.cold, "fsync": table.fsync, **asdict(point)}
        if table.what == "restore":
            for file in dict.fromkeys(FILES[way] for way in figures):
                _write(file, figures, left_out, asked, limit, report)
        for turn in range(table.rounds):
            for way in [way for way, rows in figures.items() if not rows or rows[-1]["took"] < ONCE]:
                report(f"{table.what} {_told(point)}, round {turn + 1} of {table.rounds}: {way}")
                found = child({**asked, "what": table.what, "way": way}, limit, traced=table.traced)
                if "failed" not in found:
                    figures[way].append(found)
                    continue
                left_out[way] = found["failed"]
                del figures[way]
                if table.what != "restore":
                    _cleared(folder)
    return {**asdict(point), "ways": figures, "left_out": left_out}


def _told(point: Point) -> str:
    return f"{point.tensors:,} tensors" if point.tensors > 0 else f"{point.nbytes / 1e6:,.0f} MB"


def slow(point: Point, before: dict[str, Any] | None, limit: float) -> dict[str, str]:
    """Ways that would take too long by what the smaller point before took, and the reason."""
    if before is None:
        return {}
    growth = max(point.nbytes / before["nbytes"], point.tensors / before["tensors"])
    found = {way: max(row["seconds"] for row in rows) for way, rows in before["ways"].items() if rows}
    return {way: f"would take more than {limit:.0f} s" for way, took in found.items() if took * growth > limit}


def _cleared(folder: Path) -> None:
    """Remove what a way that was stopped has left."""
    shutil.rmtree(folder)
    (folder / "tiny").mkdir(parents=True)


def _write(
    file: str, figures: dict[str, Any], left_out: dict[str, str], asked: dict[str, Any], limit: float, report: Report
) -> None:
    """Write what some ways read; where that fails they are left out."""
    report(f"writing with {file}")
    found = child({**asked, "what": "write", "way": file}, limit)
    if "failed" in found:
        for way in [way for way in figures if FILES[way] == file]:
            left_out[way] = found["failed"]
            del figures[way]


def fitting(table: Table, point: Point, free: int | None = None) -> tuple[list[str], dict[str, str]]:
    """The ways that memory is enough for, in their order, with the files that they read where those are in memory."""
    available = (_available() if free is None else free) - _KEPT_FREE
    files: set[str] = set()
    ways, left_out = [], {}
    for way in table.ways:
        beside = {"restore": RESTORES, "save": SAVES}[table.what][way].beside if table.what != "behind" else _BEHIND
        own = {FILES[way]} if table.what == "restore" else set()
        on_disk = len(files | own) + (table.what != "restore")
        need = point.nbytes * (1 + beside + (on_disk if table.where == "memory" else 0))
        if need > available:
            left_out[way] = f"does not fit: it needs {need / 1e9:.0f} GB of memory, and {available / 1e9:.0f} are free"
            continue
        files |= own
        ways.append(way)
    return ways, left_out


def _available() -> int:
    rows = Path("/proc/meminfo").read_text().splitlines()
    return next(int(row.split()[1]) * 1024 for row in rows if row.startswith("MemAvailable"))


def child(asked: dict[str, Any], limit: float, *, traced: bool = False) -> dict[str, Any]:
    """The figures of one way, done once in a fresh process that is stopped after `limit` seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.speed_child"])
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_done, args=(asked, theirs))
    begin = time.monotonic()
    process.start()
    theirs.close()
    try:
        samples = list(_samples(process.pid, ours, limit, traced=traced))
        if not ours.poll():
            return {"failed": f"took more than {limit:.0f} s"}
        found = ours.recv()
    except EOFError:
        return {"failed": "the process ended without figures"}
    finally:
        with _ended(process):
            ours.close()
    found["took"] = time.monotonic() - begin
    trace = found.pop("trace", None)
    if traced and trace:
        found["trace"] = _relative(samples, **trace)
    return found


def _done(asked: dict[str, Any], connection: Any) -> None:
    """In the child: some ways and their processes say much."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    connection.send(once(asked))
    connection.close()


def _samples(pid: int, connection: Any, limit: float, *, traced: bool) -> Iterator[tuple[float, int]]:
    """When, and the resident bytes of a process, until it says something or the time is over."""
    end = time.monotonic() + limit
    if not traced:
        connection.poll(limit)
        return
    with Path(f"/proc/{pid}/statm").open() as file:
        while time.monotonic() < end and not connection.poll(_POLL):
            file.seek(0)
            yield time.monotonic(), int(file.read().split()[1]) * 4096


def _relative(samples: Sequence[tuple[float, int]], begin: float, end: float, live: int) -> list[list[float]]:
    """Seconds since the begin, and MiB above the memory of the complete live run (below it while that fills)."""
    inside = [(when - begin, (size - live) / 2**20) for when, size in samples if begin - 0.05 <= when <= end + 0.05]
    every = max(1, len(inside) // 150)
    return [[round(when, 3), round(size, 1)] for when, size in inside[::every]]


@contextmanager
def _ended(process: Any) -> Iterator[None]:
    yield
    process.join(10)
    if process.is_alive():
        process.kill()
        process.join()
