"""Live tensors whose elements share memory (expanded, or windows that overlap): what may be copied into them.

Pure: shapes and strides. A copy is let through where the saved tensor repeats its elements the same way, for then
all that share one place agree; anything else would leave the value that happened to be written last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from unmoor.values.nodes import TensorNode
from unmoor.values.target import Slot

__all__ = ["without_repeats"]


def without_repeats(node: TensorNode, slot: Slot) -> tuple[TensorNode, Slot, str]:
    """Node and slot with each element that both repeat taken once, and why they cannot be brought together ("")."""
    if slot.dense or not overlaps(slot.shape, slot.stride) or node.shape != slot.shape:
        return node, slot, ""
    pairs = list(zip(slot.shape, slot.stride, node.stride, strict=True))
    if any(theirs != ours for size, ours, theirs in pairs if size > 1):
        return node, slot, "elements of the live tensor share memory, those of the saved one do not"
    shape = tuple(1 if ours == 0 else size for size, ours, _ in pairs)
    return replace(node, shape=shape), replace(slot, shape=shape), ""


def overlaps(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether two elements may lie at one place: a stride is less than what the smaller ones reach."""
    reach = 0
    for step, size in sorted((step, size) for step, size in zip(stride, shape, strict=True) if size > 1):
        if step <= reach:
            return 0 not in shape
        reach += (size - 1) * step
    return False
