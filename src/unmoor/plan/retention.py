"""Which checkpoints of a run may go. Pure: rows of a listing in, names out.

The law: nothing goes while no verified checkpoint would be left that is newer than it, and the newest verified one
never does.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from unmoor.values.listing import Saved
from unmoor.values.progress import is_name_of_run
from unmoor.values.run_policy import Best, Keep

__all__ = ["best_of", "expendable", "is_new_best", "is_own", "metric_of"]


def is_own(row: Saved) -> bool:
    """Whether a run wrote it. A broken one is told by its name, for it has no number that could be read."""
    return row.number > 0 or (not row.complete and is_name_of_run(row.name))


def expendable(
    rows: Sequence[Saved], keep: Keep, protected: Collection[str], *, interrupted: Collection[str] = ()
) -> tuple[str, ...]:
    """The names of the checkpoints that `keep` has no use for, oldest first.

    Only what a run wrote is looked at: rows with a number, or with such a name if they are broken. `interrupted` are
    the names of those that hold the state within a step; of them, and of those that cannot be resumed from, a verified
    one of the same step or a later one takes the place. `protected` names stay whatever the policy says.
    """
    if keep.last is None:
        return ()
    ours = sorted(filter(is_own, rows), key=lambda row: row.number)
    sound = [row for row in ours if row.complete and row.verified is not False and row.name not in interrupted]
    verified = [row for row in sound if row.verified]
    if not verified:
        return ()
    staying = {*protected, verified[-1].name, *_chosen(sound, verified, keep)}
    going = [row for row in sound if row.name not in staying]
    broken = [row for row in ours if row not in sound and row.name not in protected]
    newest_half = max((row.number for row in broken if row.name in interrupted), default=0)
    for row in broken:
        replaced = any(other.number > row.number and _step(other) >= _step(row) for other in verified)
        older_half = row.name in interrupted and row.number < newest_half
        going += [row] if replaced or older_half else []
    return tuple(row.name for row in sorted(going, key=lambda row: row.number))


def best_of(rows: Sequence[Saved], best: Best) -> list[Saved]:
    """The rows that a row of keep_best keeps, the best first; of equal ones the newer."""
    sign = 1.0 if best.mode == "min" else -1.0
    measured = [row for row in rows if metric_of(row.metrics, best.metric) is not None]
    ranked = sorted(measured, key=lambda row: (sign * (metric_of(row.metrics, best.metric) or 0.0), -row.number))
    return ranked[: best.count]


def is_new_best(metrics: Mapping[str, Any], rows: Sequence[Saved], keep: Keep) -> bool:
    """Whether a checkpoint with these metrics would be among the best of those there are."""
    for best in keep.best:
        value = metric_of(metrics, best.metric)
        if value is None:
            continue
        kept = best_of([row for row in rows if row.number > 0 and row.complete], best)
        worst = metric_of(kept[-1].metrics, best.metric) if len(kept) >= best.count else None
        if worst is None or best.better(value, worst):
            return True
    return False


def metric_of(metrics: Mapping[str, Any], name: str) -> float | None:
    """The value of a metric as a number; None where there is none, or it is not a number."""
    value = metrics.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return None
    return float(value)


def _chosen(sound: Sequence[Saved], verified: Sequence[Saved], keep: Keep) -> set[str]:
    """What the policy keeps: everything from the last-th newest verified one on, the best, the first of each span.

    Those that nobody has verified are kept as long as fewer than `last` verified ones are newer.
    """
    last = verified[-(keep.last or 1) :]
    oldest = last[0].number if len(last) == keep.last else 0
    names = {row.name for row in sound if row.number >= oldest}
    for best in keep.best:
        names |= {row.name for row in best_of(verified, best)}
    if keep.every is not None:
        first: dict[int, Saved] = {}
        for row in verified:
            span = _step(row) // keep.every
            if span and (span not in first or _step(row) < _step(first[span])):
                first[span] = row
        names |= {row.name for row in first.values()}
    return names


def _step(row: Saved) -> int:
    return row.step or 0
