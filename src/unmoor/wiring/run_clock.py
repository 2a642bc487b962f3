"""The clocks of a run: one that never goes back, by which it saves, and that of the wall, which nothing goes by."""

from __future__ import annotations

import time

__all__ = ["now", "wall"]


def now() -> float:
    """Seconds since some moment; setting the clock of the machine does not change it."""
    return time.monotonic()


def wall() -> float:
    """Seconds since 1970, for people."""
    return time.time()
