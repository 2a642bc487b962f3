"""Slots for tensors that are to be made."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from unmoor.values.nodes import TensorNode
from unmoor.values.target import Slot

__all__ = ["contiguous", "make_slot"]


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor of this shape laid out without gaps, last dimension first.

    >>> contiguous((2, 3, 4))
    (12, 4, 1)
    """
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))


def make_slot(label: str, device: str) -> Callable[[str, TensorNode], Slot]:
    """Slots for tensors that stand alone, on `device`, laid out without gaps."""

    def make(suffix: str, node: TensorNode) -> Slot:
        return Slot(f"{label}#{suffix}", node.shape, node.dtype, contiguous(node.shape), device, dense=True, make=True)

    return make
