"""Trees to convert, as torch.save has them, and a comparison that lets nothing pass."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from typing import Any

import torch
from torch import nn

__all__ = ["difference", "run", "tree"]


def run() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A small model and an AdamW that has stepped."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Linear(32, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    return model, optimizer


def tree(*, strange: bool) -> dict[Any, Any]:
    """A training run with plain values of every kind; with `strange`, tensors of every kind that torch loads safely."""
    model, optimizer = run()
    tied = torch.randn(6, 6)
    made = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "tied": [tied, tied],
        "tuple": (1, 2.5, torch.ones(2)),
        "ordered": OrderedDict(b=1, a=None),
        "empty": {},
        "nothing": [],
        "values": [1, "two", (3, (4,)), {5: b"six", None: True}],
        7: "a key that is no text",
        "bfloat16": torch.randn(5).bfloat16(),
        "no elements": torch.zeros(0, 3),
        "scalar": torch.tensor(3.5),
        "size": torch.Size([1, 2]),
        "dtype": torch.float16,
    }
    return {**made, **_strange(tied)} if strange else made


def _strange(tied: torch.Tensor) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "view": tied[1:3, ::2],
            "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
            "expanded": torch.randn(1, 4).expand(3, 4),
            "sparse": torch.eye(3).to_sparse(),
            "csr": torch.eye(3).to_sparse_csr(),
            "parameter": nn.Parameter(torch.ones(3)),
            "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
            "quantized": torch.quantize_per_tensor(torch.randn(3, 3), 0.1, 0, torch.qint8),
            "channels": torch.quantize_per_channel(
                torch.randn(3, 3), torch.rand(3) + 0.1, torch.zeros(3).long(), 0, torch.qint8
            ),
            "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        }


def difference(one: Any, other: Any, place: str = "the tree") -> str:
    """Where two trees differ first, in class, values, strides, order of keys or `_metadata`; "" where they do not."""
    if type(one) is not type(other):
        return f"{place}: {type(one).__name__} and {type(other).__name__}"
    if isinstance(one, torch.Tensor):
        return "" if _facts(one) == _facts(other) and _equal(one, other) else f"{place}: {one} and {other}"
    if isinstance(one, dict):
        if list(one) != list(other) or getattr(one, "_metadata", None) != getattr(other, "_metadata", None):
            return f"{place}: {list(one)} and {list(other)}"
        return next(filter(None, (difference(one[key], other[key], f"{place}.{key}") for key in one)), "")
    if isinstance(one, list | tuple):
        if len(one) != len(other):
            return f"{place}: {len(one)} and {len(other)} items"
        rows = enumerate(zip(one, other, strict=True))
        return next(filter(None, (difference(a, b, f"{place}[{i}]") for i, (a, b) in rows)), "")
    return "" if one == other else f"{place}: {one!r} and {other!r}"


def _facts(tensor: torch.Tensor) -> tuple[Any, ...]:
    plain = tensor.layout == torch.strided and not tensor.is_nested
    stride = tensor.stride() if plain else ()
    shape = tuple(tensor.shape) if not tensor.is_nested else ()
    return (tensor.dtype, tensor.layout, shape, stride, tensor.requires_grad, tensor.is_conj(), tensor.is_neg())


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.is_nested:
        return torch.equal(one.values(), other.values())
    if one.is_quantized:
        return torch.equal(one.dequantize(), other.dequantize())
    if one.layout != torch.strided:
        return torch.equal(one.to_dense(), other.to_dense())
    return torch.equal(one, other)
