"""Signals that end a run: noted when they come, answered at the end of the step.

Handlers are there while the loop runs, and those of the user come back afterwards. They are called too: once the save
is made, or at once where a second SIGINT comes. What the user has the system ignore is left alone.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final

__all__ = ["NAMES", "Signals"]

NAMES: Final = ("SIGTERM", "SIGINT", "SIGUSR1")
"""What ends a run: job schedulers, spot machines, containers and people send these."""


class Signals:
    """The signals that came while the loop ran, in order. `at_once`: a second SIGINT interrupted the step."""

    def __init__(self) -> None:
        self.caught: list[int] = []
        self.at_once = False
        self._before: dict[int, Any] = {}
        self._process = os.getpid()

    @property
    def first(self) -> str:
        """The name of the first signal that came, "" for none."""
        return signal.Signals(self.caught[0]).name if self.caught else ""

    @contextmanager
    def heard(self) -> Iterator[bool]:
        """Hear them inside of the block; gives False where that cannot be: in any thread but the main one."""
        self.caught, self.at_once, self._before, self._process = [], False, {}, os.getpid()
        if threading.current_thread() is not threading.main_thread():
            yield False
            return
        ours = self._came
        for name in NAMES:
            number = getattr(signal, name, None)
            before = signal.getsignal(number) if number is not None else None
            if number is not None and before is not None and before is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, ours)
        try:
            yield True
        finally:
            for number, before in self._before.items():
                if signal.getsignal(number) == ours:
                    with suppress(ValueError):  # let go of by another thread
                        signal.signal(number, before)

    def pass_on(self) -> None:
        """Call the user's own handlers of the signals that came, in their order."""
        for number in self.caught:
            before = self._before.get(number)
            if callable(before) and before is not signal.default_int_handler:
                before(number, None)

    def _came(self, number: int, frame: FrameType | None) -> None:
        again = number == signal.SIGINT and number in self.caught
        if os.getpid() != self._process:
            self._came_in_child(number, frame, again=again)
            return
        if again:
            self.at_once = True
            self._as_before(number, frame)
        elif number not in self.caught:
            self.caught.append(number)

    def _came_in_child(self, number: int, frame: FrameType | None, *, again: bool) -> None:
        """In a process that was forked from the loop, as workers of a loader are.

        What a terminal or a scheduler sends reaches them too: they outlive it, so that the step can be ended. SIGTERM
        is how their parent ends them.
        """
        if number == signal.SIGTERM or again:
            self._as_before(number, frame)
        elif number == signal.SIGINT:
            self.caught.append(number)

    def _as_before(self, number: int, frame: FrameType | None) -> None:
        before: Callable[[int, FrameType | None], Any] | int | None = self._before.get(number)
        if callable(before):
            before(number, frame)
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
