"""Numbers in another dtype, piece by piece, by torch's own arithmetic (`Tensor.to`), and what that loses.

Nothing is decided here. What is counted: values that changed, the largest change in proportion, finite values that
became infinite or no number, values that became zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock

import torch

from unmoor.values.dtypes import is_exact_cast

__all__ = ["Loss", "cast_bytes", "cast_tensor"]


@dataclass(slots=True)
class Loss:
    """What a cast lost so far, over all pieces of one storage. Pieces may come from several threads."""

    elements: int = 0
    changed: int = 0
    largest: float = 0.0
    beyond: int = 0
    zeroed: int = 0
    _lock: Lock = field(default_factory=Lock, repr=False)

    def add(self, source: torch.Tensor, result: torch.Tensor) -> None:
        """Count what `result` lost of `source`."""
        back = result.to(source.dtype)
        differs = back != source
        differs &= source == source
        changed = int(differs.sum())
        largest, beyond, zeroed = _degree(source[differs], back[differs]) if changed else (0.0, 0, 0)
        with self._lock:
            self.elements += source.numel()
            self.changed += changed
            self.largest = max(self.largest, largest)
            self.beyond += beyond
            self.zeroed += zeroed


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
    before = str(tensor.dtype).removeprefix("torch.")
    made = tensor.to(getattr(torch, dtype))
    if is_exact_cast(before, dtype):
        loss.elements += tensor.numel()
    else:
        loss.add(tensor, made)
    return made


def cast_bytes(source: memoryview, before: str, target: memoryview, after: str, loss: Loss) -> None:
    """Fill `target` with the numbers of `source` in another dtype. Neither need be aligned."""
    numbers = _aligned(source, getattr(torch, before))
    made = cast_tensor(numbers, after, loss)
    torch.frombuffer(target, dtype=torch.uint8).copy_(made.view(torch.uint8))


def _aligned(data: memoryview, dtype: torch.dtype) -> torch.Tensor:
    flat = torch.frombuffer(data, dtype=torch.uint8)
    return (flat if flat.data_ptr() % dtype.itemsize == 0 else flat.clone()).view(dtype)
