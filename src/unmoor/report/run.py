"""A run as text: how far it is, what it saved, what went wrong. Pure: values in, words out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from unmoor.values.listing import Saved
from unmoor.values.run_events import Event
from unmoor.values.run_policy import Policy
from unmoor.values.text import columns, count

__all__ = ["run_text"]

_SHOWN: Final = 5
"""Warnings that are shown."""


def run_text(
    path: str,
    policy: Policy,
    *,
    step: int,
    total: int | None,
    ending: str,
    last: Saved | None,
    kept: Sequence[Saved],
    events: Sequence[Event],
) -> str:
    """How far a run is, what it saved last, what is kept, and what its user was warned of."""
    of = f" of {total:,}" if total is not None else ""
    rows = [["saves", _saves(policy)], ["last", _last(last)]]
    rows += [["kept", f"{count(len(kept), 'checkpoint')}, {_steps(kept)}"]] if kept else []
    warned = [event for event in events if event.warned]
    for number, event in enumerate(warned[-_SHOWN:]):
        rows.append(["" if number else "warned", str(event)])
    if len(warned) > _SHOWN:
        rows.append(["", f"and {count(len(warned) - _SHOWN, 'earlier warning')} in run.events"])
    return "\n".join([f"{path}: {f'{ending} at ' if ending else ''}step {step:,}{of}", *columns(rows)])


def _saves(policy: Policy) -> str:
    behind = {"no": "", "wait": ", behind the run", "skip": ", behind the run where none is being written"}
    often = f"every {policy.every.text}" if policy.every.text != "never" else "none but at the end"
    return often + behind[policy.background]


def _last(last: Saved | None) -> str:
    if last is None:
        return "nothing"
    said = {True: "verified", False: "does not hold", None: "not verified yet"}[last.verified]
    metrics = "".join(f", {name} {value:.6g}" for name, value in sorted(last.metrics.items()))
    return f"{last.name} ({said}){metrics}"


def _steps(kept: Sequence[Saved]) -> str:
    steps = [f"{row.step:,}" for row in kept if row.step is not None]
    shown = steps if len(steps) <= 8 else [*steps[:3], "...", *steps[-4:]]
    return f"steps {', '.join(shown)}" if len(steps) > 1 else f"step {steps[0]}" if steps else "of no known step"
