"""Boxes: the parts of a tensor that ranks hold and files store. Pure arithmetic, in elements."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

__all__ = ["Box", "flat_boxes", "overlap"]


class Box(NamedTuple):
    """The elements from index `start` on, `sizes` of them along each dimension."""

    start: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def numel(self) -> int:
        """The number of elements."""
        return prod(self.sizes)


def overlap(one: Box, other: Box) -> Box | None:
    """The elements that are in both; None where there are none.

    >>> overlap(Box((0, 2), (3, 4)), Box((2, 0), (4, 3)))
    Box(start=(2, 2), sizes=(1, 1))
    """
    start: list[int] = []
    sizes: list[int] = []
    for a, n, b, m in zip(one.start, one.sizes, other.start, other.sizes, strict=True):
        first, last = max(a, b), min(a + n, b + m)
        if last <= first:
            return None
        start.append(first)
        sizes.append(last - first)
    return Box(tuple(start), tuple(sizes))


def flat_boxes(shape: tuple[int, ...], start: int, stop: int) -> list[Box]:
    """Elements `start` to `stop` of a tensor of `shape`, counted in the order of its indices, as boxes in that order.

    >>> flat_boxes((3, 4), 2, 9)
    [Box(start=(0, 2), sizes=(1, 2)), Box(start=(1, 0), sizes=(1, 4)), Box(start=(2, 0), sizes=(1, 1))]
    """
    if start >= stop:
        return []
    if not shape:
        return [Box((), ())]
    row = prod(shape[1:])
    first, last = start // row, (stop - 1) // row
    if first == last:
        inner = flat_boxes(shape[1:], start - first * row, stop - first * row)
        return [Box((first, *box.start), (1, *box.sizes)) for box in inner]
    head = flat_boxes(shape, start, (first + 1) * row) if start % row else []
    tail = flat_boxes(shape, last * row, stop) if stop % row else []
    low, high = first + bool(head), last + (not tail)
    middle = [Box((low, *(0 for _ in shape[1:])), (high - low, *shape[1:]))] if low < high else []
    return [*head, *middle, *tail]
