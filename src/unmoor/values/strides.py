"""Strides of tensors, in elements."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["contiguous"]


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
