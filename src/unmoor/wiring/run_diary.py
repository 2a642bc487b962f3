"""What happened in a run, in order, and what its user has still to be warned of.

Threads write it too. Warnings are given by the thread that runs the loop: where one is an error, it is one there.
"""

from __future__ import annotations

import threading
import warnings
from collections import deque
from typing import Final

from unmoor.values.run_events import Event

__all__ = ["Diary"]

_MOST: Final = 10_000
"""Events that are kept; the oldest go."""


class Diary:
    """The events of a run. `step` is the number of steps done, which the next event bears.

    `quiet` warns of nothing: of many ranks one speaks.
    """

    def __init__(self) -> None:
        self.step = 0
        self.quiet = False
        self._events: deque[Event] = deque(maxlen=_MOST)
        self._untold: list[Event] = []
        self._lock = threading.Lock()

    @property
    def events(self) -> tuple[Event, ...]:
        """All that happened, in order."""
        with self._lock:
            return tuple(self._events)

    def note(self, kind: str, message: str, *, path: str = "", step: int | None = None, warn: bool = False) -> None:
        """Write down what happened; `warn` has the user told of it at the next `tell`."""
        event = Event(kind, self.step if step is None else step, message, path, warned=warn)
        with self._lock:
            self._events.append(event)
            self._untold += [event] if warn else []

    def tell(self) -> None:
        """Warn the user of what he was not told yet."""
        with self._lock:
            untold, self._untold = self._untold, []
        for event in () if self.quiet else untold:
            warnings.warn(f"unmoor.Run: {event.message}", UserWarning, stacklevel=2)
