"""Slots for tensors that are to be made."""

from __future__ import annotations

from collections.abc import Callable

from unmoor.values.nodes import TensorNode
from unmoor.values.strides import contiguous
from unmoor.values.target import Slot

__all__ = ["as_stored", "contiguous", "make_slot"]


def as_stored(node: TensorNode) -> tuple[int, ...]:
    """The strides of a stored tensor whose elements lie in one run, in any order; those without gaps for any other."""
    if not node.shape:
        return node.stride
    step = 1
    for stride, size in sorted(zip(node.stride, node.shape, strict=True)):
        if size != 1 and stride != step:
            return contiguous(node.shape)
        step *= size
    return node.stride if node.numel else contiguous(node.shape)


def make_slot(label: str, device: str) -> Callable[[str, TensorNode], Slot]:
    """Slots for tensors that stand alone, on `device`, laid out without gaps."""

    def make(suffix: str, node: TensorNode) -> Slot:
        return Slot(f"{label}#{suffix}", node.shape, node.dtype, contiguous(node.shape), device, dense=True, make=True)

    return make
