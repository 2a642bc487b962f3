"""How far two tensors are apart, out of pieces that come in any order and from any thread.

Elements are told apart by their bits. How far they are apart is arithmetic in their own precision or a wider one; of
two dtypes in float64. Elements that are NaN or infinite on a side count as different and leave the numbers alone.
Memory is a few blocks of elements for each thread.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch

from unmoor.values.difference import Distance
from unmoor.values.dtypes import DTYPES
from unmoor.values.elements import Form, Order
from unmoor.values.strides import contiguous

from .loading import dtype_of

__all__ = ["Alone", "Comparison"]

#: Elements that are worked on at once: they stay in the cache, and are enough for what a call costs not to count.
BLOCK: Final = 1 << 16

_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
_NUMBERS: Final = frozenset({"float", "float8", "complex", "signed", "unsigned", "bool"})
_EXACT: Final = 1 << 53
"""Integers beyond this have no float64 of their own."""


class _Values(NamedTuple):
    """Elements of one side, one behind the other: their bits as integers, and as numbers, None where they are none."""

    bits: torch.Tensor
    numbers: torch.Tensor | None
    width: int


@dataclass(slots=True)
class _Tally:
    """What is known of one pair so far. `first` is where the first differing element stands, -1 for none."""

    differing: int = 0
    not_finite: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    square_a: float = 0.0
    square_b: float = 0.0
    square_apart: float = 0.0
    first: int = -1
    values: tuple[Any, Any] | None = None
    numeric: bool = True
    within: bool = True

    def merge(self, other: _Tally) -> None:
        """Add what another block has told."""
        self.differing += other.differing
        self.not_finite += other.not_finite
        self.max_abs, self.max_rel = max(self.max_abs, other.max_abs), max(self.max_rel, other.max_rel)
        self.square_a += other.square_a
        self.square_b += other.square_b
        self.square_apart += other.square_apart
        self.numeric = self.numeric and other.numeric
        self.within = self.within and other.within
        if other.first >= 0 and (self.first < 0 or other.first < self.first):
            self.first, self.values = other.first, other.values

    def cosine(self) -> float | None:
        """Of both tensors as vectors: out of their lengths and their distance, which is exact where they are close."""
        a, b = math.sqrt(self.square_a), math.sqrt(self.square_b)
        if not a or not b or not math.isfinite(a * b):
            return None
        return max(-1.0, min(1.0, 1.0 - (self.square_apart - (a - b) ** 2) / (2 * a * b)))


class Alone(threading.local):
    """Keeps torch from starting threads of its own in each thread that calls `here`, until `end`.

    For small blocks these cost more than the work. How many there were is set again by the last of those that measure.
    """

    _lock = threading.Lock()
    _users = 0
    _before = 1

    def __init__(self) -> None:
        self._settled = False

    def begin(self) -> None:
        """Note how many threads torch has."""
        with Alone._lock:
            Alone._before = Alone._before if Alone._users else torch.get_num_threads()
            Alone._users += 1

    def here(self) -> None:
        """From now on none are started in this thread."""
        if not self._settled:
            torch.set_num_threads(1)
            self._settled = True

    def end(self) -> None:
        """To be called by the thread that waits for the others."""
        with Alone._lock:
            Alone._users -= 1
            torch.set_num_threads(Alone._before)


class Comparison:
    """Measures pairs of tensors by number; `distance` tells the outcome once all pieces have been seen."""

    def __init__(self, *, atol: float, rtol: float) -> None:
        self._atol, self._rtol = atol, rtol
        self._tallies: dict[int, _Tally] = {}
        self._lock = threading.Lock()

    def differ(
        self, pair: int, a: memoryview, b: memoryview, forms: tuple[Form, Form], order: Order, first: int
    ) -> bool:
        """Elements of both sides, number `first` of `order` and those that follow; whether any differs."""
        one, other = _values(a, forms[0]), _values(b, forms[1])
        by_bits = forms[0].dtype == forms[1].dtype and forms[0].bits == forms[1].bits
        work = _working(forms, one, other)
        known = self._tallies.get(pair)
        total = _Tally() if known is None else _Tally(first=known.first, max_abs=known.max_abs)
        for start in range(0, len(one.bits) // one.width, BLOCK):
            block = _block(one, start), _block(other, start)
            total.merge(self._block(*block, work, order, first + start, by_bits=by_bits, before=total))
        self._merge(pair, total)
        return total.differing > 0

    def same(self, pair: int, a: memoryview, form: Form) -> None:
        """Elements that are equal on both sides, of a pair that differs elsewhere."""
        values = _values(a, form)
        work = _working((form, form), values, values)
        total = _Tally()
        if work is not None and values.numbers is not None:
            for start in range(0, len(values.numbers), BLOCK):
                square = _square(values.numbers[start : start + BLOCK].to(work))
                total.square_a, total.square_b = total.square_a + square, total.square_b + square
        self._merge(pair, total)

    def distance(self, pair: int, shape: Sequence[int]) -> Distance | None:
        """How far a pair of tensors of `shape` is apart; None where it is not at all."""
        tally = self._tallies.get(pair)
        if tally is None or not tally.differing:
            return None
        first, rest = [], tally.first
        for step in contiguous(shape):
            first.append(rest // step)
            rest %= step
        if not tally.numeric:
            return Distance(tally.differing, tuple(first), tally.values)
        return Distance(
            tally.differing,
            tuple(first),
            tally.values,
            tally.max_abs,
            tally.max_rel,
            tally.cosine(),
            tally.not_finite,
            bool(self._atol or self._rtol) and tally.within,
        )

    def _merge(self, pair: int, total: _Tally) -> None:
        with self._lock:
            self._tallies.setdefault(pair, _Tally()).merge(total)

    def _block(
        self,
        a: _Values,
        b: _Values,
        work: torch.dtype | None,
        order: Order,
        first: int,
        *,
        by_bits: bool,
        before: _Tally,
    ) -> _Tally:
        """What one block of elements tells; `before` is what those before it told."""
        x = a.numbers.to(work) if work is not None and a.numbers is not None else None
        y = b.numbers.to(work) if work is not None and b.numbers is not None else None
        if by_bits:
            unlike = a.bits ^ b.bits
            unlike = unlike.view(-1, a.width).any(1) if a.width > 1 else unlike
        elif x is None or y is None:
            return _Tally(differing=len(a.bits) // a.width, first=order.place(first), numeric=False)
        else:
            unlike = (x != y) & ~((x != x) & (y != y))  # NaN is what is not itself
        made = _Tally(differing=int(torch.count_nonzero(unlike)), numeric=x is not None)
        if made.differing:
            _find_first(made, unlike, a, b, order, first, before.first)
        if x is not None and y is not None:
            self._numbers(made, x, y, unlike, before.max_abs)
            _exact_integers(made, a, b, x, y, by_bits=by_bits)
        return made

    def _numbers(self, made: _Tally, x: torch.Tensor, y: torch.Tensor, unlike: torch.Tensor, largest: float) -> None:
        apart = x - y
        sums = [_dot(x), _dot(y), _dot(apart)]
        if not all(map(math.isfinite, sums)):
            x, y, apart = _finite(made, x, y, unlike)
            sums = [_dot(x), _dot(y), _dot(apart)]
        made.square_a, made.square_b, made.square_apart = sums
        if not made.differing:
            return
        size, size_y = apart.abs(), y.abs()
        top = float(size.amax())
        if top * _ROUNDED > largest:
            made.max_abs = _distance(x, y, int(size.argmax()))
        if self._atol or self._rtol:
            made.within = made.within and not bool((size > self._atol + self._rtol * size_y).any())
        scale = x.abs()
        torch.maximum(scale, size_y, out=scale).clamp_(min=torch.finfo(size.dtype).tiny)
        made.max_rel = float(size.div_(scale).amax())


_ROUNDED: Final = 1 + 1e-6
"""How much a distance may have lost to rounding in a narrow dtype."""


def _finite(
    made: _Tally, x: torch.Tensor, y: torch.Tensor, unlike: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Both sides in the widest dtype and their distance, zero where either is not finite, which is counted."""
    finite = torch.isfinite(x) & torch.isfinite(y)
    strange = (unlike != 0) & ~finite
    made.not_finite = int(torch.count_nonzero(strange))
    made.within = not bool((strange & ~(torch.isnan(x) & torch.isnan(y))).any())
    wide = torch.complex128 if x.is_complex() else torch.float64
    x, y = (torch.where(finite, value.to(wide), 0.0) for value in (x, y))
    return x, y, x - y


def _working(forms: tuple[Form, Form], a: _Values, b: _Values) -> torch.dtype | None:
    """The dtype in which both sides are worked on; None where a side is no number."""
    if a.numbers is None or b.numbers is None:
        return None
    rows = [DTYPES[form.dtype] for form in forms]
    number = "complex" if any(row.family == "complex" for row in rows) else "float"
    narrow = rows[0].name == rows[1].name and (
        rows[0].family == "float8" or rows[0].itemsize <= (2 if rows[0].family != "float" else 4)
    )
    if number == "complex":
        return torch.complex64 if rows[0].name == rows[1].name and rows[0].itemsize <= 8 else torch.complex128
    return torch.float32 if narrow else torch.float64


def _values(data: memoryview, form: Form) -> _Values:
    row = DTYPES[form.dtype]
    flat = torch.frombuffer(data, dtype=torch.uint8)
    if form.byteorder != sys.byteorder and row.itemsize > 1:
        flat = flat.clone()
        unit = row.itemsize // (2 if row.family == "complex" else 1)
        flat = flat.view(-1, unit).flip(1).reshape(-1)
    elif flat.data_ptr() % row.itemsize:
        flat = flat.clone()
    width = 2 if row.itemsize == 16 else 1
    integers = flat.view(_BITS[row.itemsize])
    dense = form.stride == contiguous(form.shape) or row.packing > 1
    if dense:
        bits = integers
    else:
        bits = integers.view(-1, width)[:, :].as_strided((*form.shape, width), (*(s * width for s in form.stride), 1))
        bits = bits.reshape(-1)
    if row.family not in _NUMBERS:
        return _Values(bits, None, width)
    numbers = bits.view(dtype_of(form.dtype)) if form.dtype != "bool" else bits.view(torch.bool)
    if "conj" in form.bits:
        numbers = numbers.conj().resolve_conj()
    if "neg" in form.bits:
        numbers = -numbers
    return _Values(bits, numbers, width)


def _block(values: _Values, start: int) -> _Values:
    stop = start + BLOCK
    numbers = None if values.numbers is None else values.numbers[start:stop]
    return _Values(values.bits[start * values.width : stop * values.width], numbers, values.width)


def _dot(values: torch.Tensor) -> float:
    """The sum of squares."""
    flat = torch.view_as_real(values).reshape(-1) if values.is_complex() else values
    return float(torch.dot(flat, flat))


def _square(values: torch.Tensor) -> float:
    """The sum of squares of what is finite."""
    made = _dot(values)
    if math.isfinite(made):
        return made
    wide = values.to(torch.complex128 if values.is_complex() else torch.float64)
    return _dot(torch.where(torch.isfinite(wide), wide, 0.0))


def _distance(x: torch.Tensor, y: torch.Tensor, at: int) -> float:
    """|a - b| of one element, without the rounding of a narrow dtype."""
    return float(abs(x[at].item() - y[at].item()))


def _find_first(
    made: _Tally, unlike: torch.Tensor, a: _Values, b: _Values, order: Order, first: int, before: int
) -> None:
    """Where the first differing element of a block stands in the whole tensor, if that is before `before`."""
    if order.rising:
        if 0 <= before <= order.place(first):
            return
        at = int((unlike != 0).view(torch.uint8).argmax())
        made.first = order.place(first + at)
    else:
        found = unlike.nonzero().flatten()
        rest, places = found + first, torch.full_like(found, order.base)
        for size, step in zip(reversed(order.sizes), reversed(order.steps), strict=True):
            places += (rest % size) * step
            rest = rest // size
        nearest = int(places.argmin())
        at, made.first = int(found[nearest]), int(places[nearest])
    made.values = (_item(a, at), _item(b, at))


def _item(values: _Values, at: int) -> Any:
    if values.numbers is None:
        return int(values.bits[at * values.width])
    one = values.numbers[at]
    return (one.float() if DTYPES[str(one.dtype).removeprefix("torch.")].family == "float8" else one).item()


def _exact_integers(made: _Tally, a: _Values, b: _Values, x: torch.Tensor, y: torch.Tensor, *, by_bits: bool) -> None:
    """The largest distance of 64-bit integers that have no float64 of their own."""
    dtype = a.numbers.dtype if a.numbers is not None else None
    if not (made.differing and by_bits and dtype in (torch.int64, torch.uint64)):
        return
    if max(float(x.abs().max()), float(y.abs().max())) < _EXACT:
        return
    shift = torch.iinfo(torch.int64).min if dtype == torch.uint64 else 0
    one, other = a.bits ^ shift, b.bits ^ shift
    apart = torch.maximum(one, other) - torch.minimum(one, other)  # wraps beyond 2**63
    wrapped = apart[apart < 0]
    made.max_abs = float(int(wrapped.max()) + (1 << 64)) if len(wrapped) else float(int(apart.max()))
