"""Runs of two ranks, replicated and sharded: signals, broken checkpoints, saves by hand; one script for all of it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from tests.worlds.ranks import main

TOTAL = 9


class Ranked:
    """A small training whose ranks take samples of their own."""

    def __init__(self, rank: int, *, sharded: bool, seed: int = 0) -> None:
        import torch
        from torch import nn
        from torch.distributed.fsdp import fully_shard
        from torch.nn.parallel import DistributedDataParallel

        torch.manual_seed(seed)
        layers = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        self.model = fully_shard(layers) if sharded else DistributedDataParallel(layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.rank = rank
        torch.manual_seed(100 * seed + rank)
        self.taken: list[int] = []

    def step(self, number: int) -> None:
        import torch

        self.optimizer.zero_grad()
        self.model(torch.randn(5, 4) + self.rank).square().mean().backward()
        self.optimizer.step()
        self.taken.append(number)

    def digest(self) -> list[Any]:
        import torch

        tensors = [p.to_local() if hasattr(p, "to_local") else p for p in self.model.parameters()]
        return [*(tensor.detach().clone() for tensor in tensors), torch.rand(2)]


def trained(folder: Path, rank: int, total: int, body: Any = None, *, sharded: bool = False, **policy: Any) -> Any:
    """What became of a run of all ranks: steps, state, events, how it ended."""
    import unmoor

    training = Ranked(rank, sharded=sharded)
    code = None
    with unmoor.Run(
        folder, model=training.model, optimizer=training.optimizer, **{"every": 2, "timeout": 30.0, **policy}
    ) as run:
        start = run.resume()
        try:
            for step in run.steps(start, total):
                training.step(step)
                if body is not None:
                    body(run, step)
        except SystemExit as ended:
            code = ended.code
    kinds = [event.kind for event in run.events]
    return {"taken": training.taken, "state": training.digest(), "kinds": kinds, "code": code, "ended": run.stopped}


def run(rank: int, world: int, scratch: str, folder: str) -> Any:
    from torch import distributed as dist

    import unmoor

    def interrupt(_: Any, step: int) -> None:
        if rank == 1 and step == 3:
            signal.raise_signal(signal.SIGUSR1)

    def by_hand(run: Any, step: int) -> None:
        if step == 4:
            run.save()
        if step == 5:
            run.stop()

    found: dict[str, Any] = {}
    for kind in ("whole", "sharded"):
        sharded, place = kind == "sharded", Path(folder) / kind
        found[kind, "alone"] = trained(place / "a", rank, TOTAL, sharded=sharded, background=False)
        found[kind, "ended"] = trained(place / "b", rank, TOTAL, interrupt, sharded=sharded)
        dist.barrier()
        found[kind, "names"] = sorted(name for name in os.listdir(place / "b") if name.startswith("step"))
        if rank == 0:
            spoil(place / "b", sharded=sharded)
        dist.barrier()
        found[kind, "again"] = trained(place / "b", rank, TOTAL, sharded=sharded, background="skip", every=3)
        found[kind, "over"] = trained(place / "b", rank, TOTAL, sharded=sharded)
        dist.barrier()
        found[kind, "left"] = [(row.name, row.verified) for row in unmoor.runs(place / "b")]
        found[kind, "stopped"] = trained(place / "c", rank, TOTAL, by_hand, sharded=sharded, every=None)
        dist.barrier()
        found[kind, "kept"] = sorted(name for name in os.listdir(place / "c") if name.startswith("step"))
    found["refused"] = refused(Path(folder) / "whole" / "b", rank)
    return found


def refused(folder: Path, rank: int) -> list[str]:
    """What both ranks are told where the run did not resume, and where one rank alone asks for a save."""
    import unmoor

    told = []
    training = Ranked(rank, sharded=False)
    with unmoor.Run(folder, model=training.model, optimizer=training.optimizer, timeout=30.0) as run:
        try:
            run.steps(0, TOTAL)
        except unmoor.UsageError as error:
            told.append(str(error))
    return told


def spoil(folder: Path, *, sharded: bool) -> None:
    """Damage the newest checkpoint."""
    newest = max(path for path in folder.iterdir() if path.name.startswith("step"))
    path = max(newest.glob("*.distcp")) if sharded else newest
    data = bytearray(path.read_bytes())
    for place in range(len(data) // 3, 2 * len(data) // 3):
        data[place] ^= 0x55
    path.write_bytes(bytes(data))


if __name__ == "__main__":
    main(run)
