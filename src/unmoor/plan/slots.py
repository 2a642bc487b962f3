"""Slots for tensors that are to be made."""

from __future__ import annotations

from collections.abc import Callable

from unmoor.values.nodes import TensorNode
from unmoor.values.strides import contiguous
from unmoor.values.target import Slot

__all__ = ["contiguous", "make_slot"]


def make_slot(label: str, device: str) -> Callable[[str, TensorNode], Slot]:
    """Slots for tensors that stand alone, on `device`, laid out without gaps."""

    def make(suffix: str, node: TensorNode) -> Slot:
        return Slot(f"{label}#{suffix}", node.shape, node.dtype, contiguous(node.shape), device, dense=True, make=True)

    return make
