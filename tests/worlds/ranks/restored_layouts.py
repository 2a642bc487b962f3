"""Runs of all layouts restored into some, cell by cell, and what differs from what torch's own calls give.

Returned for each cell, `(source, target)`: the fault of the carrier, or the differences of the restored state, of the
steps after it, and of the random streams; and the largest relative difference of the next two losses from those of the
run that was never interrupted, of any sample of the batch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.worlds.ranks import main


def run(rank: int, world: int, folder: str, saves: str, carrier: str, *names: str) -> Any:
    from tests.worlds.layouts import LAYOUTS

    sources = [name for name in LAYOUTS if Path(saves, name).is_dir()]
    cells = [(source, name) for name in names for source in sources]
    return {cell: _cell(Path(saves, cell[0]), *cell, rank, carrier) for cell in cells}


def _cell(place: Path, source: str, name: str, rank: int, carrier: str) -> dict[str, Any]:
    import torch
    from torch.distributed.checkpoint import CheckpointException

    from tests.runs.training import draws
    from tests.worlds.carriers import CARRIERS
    from tests.worlds.layouts import LAYOUTS, build
    from tests.worlds.whole import differences, fill, gather

    layout, saved = LAYOUTS[name], LAYOUTS[source]
    run = build(layout, rank, seed=7)
    try:
        CARRIERS[carrier].restore(str(place / "run"), run)
        error = ""
    except (Exception, CheckpointException) as caught:  # noqa: BLE001 - whatever the carrier raises is the reason
        error = f"{type(caught).__name__}: {caught}"
    if any(_everyone(error, layout.world)):
        return {"refused": error or "on another rank"}
    drawn = draws()
    whole = torch.load(place / "whole.pt")
    owns = [torch.load(place / f"rank-{r}.pt") for r in range(saved.world)]
    own = owns[rank if rank < saved.world else 0]
    state = [*differences(gather(run), whole), *differences(run.buffers(), own["buffers"])]
    other = build(layout, rank, seed=9)
    fill(other, whole, own["buffers"])
    ours, theirs = (_steps(each) for each in (run, other))
    steps = [*differences(ours, theirs, "losses"), *differences(gather(run), gather(other))]
    steps += differences(run.buffers(), other.buffers())
    rng = _streams(drawn, [o["draws"] for o in owns], rank, layout.world)
    rng += [f"the save moved the streams of rank {r}" for r, o in enumerate(owns) if not o["unmoved"]]
    return {
        "state": state,
        "steps": steps,
        "rng": rng,
        "apart": [_apart(*pair) for pair in zip(ours, owns[0]["next"], strict=False)],
    }


def _steps(run: Any) -> list[list[float]]:
    """The losses of three further steps; after the second each rank normalises by its own batch again."""
    with run.same_statistics():
        first = [run.train(), run.train()]
    return [*first, run.train()]


def _apart(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(one, other, strict=True))


def _streams(drawn: Any, saved: list[Any], rank: int, world: int) -> list[str]:
    """A rank that existed draws the numbers it would have drawn; a new one draws what no other rank does."""
    everyone = _everyone(drawn, world)
    if rank < len(saved):
        return [] if drawn == saved[rank] else [f"rank {rank} draws other numbers than it would have drawn"]
    others = [*saved, *everyone[:rank], *everyone[rank + 1 :]]
    return [
        f"rank {rank} is new and draws the same {kind} numbers as another rank"
        for i, kind in enumerate(("torch", "python", "numpy"))
        if any(drawn[i] == other[i] for other in others)
    ]


def _everyone(value: Any, world: int) -> list[Any]:
    from torch import distributed as dist

    if world == 1:
        return [value]
    found: list[Any] = [None] * world
    dist.all_gather_object(found, value)
    return found


if __name__ == "__main__":
    main(run)
