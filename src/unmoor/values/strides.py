"""Strides of tensors, in elements."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["contiguous", "is_dense"]


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


def is_dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether the elements fill one run of memory without gaps or overlap, in any order of the dimensions.

    >>> is_dense((2, 3), (1, 2)), is_dense((2, 3), (4, 1)), is_dense((2, 3), (0, 1))
    (True, False, False)
    """
    expected = 1
    for step, size in sorted((step, size) for step, size in zip(stride, shape, strict=True) if size > 1):
        if step != expected:
            return False
        expected *= size
    return True
