"""The runs that the speed suite saves and restores, and what tells that two of them are equal.

Parameters and both moments hold noise: what compresses, or skips what is alike, has nothing to win here that a real run
would not give it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

from . import common

__all__ = ["TENSORS_OF_ONE", "Run", "Shape", "equal", "filled", "fresh"]

TENSORS_OF_ONE: Final = 4
"""Tensors that a parameter brings to a file: itself, exp_avg, exp_avg_sq and step."""

_BYTES_OF_ONE: Final = 12
_SQUARE: Final = 1024
_NOISE: Final = 16 << 20

Run = tuple[nn.Module, torch.optim.Optimizer]


@dataclass(frozen=True)
class Shape:
    """How large a run is, with its optimizer state, and what it is cut into.

    `tensors` is how many tensors a file of it holds; 0 is the model of `common.build`, matrices of 16 MiB, and -1 are
    as many tensors of 4 MiB as it takes.
    """

    nbytes: int
    tensors: int = 0

    def blank(self) -> nn.Module:
        """The model without memory."""
        with torch.device("meta"):
            if not self.tensors:
                return common.build(self.nbytes)[0]
            if self.tensors < 0:
                count, sizes = max(1, round(self.nbytes / _BYTES_OF_ONE / _SQUARE**2)), (_SQUARE, _SQUARE)
            else:
                count = max(1, self.tensors // TENSORS_OF_ONE)
                sizes = (max(1, self.nbytes // _BYTES_OF_ONE // count),)
            return nn.ParameterList([nn.Parameter(torch.empty(sizes)) for _ in range(count)])


def fresh(shape: Shape) -> Run:
    """A live run that nothing was restored into yet: parameters in memory, and an AdamW without state."""
    model = shape.blank().to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def filled(shape: Shape, seed: int = 0) -> Run:
    """A run with state, as after a step of training."""
    model, optimizer = fresh(shape)
    noise = torch.empty(_NOISE).normal_(generator=torch.Generator().manual_seed(seed))
    start = seed
    with torch.no_grad():
        for parameter in model.parameters():
            state = {"step": torch.tensor(1.0 + seed)}
            state |= {name: torch.empty_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            for tensor in (parameter, state["exp_avg"], state["exp_avg_sq"]):
                start = _fill(tensor, noise, start)
            state["exp_avg_sq"].abs_()
            optimizer.state[parameter] = state
    return model, optimizer


def _fill(tensor: torch.Tensor, noise: torch.Tensor, start: int) -> int:
    flat, done = tensor.view(-1), 0
    while done < flat.numel():
        start = (start + 1) % (noise.numel() // 2)
        size = min(flat.numel() - done, noise.numel() - start)
        flat[done : done + size] = noise[start : start + size]
        start, done = start + size, done + size
    return start


def equal(one: Run, other: Run) -> bool:
    """Whether all parameters and all optimizer state of two runs are the same, bit for bit."""
    pairs = zip(_tensors(one), _tensors(other), strict=True)
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


def _tensors(run: Run) -> Iterator[torch.Tensor]:
    model, optimizer = run
    for parameter in model.parameters():
        yield parameter.detach()
        state = optimizer.state[parameter]
        yield from (state[name] for name in ("step", "exp_avg", "exp_avg_sq"))
