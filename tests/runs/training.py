"""A small training run for tests: every kind of state a run has, and comparison bit for bit."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

OPTIMIZERS = {
    "SGD momentum": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
    "Adam": (torch.optim.Adam, {"lr": 0.01}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
}


def network(seed: int = 0) -> nn.Module:
    """A model with matrices, a buffer-keeping norm, and an embedding."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3)
    )


@dataclass
class Run:
    """Model, optimizer and scheduler on one device, and the number of steps taken."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Any
    step: int = 0
    losses: list[float] = field(default_factory=list)

    @property
    def roles(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def train(self, steps: int) -> Run:
        """Take steps on data that depends on nothing but the step number."""
        device = next(self.model.parameters()).device
        for _ in range(steps):
            data = torch.Generator().manual_seed(1000 + self.step)
            inputs = torch.randn(16, 6, generator=data).to(device)
            wanted = torch.randn(16, 3, generator=data).to(device)
            self.optimizer.zero_grad()
            loss = (self.model(inputs) - wanted).pow(2).mean()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.step += 1
            self.losses.append(loss.item())
        return self


def start(optimizer: str = "Adam", device: Any = "cpu", *, seed: int = 0, **switches: Any) -> Run:
    """A run that has taken no step; another seed gives other weights."""
    cls, options = OPTIMIZERS[optimizer]
    model = network(seed).to(device)
    made = cls(model.parameters(), **options, **switches)
    return Run(model, made, torch.optim.lr_scheduler.StepLR(made, 2, 0.5))


def state(run: Run) -> dict[str, Any]:
    """All of a run's state as CPU tensors and plain values."""
    return {
        "model": on_cpu(run.model.state_dict()),
        "optimizer": on_cpu(run.optimizer.state_dict()),
        "scheduler": run.scheduler.state_dict(),
    }


def on_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {key: on_cpu(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(on_cpu(item) for item in value)
    return value


def equal(a: Any, b: Any) -> bool:
    """Whether two trees hold the same values, tensors bit for bit with their dtype."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b


def draws() -> tuple[Any, ...]:
    """The next numbers of the process's random streams, which stay where they were."""
    import numpy as np

    before = torch.get_rng_state(), random.getstate(), np.random.get_state()
    drawn = torch.rand(3).tolist(), random.random(), np.random.rand(2).tolist()
    torch.set_rng_state(before[0])
    random.setstate(before[1])
    np.random.set_state(before[2])
    return drawn
