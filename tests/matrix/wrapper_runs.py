"""Runs of a kind of model: a few steps, and its state by torch's own names with the wrappers' text left out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.optim.swa_utils import AveragedModel

from .wrapper_kinds import Kind, Net, build, quiet

__all__ = ["WrappedRun", "start"]


@dataclass
class WrappedRun:
    """A model of one kind, its optimizer, and the number of steps taken."""

    kind: Kind
    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: int = 0

    @property
    def roles(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}

    def train(self, steps: int) -> WrappedRun:
        """Steps on data, and for averages on other weights, that depend on nothing but the number of the step."""
        averaged = next((m for m in self.model.modules() if isinstance(m, AveragedModel)), None)
        with quiet():
            for _ in range(steps):
                data = torch.Generator().manual_seed(self.step)
                self.optimizer.zero_grad()
                self.model(torch.randn(8, 4, generator=data)).pow(2).mean().backward()
                self.optimizer.step()
                if averaged is not None:
                    averaged.update_parameters(_teacher(self.step))
                self.step += 1
        return self

    def touch(self) -> WrappedRun:
        """One step of the optimizer with made-up gradients, so that it has state; the model is not run."""
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.full_like(parameter, 0.25) if parameter.requires_grad else None
        self.optimizer.step()
        self.optimizer.zero_grad()
        return self

    def state(self) -> dict[str, dict[str, Any]]:
        """Tensors of the model and of the optimizer's state by name, whole and on their own."""
        with quiet():
            tensors = self._names(self.model.state_dict())
            if self.kind.flat:
                found = FullyShardedDataParallel.optim_state_dict(self.model, self.optimizer)
                state = found["state"]
            else:
                held = [(n, self.optimizer.state.get(p, {})) for n, p in self.model.named_parameters()]
                state = {name: entry for name, entry in held if entry}
        return {"model": _plain(tensors), "optimizer": _plain(self._names(state))}

    def _names(self, found: Any) -> dict[str, Any]:
        return {reduce(_without, self.kind.hidden, name): value for name, value in found.items()}


def _without(name: str, text: str) -> str:
    return name.replace(text, "")


def _teacher(step: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(100 + step)
        return Net()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, torch.Tensor):
        value = value.full_tensor() if hasattr(value, "full_tensor") else value
        return value.detach().clone()
    return value


def start(kind: Kind, seed: int = 0, *, optimizer_first: bool = False) -> WrappedRun:
    """A run that has taken no step; another seed gives other weights. `foreach` mixes no DTensors with tensors."""
    model, net = build(kind, seed)
    over = net if optimizer_first and not kind.flat else model
    return WrappedRun(kind, model, torch.optim.Adam(list(over.parameters()), lr=0.05, foreach=False))
