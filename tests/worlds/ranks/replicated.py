"""Data parallel ranks that save together and go on, each with what it has for itself: one script for all worlds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.worlds.ranks import main


class Tally:
    """A metric of this rank alone: a sum and a count."""

    def __init__(self) -> None:
        self.total, self.seen = 0.0, 0

    def add(self, value: float) -> None:
        self.total, self.seen = self.total + value, self.seen + 1

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total, "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total, self.seen = state["total"], state["seen"]


def build(seed: int) -> dict[str, Any]:
    """A model with BatchNorm and dropout in DistributedDataParallel, and all that trains it."""
    import torch
    from torch import distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(seed)
    layers = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.25), nn.Linear(6, 3))
    many = dist.is_initialized() and dist.get_world_size() > 1
    model = DistributedDataParallel(layers) if many else layers
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01 * seed)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "scaler": torch.amp.GradScaler("cpu", init_scale=8.0 * seed, growth_interval=2),
        "metrics": Tally(),
    }


def train(run: dict[str, Any], rank: int) -> float:
    """One step on this rank's own samples, drawn from its random streams."""
    import torch

    batch = torch.randn(5, 4) + rank
    loss = run["model"](batch).pow(2).mean()
    run["optimizer"].zero_grad()
    run["scaler"].scale(loss).backward()
    run["scaler"].step(run["optimizer"])
    run["scaler"].update()
    run["scheduler"].step()
    run["metrics"].add(loss.item())
    return loss.item()


def own(run: dict[str, Any]) -> dict[str, Any]:
    """What a rank holds, as plain values."""
    from tests.runs.training import draws, on_cpu

    model = getattr(run["model"], "module", run["model"])
    return {
        "parameters": on_cpu(dict(model.named_parameters())),
        "buffers": on_cpu(dict(model.named_buffers())),
        "optimizer": on_cpu(run["optimizer"].state_dict()),
        "scheduler": run["scheduler"].state_dict(),
        "scaler": run["scaler"].state_dict(),
        "metrics": run["metrics"].state_dict(),
        "draws": draws(),
    }


def save(rank: int, place: str) -> Any:
    import random

    import numpy as np
    import torch

    import unmoor

    run = build(seed=1)
    torch.manual_seed(100 + rank)
    np.random.seed(100 + rank)
    random.seed(100 + rank)
    sampler = torch.Generator().manual_seed(3)
    torch.rand(2, generator=sampler)
    for _ in range(3):
        train(run, rank)
    extra = {"step": 3, "best": 0.5 + rank, "seen": {"epoch": 1, "files": [f"part-{rank}"]}}
    receipt = unmoor.save(place, **run, **extra, rng={"sampler": sampler})
    held = {**own(run), "sampler": torch.rand(1, generator=sampler).item(), "receipt": str(receipt)}
    return {**held, "next": [train(run, rank) for _ in range(2)]}


def restore(rank: int, place: str) -> Any:
    import torch

    import unmoor

    run = build(seed=7)
    sampler = torch.Generator()
    report = unmoor.restore(place, **run, rng={"sampler": sampler})
    held = {**own(run), "sampler": torch.rand(1, generator=sampler).item(), "report": str(report)}
    held |= {"extra": dict(report.extra), "restored": list(report.restored), "notes": dict(report.plan.notes)}
    held["left"] = [(c.label, c.name, c.before, c.after) for c in report.not_restored]
    return {**held, "next": [train(run, rank) for _ in range(2)]}


def run(rank: int, world: int, folder: str, verb: str, place: str) -> Any:
    return {"save": save, "restore": restore}[verb](rank, str(Path(place)))


if __name__ == "__main__":
    main(run)
