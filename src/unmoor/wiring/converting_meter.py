"""Who hears how a conversion goes: how much there is to write, and how much of it is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Meter"]


def _nobody(_: int) -> None:
    """Hears a number and does nothing."""


@dataclass(frozen=True, slots=True)
class Meter:
    """`total` hears once how many bytes will be written, `progress` how many were since its last call."""

    progress: Callable[[int], None] | None = None
    total: Callable[[int], None] = _nobody
