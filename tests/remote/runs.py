"""A small run, its checkpoint as bytes, and what must be equal after it was restored."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import unmoor

__all__ = ["checkpoint", "fresh", "held", "trained"]

WIDTH = 300
"""A model of 1.4 MiB; with Adam's state 4.1 MiB."""

State = tuple[torch.nn.Module, torch.optim.Optimizer]


def fresh(width: int = WIDTH) -> State:
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(4)))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def trained(seed: int = 0, width: int = WIDTH) -> State:
    torch.manual_seed(seed)
    model, optimizer = fresh(width)
    model(torch.randn(2, width)).sum().backward()
    optimizer.step()
    return model, optimizer


@lru_cache(maxsize=4)
def checkpoint(seed: int = 0, width: int = WIDTH) -> bytes:
    """The bytes of the file that the run of a seed makes."""
    model, optimizer = trained(seed, width)
    with TemporaryDirectory() as folder:
        unmoor.save(Path(folder, "step.pt"), model=model, optimizer=optimizer, rng=False, step=seed)
        return Path(folder, "step.pt").read_bytes()


def held(state: State) -> dict[str, torch.Tensor]:
    """Every tensor of model and optimizer, by name."""
    model, optimizer = state
    found = dict(model.state_dict())
    for number, entry in optimizer.state_dict()["state"].items():
        found |= {f"{number}.{key}": value for key, value in entry.items()}
    return {name: value.clone() for name, value in found.items()}
