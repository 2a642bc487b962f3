"""Work in the background lets the run go first, where the system knows how."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from typing import Final

__all__ = ["step_back"]

_NICE: Final = 12
"""Beside a thread that wants all of a processor, one that has stepped back gets about a fifteenth of it."""


def step_back() -> None:
    """Have the calling thread, and what it starts from now on, yield to the rest of the process. There is no way back.

    Linux alone knows this of a thread; its priority there is its own.
    """
    if sys.platform.startswith("linux"):
        me = threading.get_native_id()
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, me, os.getpriority(os.PRIO_PROCESS, me) + _NICE)
