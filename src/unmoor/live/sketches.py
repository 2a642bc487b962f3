"""Sketches of tensors: a few sums under fixed signs, whose differences tell how far apart two tensors are.

For a vector r of independent signs, (r.a - r.b)**2 has the mean |a - b|**2 (Alon, Matias, Szegedy, 1996). So two
processes hand over a few numbers for each tensor, and their reader knows the distance without either tensor.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import torch

__all__ = ["sketch"]

_SUMS: Final = 8
_BLOCK: Final = 4096


def sketch(tensor: torch.Tensor) -> tuple[float, ...]:
    """The norm of a tensor, then its sums under signs; () for one that holds no real numbers.

    Elements count in the order of the tensor's shape, whatever its strides, device and dtype.
    """
    if not (tensor.is_floating_point() and tensor.layout == torch.strided) or tensor.is_quantized:
        return ()
    flat = tensor.detach().reshape(-1).to("cpu")
    total = torch.zeros(_SUMS, dtype=torch.float64, device="cpu")
    square = 0.0
    for number, start in enumerate(range(0, flat.numel(), _BLOCK)):
        piece = flat[start : start + _BLOCK].double()
        total += (piece @ _signs()[: piece.numel()]) * _turn(number)
        square += float(piece @ piece)
    return (square**0.5, *total.tolist())


@cache
def _signs() -> torch.Tensor:
    return _drawn((_BLOCK, _SUMS), 0)


@cache
def _turn(number: int) -> torch.Tensor:
    """The signs by which a whole block counts, so that blocks are independent of each other."""
    return _drawn((_SUMS,), number + 1)


def _drawn(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2, shape, generator=generator, device="cpu").double() * 2 - 1
