"""A progress bar on stderr for work that takes over a second: bytes, rate, time left. Quick work shows none."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Final

from unmoor.values.text import format_bytes

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Bar", "bar"]

QUICK: Final = 1.0
"""Work that is over after so many seconds shows no bar."""


class Bar:
    """Takes the bytes that were done since the last call, from any thread; shows them once the work is not quick.

    `total` may be set at any time: the verbs that learn how much there is to do only when they have begun say so then.
    """

    def __init__(self, title: str, total: int | None, *, shown: bool) -> None:
        self.title, self.total, self._done, self._shown = title, total, 0, shown
        self._begin, self._lock = time.monotonic(), Lock()
        self._progress: Progress | None = None

    def __call__(self, nbytes: int) -> None:
        """Count `nbytes` more as done."""
        with self._lock:
            self._done += nbytes
            elapsed = time.monotonic() - self._begin
            if self._progress is None and self._shown and elapsed > QUICK:
                self._progress = _drawn(self.title, elapsed)
            if self._progress is not None:
                self._show(self._progress, elapsed)

    def _show(self, progress: Progress, elapsed: float) -> None:
        rate = f"{format_bytes(int(self._done / elapsed))}/s"
        progress.update(progress.task_ids[0], completed=self._done, total=self.total, rate=rate)
        progress.start()

    def close(self) -> None:
        """Take the bar off the screen."""
        with self._lock:
            if self._progress is not None:
                self._progress.stop()
            self._shown, self._progress = False, None


@contextmanager
def bar(title: str, total: int | None = None) -> Iterator[Bar]:
    """A bar titled `title` for work of `total` bytes; it shows on a terminal only, and goes when the work is over."""
    made = Bar(title, total, shown=sys.stderr.isatty() and os.environ.get("TERM") != "dumb")
    try:
        yield made
    finally:
        made.close()


def _drawn(title: str, elapsed: float) -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True, no_color=bool(os.environ.get("NO_COLOR")) or None)
    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
        transient=True,
        get_time=lambda: time.monotonic(),
    )
    progress.add_task(title, total=None, start=False, rate="")
    progress.tasks[0].start_time = progress.get_time() - elapsed
    return progress
