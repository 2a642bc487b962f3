"""Ends a process that saves at every operation that it makes, and at random times, and looks at what is left."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from tests.faults.zygote import Run, Zygote

from .scenes import NEW, NEXT, OLD, Scene
from .states import Broken

__all__ = ["Sweep", "at_every_operation", "at_random_times", "copied", "lay", "place", "survives"]

@dataclass
class Sweep:
    """What was tried of a scene, and what did not survive it: the points, each with what was found."""

    name: str
    tried: int = 0
    operations: int = 0
    lost: list[str] = field(default_factory=list)
    seconds: float = 0.0
    seen: set[str] = field(default_factory=set)

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
    zygote: Zygote, scene: Scene, *, when: Sequence[str] = ("before",), whom: str = "self", every: int = 1
) -> Sweep:
    """Kill a scene at each of its operations on files, or at every so-manieth; `when` and `whom` as in the shim."""
    sweep, begin = Sweep(f"{scene.name} ({whom} {', '.join(when)})"), time.monotonic()
    with place() as folder:
        template = lay(zygote, scene, folder)
        for at in count(1):
            moments = [moment for turn, moment in enumerate(when) if (at * len(when) + turn) % every == 0]
            struck = [_killed(sweep, zygote, scene, template, at, moment, whom) for moment in moments]
            if moments and not any(struck):
                break
            sweep.operations = at
    sweep.seconds = time.monotonic() - begin
    return sweep


def _killed(sweep: Sweep, zygote: Zygote, scene: Scene, template: Path, at: int, moment: str, whom: str) -> bool:
    point = copied(template)
    run = zygote.run(scene.call, point, str(point / scene.target), NEW, kill_at=at, when=moment, whom=whom)
    if run.killed:
        _judge(sweep, zygote, scene, point, f"{moment} operation {at}")
    return run.killed


def at_random_times(zygote: Zygote, scene: Scene, times: int, *, seed: int = 0) -> Sweep:
    """Kill a scene that often at some moment of its time, or shortly after."""
    sweep, begin = Sweep(f"{scene.name} (at random times)"), time.monotonic()
    dice = random.Random(seed)
    with place() as folder:
        template = lay(zygote, scene, folder)
        seconds = _seconds(zygote, scene, copied(template))
        while sweep.tried < times:
            point, moment = copied(template), dice.uniform(0, 1.2) * seconds
            zygote.run(scene.call, point, str(point / scene.target), NEW, kill_after=moment)
            _judge(sweep, zygote, scene, point, f"after {1000 * moment:.1f} ms")
    sweep.seconds = time.monotonic() - begin
    return sweep


def survives(zygote: Zygote, scene: Scene, folder: Path) -> str:
    """What is wrong with a folder after a crash; "" if it holds the old or the new generation and the next save works.

    That save leaves nothing in the folder but its target.
    """
    target = str(folder / scene.target)
    try:
        found = scene.read(target)
    except Broken as error:
        return f"it is broken: {error}"
    if found not in (scene.old, scene.said(NEW)):
        return f"it holds {found}"
    done: Run = zygote.run(scene.call, folder, target, NEXT)
    if done.error or done.code:
        return f"the next save fails: {done.error or done.code}"
    try:
        again = scene.read(target)
    except Broken as error:
        return f"the next save is broken: {error}"
    if again != scene.said(NEXT):
        return f"the next save left {again}"
    junk = sorted(set(os.listdir(folder)) - {scene.target})
    return f"the next save left junk: {junk}" if junk else ""


def _judge(sweep: Sweep, zygote: Zygote, scene: Scene, folder: Path, where: str) -> None:
    sweep.tried += 1
    fault = survives(zygote, scene, folder)
    if fault:
        sweep.lost.append(f"{where}: {fault}")


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


def _seconds(zygote: Zygote, scene: Scene, point: Path) -> float:
    begin = time.monotonic()
    zygote.run(scene.call, point, str(point / scene.target), NEW)
    return time.monotonic() - begin
