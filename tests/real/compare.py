"""Two trees held against each other, value by value: types, keys, order, and tensors to the last bit."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch


def differences(one: Any, other: Any, place: str = "") -> Iterator[str]:
    """Every place where two trees differ, in words; nothing where they are equal.

    Tensors are equal where dtype, shape, strides, offset into the storage, device, gradient flag, class and bits are.
    """
    if type(one) is not type(other):
        yield f"{place}: {type(one).__name__} is not {type(other).__name__}"
    elif isinstance(one, torch.Tensor):
        yield from (f"{place}: {word}" for word in _tensor_differences(one, other))
    elif isinstance(one, Mapping):
        if list(one) != list(other):
            yield f"{place}: keys {list(one)[:9]} are not {list(other)[:9]}"
            return
        for key in one:
            yield from differences(one[key], other[key], f"{place}.{key}")
        yield from differences(getattr(one, "_metadata", None), getattr(other, "_metadata", None), f"{place}._metadata")
    elif isinstance(one, list | tuple):
        if len(one) != len(other):
            yield f"{place}: {len(one)} elements are not {len(other)}"
            return
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from differences(a, b, f"{place}.{index}")
    elif one != other and not (one != one and other != other):
        yield f"{place}: {one!r} is not {other!r}"


def _tensor_differences(one: torch.Tensor, other: torch.Tensor) -> Iterator[str]:
    for fact in ("dtype", "shape", "device", "requires_grad"):
        a, b = getattr(one, fact), getattr(other, fact)
        if a != b:
            yield f"{fact} {a} is not {b}"
    for fact in ("stride", "storage_offset"):
        a, b = getattr(one, fact)(), getattr(other, fact)()
        if a != b:
            yield f"{fact} {a} is not {b}"
    if one.dtype == other.dtype and one.shape == other.shape and bits(one) != bits(other):
        yield "the values are not the same bits"


def bits(tensor: torch.Tensor) -> bytes:
    """The elements of a tensor in row order, as bytes: equal for NaN, different for 0.0 and -0.0."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def tensors(tree: Any, keys: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], torch.Tensor]]:
    """Every tensor of a tree of plain containers, with its key path."""
    if isinstance(tree, torch.Tensor):
        yield keys, tree
    elif isinstance(tree, Mapping | list | tuple):
        for key, item in tree.items() if isinstance(tree, Mapping) else enumerate(tree):
            yield from tensors(item, (*keys, key))
