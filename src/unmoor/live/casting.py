"""Numbers in another dtype, piece by piece, by torch's own arithmetic (`Tensor.to`), and what that loses.

Nothing is decided here. What is counted: values that changed, the largest change in proportion, finite values that
became infinite or no number, values that became zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import Final

import torch

from unmoor.values.dtypes import is_exact_cast

__all__ = ["Loss", "cast_bytes", "cast_tensor"]

_BLOCK: Final = 1 << 15
"""Elements that are cast at a time: as many as torch gives to one thread."""


@dataclass(slots=True)
class Loss:
    """What a cast lost so far, over all pieces of one storage. Pieces may come from several threads."""

    elements: int = 0
    changed: int = 0
    largest: float = 0.0
    beyond: int = 0
    zeroed: int = 0
    _lock: Lock = field(default_factory=Lock, repr=False)

    def count(self, elements: int) -> None:
        """Count so many values that any dtype of the kind holds."""
        with self._lock:
            self.elements += elements

    def add(self, source: torch.Tensor, result: torch.Tensor) -> None:
        """Count what `result` lost of `source`."""
        back = result.to(source.dtype)
        if source.itemsize < 4:  # half numbers do not hold sums of many
            source, back = source.float(), back.float()
        changed, largest, beyond, zeroed = _usual(source, back) or _told_apart(source, back)
        with self._lock:
            self.elements += source.numel()
            self.changed += changed
            self.largest = max(self.largest, largest)
            self.beyond += beyond
            self.zeroed += zeroed


def _usual(source: torch.Tensor, back: torch.Tensor) -> tuple[int, float, int, int] | None:
    """The counts where every value is finite and none vanished: without picking values out. None for other values."""
    away = (back - source).abs_()
    if not bool(torch.isfinite(away.sum())):
        return None
    changed = int(torch.count_nonzero(away))
    if not changed:
        return 0, 0.0, 0, 0
    tiny = torch.finfo(source.dtype).tiny
    largest = float(away.div_(source.abs().clamp_min_(tiny)).max())
    return (changed, largest, 0, 0) if largest < 1 else None


def _told_apart(source: torch.Tensor, back: torch.Tensor) -> tuple[int, float, int, int]:
    differs = back != source
    differs &= source == source  # NaN stays what it is, and equals nothing
    changed = int(differs.sum())
    return (changed, *(_degree(source[differs], back[differs]) if changed else (0.0, 0, 0)))


def _degree(before: torch.Tensor, after: torch.Tensor) -> tuple[float, int, int]:
    """The largest change in proportion of values that stayed finite and did not vanish; how many did not."""
    lost = ~torch.isfinite(after)
    gone = after == 0
    kept = ~(lost | gone)
    if not bool(kept.all()):
        before, after = before[kept], after[kept]
    largest = float(((after.double() - before.double()) / before.double()).abs().max()) if before.numel() else 0.0
    return largest, int(lost.sum()), int(gone.sum())


def cast_tensor(tensor: torch.Tensor, dtype: str, loss: Loss) -> torch.Tensor:
    """The tensor in another dtype, of the same strides where it is dense; `loss` counts what is lost."""
    made = torch.empty_like(tensor, dtype=getattr(torch, dtype))
    _cast(_flat(tensor), _flat(made), loss)
    return made


def cast_bytes(source: memoryview, before: str, target: memoryview, after: str, loss: Loss) -> None:
    """Fill `target` with the numbers of `source` in another dtype. Neither need be aligned."""
    numbers, place = _numbers(source, before), torch.frombuffer(target, dtype=torch.uint8)
    aligned = place.data_ptr() % getattr(torch, after).itemsize == 0
    made = (place if aligned else torch.empty_like(place)).view(getattr(torch, after))
    _cast(numbers, made, loss)
    if not aligned:
        place.copy_(made.view(torch.uint8))


def _cast(source: torch.Tensor, target: torch.Tensor, loss: Loss) -> None:
    """Cast block by block: one is not worth torch's threads, beside those that call this, and stays in the cache."""
    exact = is_exact_cast(*(str(tensor.dtype).removeprefix("torch.") for tensor in (source, target)))
    for first in range(0, len(source), _BLOCK):
        part, made = source[first : first + _BLOCK], target[first : first + _BLOCK]
        made.copy_(part)
        if not exact:
            loss.add(part, made)
    if exact:
        loss.count(len(source))


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """All elements of a dense tensor in the order in which they lie."""
    return tensor.as_strided((tensor.numel(),), (1,))


def _numbers(data: memoryview, name: str) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, name)
    flat = torch.frombuffer(data, dtype=torch.uint8)
    return (flat if flat.data_ptr() % dtype.itemsize == 0 else flat.clone()).view(dtype)
