"""Small runs whose layers nothing but names can tell apart, for tests of state by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.cases.files import tiny, train

LAYERS = ("0.weight", "0.bias", "2.weight", "2.bias")


def moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Name of each parameter -> its state in an optimizer."""
    return {name: optimizer.state.get(parameter, {}) for name, parameter in model.named_parameters()}


def alike(seed: int = 0) -> nn.Sequential:
    """A model whose layers have one shape: nothing but names tells them apart."""
    return tiny(seed, sizes=(3, 3, 3))


def run(seed: int = 0, **options: Any) -> tuple[nn.Sequential, torch.optim.Adam]:
    """Such a model, trained, and its optimizer."""
    model = alike(seed)
    optimizer = torch.optim.Adam(model.parameters(), **options)
    train(model, optimizer)
    return model, optimizer
