"""While processes of ours run, SIGTERM ends this one as Ctrl-C does: neither a process nor a folder is left behind."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

__all__ = ["ended_in_order"]


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Make SIGTERM an exception; where the caller has a handler, or this is not the main thread, nothing changes."""
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _end(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)
