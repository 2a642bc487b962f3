"""What looking at a file may cost, measured in this process: seconds of CPU, and memory at its highest.

The promise: at most 2 s of CPU and 64 MiB beyond the file for a file of 1 MiB, and in proportion for smaller ones.
"""

from __future__ import annotations

import gc
import os
import time
import tracemalloc
from collections.abc import Callable
from typing import Any, NamedTuple

from unmoor.errors import UnmoorError

__all__ = ["LONG", "MIB", "Cost", "answer", "cost"]

MIB = 1 << 20
LONG = os.environ.get("UNMOOR_HOSTILE") == "long"
"""Whether everything is tried with everything, and bombs have a mebibyte; else each with a part, in a minute."""

_SLACK_BYTES = 6 * MIB
_SLACK_SECONDS = 0.5
_ENDLESS = 30


class Cost(NamedTuple):
    """What a call gave (a value, or the error of this package that it raised), and what it took."""

    outcome: Any
    seconds: float
    peak: int

    def faults(self, nbytes: int) -> list[str]:
        """Which bounds were broken, for a file of `nbytes`.

        A slow machine has four times the seconds; while memory is followed only what never ends is told by them.
        """
        share = max(nbytes, 1) / MIB
        most = 64 * MIB * share + nbytes + _SLACK_BYTES
        longest = 4 * (2 * share + _SLACK_SECONDS) if LONG else _ENDLESS
        found = [f"{self.peak / MIB:.1f} MiB, {most / MIB:.1f} allowed"] if self.peak > most else []
        return found + ([f"{self.seconds:.2f} s, {longest:.2f} allowed"] if self.seconds > longest else [])


def answer(call: Callable[[], Any]) -> Any:
    """What a call gives, or the error of this package that it raises; any other error is a fault, and passes."""
    try:
        return call()
    except UnmoorError as error:
        return error


def cost(call: Callable[[], Any]) -> Cost:
    """A call and what it takes. Following its memory slows it: in the long form its time is that of another run."""
    gc.collect()
    tracemalloc.start()
    begin = time.process_time()
    try:
        outcome = answer(call)
        seconds, peak = time.process_time() - begin, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if LONG:
        begin = time.process_time()
        answer(call)
        seconds = time.process_time() - begin
    return Cost(outcome, seconds, peak)
