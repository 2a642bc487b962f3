"""Values and sizes that a tensor without data would have to have: invented by one rule, so that a step can go on.

A number is 1 and a truth value true, but for the answers of `isnan` and `isinf`, which are false; whole tensors of
integers are 0, which is an index into anything. A mask selects everything, and all values are distinct.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch

__all__ = ["invented", "packed", "sized"]

aten = torch.ops.aten

Make = Callable[[tuple[int, ...], torch.Tensor, torch.dtype], torch.Tensor]
"""Makes a fake tensor of a shape and dtype beside another."""


def invented(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A real tensor on the CPU with the shape of a fake one."""
    false = bool(getattr(tensor, "_unmoor_false", False))
    dtype = dtype or tensor.dtype
    whole = not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)
    value = 0 if false or (whole and tensor.dim() > 0) else 1
    return torch.full(tuple(tensor.shape), value, dtype=dtype, device="cpu")


def sized(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], make: Make) -> Any:
    """The result of an operation whose size depends on values; NotImplemented where it does not."""
    if func is aten.nonzero.default:
        return make((args[0].numel(), args[0].dim()), args[0], torch.int64)
    if func is aten.masked_select.default:
        shape = torch.broadcast_shapes(args[0].shape, args[1].shape)  # type: ignore[no-untyped-call]
        return make((prod(shape),), args[0], args[0].dtype)
    if func is aten._unique2.default:
        values = make((args[0].numel(),), args[0], args[0].dtype)
        return values, make(tuple(args[0].shape), args[0], torch.int64), make((args[0].numel(),), args[0], torch.int64)
    if func is aten.unique_dim.default:
        rows = args[0].shape[args[1]]
        counts = make((rows,), args[0], torch.int64)
        return make(tuple(args[0].shape), args[0], args[0].dtype), counts, make((rows,), args[0], torch.int64)
    return _indexed(func, args, kwargs, make)


def packed(func: Any, args: Sequence[Any], make: Make) -> Any:
    """Sequences of several lengths as one row of steps: the lengths are on the CPU, so torch packs a thin twin.

    Lengths that came from the device were invented as 0: then all are taken as full.
    """
    rows, lengths, batch_first = args[0], args[1], args[2]
    if not lengths.any():
        lengths = torch.full_like(lengths, rows.shape[1 if batch_first else 0])
    twin, sizes = func(torch.empty((*rows.shape[:2], 1), device="cpu"), lengths, batch_first)
    return make((len(twin), *rows.shape[2:]), rows, rows.dtype), sizes


def _indexed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], make: Make) -> Any:
    """`x[mask]`: the mask as the indices that it would stand for, were all of it true."""
    indices = list(args[1])
    masks = [one for one in indices if one is not None and one.dtype in (torch.bool, torch.uint8)]
    if not masks:
        return NotImplemented
    spread: list[torch.Tensor | None] = []
    for one in indices:
        if one is None or (one not in masks and one.dtype not in (torch.bool, torch.uint8)):
            spread.append(one)
        elif hasattr(one, "fake_mode"):
            spread += [make((one.numel(),), one, torch.int64) for _ in range(one.dim())]
        else:
            spread += list(one.nonzero(as_tuple=True))
    return func(args[0], spread, *args[2:], **kwargs)
