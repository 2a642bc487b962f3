"""Runs of some layouts, trained and saved by a carrier, and beside each what the matrix holds it against.

`NAME/run` is what the carrier wrote, `whole.pt` the run gathered by torch, `rank-R.pt` what rank R alone has, and the
losses of its next steps where nothing interrupts it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.worlds.ranks import main

STEPS = 3


def run(rank: int, world: int, folder: str, saves: str, carrier: str, *names: str) -> Any:
    import torch

    from tests.runs.training import draws, on_cpu
    from tests.worlds.carriers import CARRIERS
    from tests.worlds.layouts import LAYOUTS, build
    from tests.worlds.whole import gather

    for name in names:
        place = Path(saves, name)
        place.mkdir(parents=True, exist_ok=True)
        run = build(LAYOUTS[name], rank, seed=0)
        for _ in range(STEPS):
            run.train()
        own = {"buffers": on_cpu(run.buffers()), "draws": draws()}
        CARRIERS[carrier].save(str(place / "run"), run)
        own["unmoved"] = own["draws"] == draws()
        whole = gather(run)
        if rank == 0:
            torch.save(whole, place / "whole.pt")
        with run.same_statistics():
            own["next"] = [run.train(), run.train()]
        torch.save(own, place / f"rank-{rank}.pt")


if __name__ == "__main__":
    main(run)
