"""Diagnose a live run, and move a batch: the calls of their stages in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from unmoor.diagnose.run import devices_of, judge_run, looked_at
from unmoor.errors import ArgumentConflict
from unmoor.live.moving import move
from unmoor.live.run_facts import NOTHING, collect_run
from unmoor.report.diagnosis import diagnosis_text
from unmoor.values.diagnosis import Diagnosis

__all__ = ["diagnose_run", "move_batch"]


def diagnose_run(roles: Mapping[str, Any], batch: Any, *, rng: Any, values: bool) -> Diagnosis:
    """The findings about the objects by role, and a batch; `batch` is ... where there is none."""
    given = {role: value for role, value in roles.items() if value is not None}
    facts = collect_run(given, NOTHING if batch is ... else batch, rng=rng, values=values)
    found = Diagnosis(judge_run(facts), looked_at(facts), devices_of(facts), facts.unseen)
    return replace(found, text=diagnosis_text(found))


def move_batch(batch: Any, *, like: Any, device: Any, non_blocking: bool, keep: str | Sequence[str]) -> Any:
    """The batch on a device, or on that of `like`."""
    names = (keep,) if isinstance(keep, str) else tuple(keep)
    if not all(isinstance(name, str) for name in names):
        raise ArgumentConflict(f"keep={keep!r} holds what is no key", remedy='Pass keys: keep=("lengths",).')
    return move(batch, device=device, like=like, non_blocking=non_blocking, keep=names)
