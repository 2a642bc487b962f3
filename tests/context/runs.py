"""A small run on one device, and the table of broken steps: a decorator keeps what each has to be told as."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

HOME = "sim:1"
MARK = "# fails"


class Net(nn.Module):
    """An encoder and a decoder with running statistics, and a mask that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8))
        self.decoder = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 3))

    def forward(self, x):
        return self.decoder(self.encoder(x))


@dataclass
class Run:
    """Everything that a step takes."""

    model: Any = field(default_factory=lambda: Net().to(HOME))
    optimizer: Any = None
    loss: Any = field(default_factory=nn.CrossEntropyLoss)
    batch: Any = None

    def __post_init__(self) -> None:
        if self.optimizer is None and isinstance(self.model, nn.Module):
            self.optimizer = torch.optim.Adam(self.model.parameters())
        if self.batch is None:
            self.batch = {
                "image": torch.arange(20.0).reshape(5, 4).to(HOME),
                "labels": torch.tensor([0, 1, 2, 0, 1]).to(HOME),
            }

    def step(self) -> None:
        """One sound step, so that there are gradients and state."""
        self.loss(self.model(self.batch["image"]), self.batch["labels"]).backward()
        self.optimizer.step()


@dataclass(frozen=True)
class Case:
    """A step that fails. `head` begins the headline, `away` are the tensors that are told as away, by device."""

    function: Callable[..., Any]
    head: str
    away: dict[str, tuple[str, ...]]
    fix: str
    kind: str

    @property
    def line(self) -> str:
        """The line that is marked as the one that fails."""
        lines = inspect.getsource(inspect.unwrap(self.function)).splitlines()
        return next(line.strip() for line in lines if MARK in line)


CASES: dict[str, Case] = {}


def broken(head: str, fix: str, *, kind: str = "", **away: str | tuple[str, ...]) -> Callable[[Any], Any]:
    """Put a step into the table; `away` is device type -> the names of tensors there."""

    def add(function: Any) -> Any:
        named = {device: (names,) if isinstance(names, str) else names for device, names in away.items()}
        CASES[function.__name__] = Case(function, head, named, fix, kind)
        return function

    return add
