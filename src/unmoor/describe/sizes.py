"""Shapes and strides as a pickle gives them: tuples of numbers that a tensor can have."""

from __future__ import annotations

from typing import Any, Final

from unmoor.values.nodes import TorchValue

from .machine import Machine

__all__ = ["LIMIT", "shape_of", "whole_numbers", "windows"]

LIMIT: Final = 1 << 63
_MANY: Final = 16
_MOST: Final = 1000
"""Dimensions of a tensor, at most."""


def _tuple(m: Machine, value: Any, what: str) -> tuple[Any, ...]:
    if type(value) is TorchValue and value.kind == "size":
        return tuple(value.value)
    if type(value) is not list:
        raise m.corrupt(f"gives a tensor a {what} that is no tuple")
    m.charge(len(value))
    return tuple(value)


def whole_numbers(m: Machine, value: Any, what: str) -> tuple[int, ...]:
    """A tuple of numbers of 64 bits."""
    numbers: tuple[int, ...] = value if type(value) is tuple else _tuple(m, value, what)
    if len(numbers) > _MANY:
        m.charge(len(numbers) // 4)
        if len(numbers) > _MOST:
            raise m.hostile(f"gives a tensor a {what} of {len(numbers):,} numbers")
    for number in numbers:
        if type(number) is not int or not -LIMIT <= number < LIMIT:
            raise m.corrupt(f"gives a tensor a {what} that is no tuple of whole numbers")
    return numbers


def shape_of(m: Machine, value: Any) -> tuple[int, ...]:
    """Sizes whose product a tensor can have: torch itself counts elements and strides in 64 bits."""
    sizes, count = whole_numbers(m, value, "shape"), 1
    for size in sizes:
        count *= size if size > 0 else 1
    if count >= LIMIT:
        raise m.corrupt("gives a tensor a shape whose sizes multiply to more than any tensor has")
    return sizes


def windows(m: Machine, size: Any, stride: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides, of as many dimensions each."""
    shape, strides = shape_of(m, size), whole_numbers(m, stride, "stride")
    if len(shape) != len(strides):
        raise m.corrupt(f"gives a tensor {len(shape)} sizes and {len(strides)} strides")
    return shape, strides
