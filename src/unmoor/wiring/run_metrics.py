"""Numbers that a run logs, until a checkpoint holds them: the last value of each name, and when it was measured."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from unmoor.errors import UsageError

__all__ = ["Metrics"]


class Metrics:
    """The metrics for the next save. A save that fails gives back what it took; threads do so too."""

    def __init__(self) -> None:
        self._values: dict[str, float | int] = {}
        self._at: dict[str, int] = {}
        self._lock = threading.Lock()

    @property
    def values(self) -> dict[str, float | int]:
        """What the next save holds."""
        with self._lock:
            return dict(self._values)

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Keep metrics of the state after `step` steps. Raises UsageError, with nothing kept, for what is no number."""
        made = {name: _plain(value) for name, value in metrics.items()}
        wrong = [f"{name}={metrics[name]!r}"[:80] for name, value in made.items() if value is None]
        if wrong:
            raise UsageError(
                f"log was given what is no number: {', '.join(wrong)}",
                remedy="Pass ints, floats, or tensors of one element.",
            )
        with self._lock:
            self._values |= {name: value for name, value in made.items() if value is not None}
            self._at |= dict.fromkeys(made, step)

    def logged_at(self) -> dict[str, int]:
        """The step after which each was measured."""
        with self._lock:
            return {name: self._at[name] for name in self._values}

    def clear(self) -> None:
        """Begin anew: a save holds them."""
        with self._lock:
            self._values = {}

    def give_back(self, values: Mapping[str, float | int], at: Mapping[str, int]) -> None:
        """Take what a save that came to nothing had held; what was logged since goes before it."""
        with self._lock:
            self._at = {**at, **{name: step for name, step in self._at.items() if name in self._values}}
            self._values = {**values, **self._values}


def _plain(value: Any) -> float | int | None:
    """A number as Python has it; None for what is none."""
    if not isinstance(value, int | float) and callable(getattr(value, "item", None)):
        try:
            value = value.item()
        except (RuntimeError, ValueError, TypeError):
            return None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
