"""Points tried and survived, for the tests and for benchmarks: every scene at every operation, at random, in the dark.

The long form takes minutes: UNMOOR_CRASH=long, or `python -m tests.crash.figures long`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from tests.faults.zygote import Zygote

from .kills import Sweep, at_every_operation, at_random_times
from .outages import after_outages
from .runs import after_outages as run_outages
from .runs import killed_and_resumed
from .scenes import CARELESS, SCENES

__all__ = ["LONG", "Row", "careless_figures", "figures", "kills", "times"]

LONG = os.environ.get("UNMOOR_CRASH") == "long"
"""Whether tests take the long form."""

BEHIND = "in the background"
SHARDED = "sharded by two ranks"


@dataclass(frozen=True, slots=True)
class Row:
    """What was done to a save: `kind` is "operation", "random" or "power"; how many times, and how often it held.

    `lost` says of each point that did not hold what was found.
    """

    kind: str
    scene: str
    tried: int
    survived: int
    seconds: float
    lost: tuple[str, ...] = ()


def kills(zygote: Zygote, name: str, *, long: bool) -> Iterator[Sweep]:
    """A scene killed at every operation; where there are two processes, the one, the other and both."""
    every = 1 if long else EVERY.get(name, 1)
    for whom in ("self", "main", "all") if name in (BEHIND, SHARDED) else ("self",):
        yield at_every_operation(zygote, SCENES[name], whom=whom, after=long, every=every)


EVERY = {
    BEHIND: 9,
    SHARDED: 24,
    "converted to a folder": 3,
    "converted to a first folder": 4,
    "a folder put aside for another": 3,
    "converted to shards of safetensors": 3,
}
"""How many points of a scene there are for one that the short form tries."""


def figures(*, long: bool = LONG) -> Iterator[Row]:
    """All of it, in a zygote of its own, row by row."""
    with Zygote("tests.crash.scenes", "tests.crash.runs") as zygote:
        for name, scene in SCENES.items():
            yield from (_row("operation", name, sweep) for sweep in kills(zygote, name, long=long))
            yield _row("random", name, at_random_times(zygote, scene, times(long=long)))
            yield _row("power", name, after_outages(zygote, scene, seeds=40 if long else 3))
        for way in ("at once", "behind"):
            name = f"unmoor.Run, {way}"
            yield _row("operation", name, killed_and_resumed(zygote, way, every=1 if long else 9))
            yield _row("power", name, run_outages(zygote, way, seeds=20 if long else 1, every=1 if long else 4))


def careless_figures() -> Iterator[Row]:
    """The same for what scripts do: torch.save, and torch.save under another name that is renamed."""
    with Zygote("tests.crash.scenes") as zygote:
        for name, scene in CARELESS.items():
            yield _row("operation", name, at_every_operation(zygote, scene))
            yield _row("power", name, after_outages(zygote, scene, seeds=3, saves=0))


def times(*, long: bool) -> int:
    """How often each scene is killed at a random time."""
    return -(-(500 if long else 30) // len(SCENES))


def _row(kind: str, name: str, sweep: Sweep) -> Row:
    return Row(kind, name, sweep.tried, sweep.survived, sweep.seconds, tuple(sweep.lost))


if __name__ == "__main__":
    for row in figures(long="long" in sys.argv[1:]):
        print(f"{row.kind:10} {row.scene:40} {row.survived:6} of {row.tried:6} in {row.seconds:.1f} s", flush=True)
        print(*row.lost[:5], sep="\n", end="\n" if row.lost else "")
