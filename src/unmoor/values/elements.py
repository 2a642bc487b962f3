"""Elements of a tensor on their way from a file: how they lie in some bytes, and where in the whole they stand."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Form", "Order"]


@dataclass(frozen=True, slots=True)
class Form:
    """How elements lie in some bytes, with strides in elements."""

    dtype: str
    byteorder: str
    bits: frozenset[str]
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Order:
    """How elements counted one by one lie in a whole tensor: `sizes` as they are counted, outermost first.

    `steps` are how far one step along each goes in the whole tensor, counted in the order of its indices; `base` is
    where the first one stands.
    """

    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    base: int

    @property
    def rising(self) -> bool:
        """Whether counting on always goes on in the whole tensor as well."""
        return all(a >= b * size for a, b, size in zip(self.steps, self.steps[1:], self.sizes[1:], strict=False))

    def place(self, number: int) -> int:
        """Where the element of a number stands in the whole tensor."""
        at = self.base
        for size, step in zip(reversed(self.sizes), reversed(self.steps), strict=True):
            number, index = divmod(number, size)
            at += index * step
        return at
