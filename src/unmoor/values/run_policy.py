"""When a run saves, what it keeps, and how it ends: what a caller asks for in words, as frozen values.

Pure: words in, values or a UsageError out. Must not know torch, nor files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from unmoor.errors import UsageError

from .text import count, is_text

__all__ = [
    "BACKGROUNDS",
    "ON_EXCEPTION",
    "ON_SIGNAL",
    "UNITS",
    "Best",
    "Every",
    "Keep",
    "Policy",
    "parse_every",
    "parse_keep",
    "parse_policy",
    "whole_number",
]

UNITS: Final = {
    "step": 0.0, "steps": 0.0,
    "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0,
    "m": 60.0, "min": 60.0, "mins": 60.0, "minute": 60.0, "minutes": 60.0,
    "h": 3600.0, "hr": 3600.0, "hour": 3600.0, "hours": 3600.0,
    "d": 86400.0, "day": 86400.0, "days": 86400.0,
}  # fmt: skip
"""Words behind a number -> seconds; 0 for steps."""

BACKGROUNDS: Final = {False: "no", True: "wait", "wait": "wait", "skip": "skip"}
ON_EXCEPTION: Final = ("save", "leave")
ON_SIGNAL: Final = ("exit", "return")

_AMOUNT: Final = re.compile(r"\s*(\d[\d_,]*(?:\.\d+)?)\s*([a-zA-Z]+)\s*")
_EVERY: Final = 'every=1000, "1000 steps", "15min", "1h", ("1000 steps", "1h"), or None'
_BEST: Final = 'keep_best=("val_loss", "min", 2): the metric, "min" or "max", and how many'


@dataclass(frozen=True, slots=True)
class Every:
    """How often a run saves: every so many `steps`, every so many `seconds`, at a new `best`; None and False: not so.

    `text` is how it was asked for.
    """

    steps: int | None = None
    seconds: float | None = None
    best: bool = False
    text: str = "never"


@dataclass(frozen=True, slots=True)
class Best:
    """The `count` checkpoints with the smallest ("min") or largest ("max") value of a metric."""

    metric: str
    mode: str
    count: int

    def better(self, one: float, other: float) -> bool:
        """Whether one value is better than another; one that is no number never is."""
        return not math.isnan(one) and (math.isnan(other) or (one < other if self.mode == "min" else one > other))


@dataclass(frozen=True, slots=True)
class Keep:
    """Which checkpoints stay: the newest `last`, the `best`, the first of every `every` steps. `last` None: all."""

    last: int | None = None
    best: tuple[Best, ...] = ()
    every: int | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """All of it. `background` is no, wait or skip."""

    every: Every
    keep: Keep
    background: str
    on_exception: str
    on_signal: str
    exit_code: int


def parse_policy(
    *, every: Any, keep: Keep, background: Any, on_exception: Any, on_signal: Any, exit_code: Any
) -> Policy:
    """The policy that was asked for. Raises UsageError for what cannot be meant."""
    asked = parse_every(every)
    if asked.best and not keep.best:
        raise UsageError('every="best" saves at a new best, and no keep_best says of what', remedy=_BEST)
    if not isinstance(background, bool | str) or background not in BACKGROUNDS:
        raise UsageError(f"background={background!r} is none of {', '.join(map(repr, BACKGROUNDS))}")
    for word, value, choices in (("on_exception", on_exception, ON_EXCEPTION), ("on_signal", on_signal, ON_SIGNAL)):
        if value not in choices:
            raise UsageError(f"{word}={value!r} is none of {', '.join(map(repr, choices))}")
    if isinstance(exit_code, bool) or not isinstance(exit_code, int) or not 0 <= exit_code <= 255:
        raise UsageError(f"exit_code={exit_code!r} is no exit code", remedy="Pass a whole number from 0 to 255.")
    return Policy(asked, keep, BACKGROUNDS[background], on_exception, on_signal, exit_code)


def parse_every(value: Any) -> Every:
    """How often to save.

    >>> parse_every("15min").seconds, parse_every(500).steps, parse_every(("1_000 steps", "1.5h")).seconds
    (900.0, 500, 5400.0)
    """
    if value is None:
        return Every()
    found = [_one(item, value) for item in (value if isinstance(value, tuple | list) else (value,))]
    kinds = [kind for kind, _ in found]
    if not found or len(set(kinds)) != len(kinds):
        raise UsageError(
            f"every={value!r} names {'no interval' if not found else 'two intervals of one kind'}",
            remedy=f"Give one number of steps, one time, or one of both: {_EVERY}.",
        )
    amounts = dict(found)
    steps, seconds = amounts.get("steps"), amounts.get("seconds")
    parts = [count(int(steps), "step")] if steps is not None else []
    parts += [_span(seconds)] if seconds is not None else []
    parts += ["new best"] if "best" in amounts else []
    return Every(None if steps is None else int(steps), seconds, "best" in amounts, " and every ".join(parts))


def parse_keep(*, last: Any, best: Any, every: Any) -> Keep:
    """Which checkpoints are to stay. Raises UsageError for what cannot be meant."""
    if last is not None and not _is_count(last):
        raise UsageError(
            f"keep_last={last!r} is no number of checkpoints",
            remedy="Pass a whole number, 1 or more, or None to keep all: the newest is never deleted.",
        )
    rows = _rows(best)
    names = [row.metric for row in rows]
    if len(set(names)) != len(names):
        raise UsageError(f"keep_best={best!r} names one metric twice", remedy=f"Once each: {_BEST}.")
    kept = None
    if every is not None:
        kind, amount = _one(every, every, "keep_every")
        if kind != "steps":
            raise UsageError(f"keep_every={every!r} is no number of steps", remedy='keep_every="10000 steps"')
        kept = int(amount)
    return Keep(None if last is None else int(last), rows, kept)


def whole_number(value: Any) -> int | None:
    """A whole number of any integer type as an int; None for what is none. Truth values are none."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    try:
        return int(value.__index__())
    except TypeError:
        return None


def _rows(best: Any) -> tuple[Best, ...]:
    """One row, or a list of rows."""
    if best is None:
        return ()
    many = best if isinstance(best, list) else [best]
    return tuple(map(_row, many))


def _row(row: Any) -> Best:
    metric, mode, number = (*row, 1)[:3] if isinstance(row, tuple) and len(row) in (2, 3) else (None, None, None)
    if not isinstance(metric, str) or not metric or not is_text(metric) or mode not in ("min", "max"):
        raise UsageError(f"keep_best={row!r} names no metric and its direction", remedy=f"Write {_BEST}.")
    if not _is_count(number):
        raise UsageError(f"keep_best={row!r}: {number!r} is no number of checkpoints", remedy=f"Write {_BEST}.")
    return Best(metric, mode, int(number))


def _is_count(value: Any) -> bool:
    return (whole_number(value) or 0) >= 1


def _one(item: Any, whole: Any, word: str = "every") -> tuple[str, float]:
    """Kind and amount of one interval."""
    steps = whole_number(item)
    if steps is not None and steps >= 1:
        return "steps", steps
    if isinstance(item, timedelta) and item > timedelta(0):
        return "seconds", item.total_seconds()
    if item == "best" and word == "every":
        return "best", 1
    match = _AMOUNT.fullmatch(item) if isinstance(item, str) else None
    unit = UNITS.get(match[2].lower()) if match else None
    amount = float(re.sub("[_,]", "", match[1])) if match else 0.0
    if unit is None or not 0 < amount < math.inf or (not unit and amount != int(amount)):
        raise UsageError(f"{word}={whole!r}: {_why(item, match)}", remedy=f"Write {_EVERY}.")
    return ("seconds", amount * unit) if unit else ("steps", amount)


def _why(item: Any, match: re.Match[str] | None) -> str:
    if match is not None and match[2].lower().startswith("epoch"):
        return "steps are whatever run.steps counts; where it counts epochs, write a bare number"
    if match is not None and match[2].lower() not in UNITS:
        return f"{match[2]!r} is none of {', '.join(_spelled())}"
    if isinstance(item, str) and item.strip().replace(".", "", 1).isdigit():
        return f"{item!r} has no unit, which may be {', '.join(_spelled())}"
    return f"{item!r} is no interval"


def _spelled() -> Iterable[str]:
    return ("steps", "s", "min", "h", "d")


def _span(seconds: float) -> str:
    """Seconds in the largest unit that tells them exactly."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
