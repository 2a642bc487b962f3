"""A process that ends with the one that waits for it, however that ends: nothing goes on that nobody will see."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Final

__all__ = ["end_with"]

_PARENT_DEATH: Final = 1
"""prctl's PR_SET_PDEATHSIG."""
_LOOK: Final = 1.0
"""Seconds between two looks where the system does not tell."""


def end_with(parent: int) -> None:
    """Be ended when the thread that started this process is, which process `parent` has; at once if it is gone.

    Windows names as the parent of a process what a virtual environment starts it through: there nothing is done.
    """
    if os.name != "posix":
        return
    told = False
    if sys.platform.startswith("linux"):
        with suppress(OSError, AttributeError):
            told = ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGKILL) == 0
    if os.getppid() != parent:
        os._exit(1)
    if not told:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os._exit(1)
