"""Ends a process that saves at every operation that it makes, and at random times, and looks at what is left."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.zygote import Run, Zygote

from .scenes import NEW, NEXT, OLD, Scene
from .states import Seen

__all__ = ["Sweep", "at_every_operation", "at_random_times", "copied", "lay", "place", "survives"]


@dataclass
class Sweep:
    """What was tried of a scene, and what did not survive it: the points, each with what was found."""

    name: str
    tried: int = 0
    operations: int = 0
    lost: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def survived(self) -> int:
        return self.tried - len(self.lost)

    def __str__(self) -> str:
        rate = self.tried / self.seconds if self.seconds else 0.0
        first = f"; first: {self.lost[0]}" if self.lost else ""
        return f"{self.name}: {self.survived} of {self.tried} survived, {rate:.0f} a second{first}"


@contextmanager
def place() -> Iterator[Path]:
    """A folder in memory where there is one: a process that is killed loses nothing that it wrote anywhere."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="crash-", dir=memory) as folder:
        yield Path(folder)


def at_every_operation(
    zygote: Zygote, scene: Scene, *, whom: str = "self", after: bool = False, every: int = 1
) -> Sweep:
    """Kill a scene before each of its operations on files and in the midst of each write, or at every so-manieth point.

    `whom` as in the shim. With `after` also after each operation, which leaves what is there before the next.
    """
    with _bench(zygote, scene, whom) as bench:
        log = bench.run(log=True, log_data=False).log
        points = [point for at, operation in enumerate(log, 1) for point in _points(at, operation.kind, after)]
        bench.sweep.operations = len(log)
        for at, when in points[(every - 1) // 2 :: every]:
            if bench.run(kill_at=at, when=when, whom=whom).killed:
                bench.judge(f"{when} operation {at}")
    return bench.sweep


def _points(at: int, kind: str, after: bool) -> Iterator[tuple[int, str]]:
    yield at, "before"
    if kind == "write":
        yield at, "half"
    if after:
        yield at, "after"


def at_random_times(zygote: Zygote, scene: Scene, times: int, *, seed: int = 0) -> Sweep:
    """Kill a scene that often at some moment of its time, or shortly after."""
    dice = random.Random(seed)
    with _bench(zygote, scene, "at random times") as bench:
        begin = time.monotonic()
        bench.run()
        seconds = time.monotonic() - begin
        while bench.sweep.tried < times:
            moment = dice.uniform(0, 1.2) * seconds
            bench.run(kill_after=moment)
            bench.judge(f"after {1000 * moment:.1f} ms")
    return bench.sweep


def survives(zygote: Zygote, scene: Scene, folder: Path, seen: Seen) -> str:
    """What is wrong with a folder after a crash; "" if it holds the old or the new generation and the next save works.

    That save leaves nothing in the folder but its target.
    """
    target = str(folder / scene.target)
    scene.resume(str(folder))
    found = seen(target)
    if found not in (scene.old, scene.said(NEW)):
        return f"it is {found}"
    done: Run = zygote.run(scene.call, folder, target, NEXT)
    if done.error or done.code:
        return f"the next save fails: {done.error or done.code}"
    again = seen(target)
    if again != scene.said(NEXT):
        return f"the next save left {again}"
    junk = sorted(set(os.listdir(folder)) - {scene.target})
    return f"the next save left junk: {junk}" if junk else ""


@dataclass
class _Bench:
    """Where a scene is tried: `template` is the folder before it."""

    zygote: Zygote
    scene: Scene
    template: Path
    sweep: Sweep
    seen: Seen

    def run(self, **faults: Any) -> Run:
        """The scene, on a fresh copy of the folder."""
        point = copied(self.template)
        return self.zygote.run(self.scene.call, point, str(point / self.scene.target), NEW, **faults)

    def judge(self, where: str) -> None:
        self.sweep.tried += 1
        fault = survives(self.zygote, self.scene, self.template.with_name("point"), self.seen)
        if fault:
            self.sweep.lost.append(f"{where}: {fault}")


@contextmanager
def _bench(zygote: Zygote, scene: Scene, what: str) -> Iterator[_Bench]:
    begin = time.monotonic()
    with place() as folder:
        bench = _Bench(zygote, scene, lay(zygote, scene, folder), Sweep(f"{scene.name} ({what})"), Seen(scene.read))
        yield bench
    bench.sweep.seconds = time.monotonic() - begin


def lay(zygote: Zygote, scene: Scene, folder: Path) -> Path:
    template = folder / "template"
    template.mkdir()
    if not scene.first:
        lay = f"{scene.make.__module__}:{scene.make.__name__}"
        done = zygote.run(lay, template, str(template / scene.target), OLD)
        if done.error or done.code or scene.read(str(template / scene.target)) != scene.old:
            raise RuntimeError(f"{scene.name} cannot begin: {done.error}")
    return template


def copied(template: Path) -> Path:
    point = template.with_name("point")
    shutil.rmtree(point, ignore_errors=True)
    shutil.copytree(template, point, symlinks=True)
    return point
