"""Two recordings of a run held against each other: marks, losses, batches. Pure.

Exact: digests. Else what is no bit may differ by rounding: tensors of a component within a tolerance of their common
norm, as their sketches tell, numbers within the same; everything else by its digest still.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from unmoor.values.proof import ABSENT
from unmoor.values.recording import Batch, Mark, Moment, State

__all__ = ["Compare", "Row", "losses", "rows_of"]

_LATE: Final = "(not persistent)"
_SHOWN: Final = 4


@dataclass(frozen=True, slots=True)
class Row:
    """One thing of a component on both sides, as text, and whether it is equal, within the tolerance, or different."""

    name: str
    here: str
    there: str
    verdict: str


@dataclass(frozen=True, slots=True)
class Compare:
    """How much may differ."""

    exact: bool
    tolerance: float = 0.0

    def loss(self, here: Sequence[Moment], there: Sequence[Moment]) -> str:
        """The losses of a step: of each rank where there are as many, else their means."""
        ours, theirs = _losses(here), _losses(there)
        if len(ours) == len(theirs) and all(_alike(a, b) for a, b in zip(ours, theirs, strict=True)):
            return "equal"
        if self.exact or not ours or not theirs:
            return "different"
        a, b = _mean(ours), _mean(theirs)
        return "within" if abs(a - b) <= self.tolerance * max(abs(b), 1e-12) else "different"

    def batches(self, here: Sequence[Moment], there: Sequence[Moment]) -> tuple[str, str] | None:
        """Both sides as text where a step drew other batches; None where it drew the same.

        Over another number of ranks each sample counts once, on whichever rank it was.
        """
        ours, theirs = [_drawn(moment) for moment in here], [_drawn(moment) for moment in there]
        if len(ours) == len(theirs):
            pairs = [
                (a, b) for a, b in zip(ours, theirs, strict=True) if [x.digest for x in a] != [x.digest for x in b]
            ]
            return None if not pairs else _told(*pairs[0])
        one, other = [b for rank in ours for b in rank], [b for rank in theirs for b in rank]
        counted, wanted = Counter(s for b in one for s in b.samples), Counter(s for b in other for s in b.samples)
        if counted == wanted:
            return None
        if counted.total() != wanted.total():
            return f"{counted.total()} samples over {len(ours)} ranks", f"{wanted.total()} samples over {len(theirs)}"
        return _told(one, other)


def rows_of(compare: Compare, component: str, here: State, there: State, *, strict: bool, lasting: bool) -> list[Row]:
    """The things of a component, each on both sides.

    Only with `strict` does a thing count that one side lacks. `lasting` leaves out buffers that no state dict has.
    """
    ours, theirs = here.get(component, {}), there.get(component, {})
    names = [*theirs, *(name for name in ours if name not in theirs)]
    if lasting:
        names = [name for name in names if not name.endswith(_LATE)]
    if not strict:
        names = [name for name in names if name in ours and name in theirs]
    far = {} if compare.exact else _far(ours, theirs)
    return [_row(compare, name, ours.get(name), theirs.get(name), far) for name in names]


def _row(compare: Compare, name: str, here: Mark | None, there: Mark | None, far: dict[str, float]) -> Row:
    if here is None or there is None:
        mine, other = (ABSENT if mark is None else mark.shown for mark in (here, there))
        return Row(name, mine, other, "different")
    if here.digest == there.digest:
        return Row(name, here.shown, there.shown, "equal")
    verdict = "different"
    if name in far:
        verdict = "within" if far[name] <= compare.tolerance else "different"
    elif not compare.exact and here.number is not None and there.number is not None:
        close = abs(here.number - there.number) <= compare.tolerance * max(abs(there.number), 1e-12)
        verdict = "within" if close else "different"
    same = here.shown == there.shown
    return Row(name, here.shown + (" in other bits" if same else ""), there.shown, verdict)


def _far(ours: Mapping[str, Mark], theirs: Mapping[str, Mark]) -> dict[str, float]:
    """How far tensors that have sketches are from each other, relative to the norm of all tensors of the component."""
    pairs = {n: (ours[n], mark) for n, mark in theirs.items() if mark.sketch and n in ours and ours[n].sketch}
    norm = math.sqrt(sum(mark.sketch[0] ** 2 for _, mark in pairs.values())) or 1.0
    far = {}
    for name, (mine, other) in pairs.items():
        sums = list(zip(mine.sketch[1:], other.sketch[1:], strict=True))
        far[name] = math.sqrt(sum((a - b) ** 2 for a, b in sums) / len(sums)) / norm
    return far


def losses(here: Sequence[Moment], there: Sequence[Moment]) -> tuple[str, str]:
    """Both losses as text, with as many digits as tell them apart."""
    ours, theirs = _losses(here), _losses(there)
    if not ours or not theirs:
        return ("none" if not ours else f"{_mean(ours):.9g}"), ("none" if not theirs else f"{_mean(theirs):.9g}")
    a, b = _mean(ours), _mean(theirs)
    if a == b and len(ours) == len(theirs):
        rank = next((i for i, pair in enumerate(zip(ours, theirs, strict=True)) if not _alike(*pair)), 0)
        a, b = ours[rank], theirs[rank]
    digits = next((n for n in (6, 9, 12, 17) if f"{a:.{n}g}" != f"{b:.{n}g}"), 17)
    return f"{a:.{digits}g}", f"{b:.{digits}g}"


def _losses(moments: Sequence[Moment]) -> list[float]:
    return [moment.loss for moment in moments if moment.loss is not None]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _alike(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def _drawn(moment: Moment) -> list[Batch]:
    return list(moment.batches)


def _told(ours: Sequence[Batch], theirs: Sequence[Batch]) -> tuple[str, str]:
    if len(ours) != len(theirs):
        return f"{len(ours)} batches", f"{len(theirs)} batches"
    one, other = next(((a, b) for a, b in zip(ours, theirs, strict=True) if a.digest != b.digest), (ours[0], theirs[0]))
    if one.known and other.known:
        if one.samples == other.samples:
            return f"samples {_few(one)} with values {one.digest[:8]}", f"them with {other.digest[:8]}"
        return f"samples {_few(one)}", _few(other)
    return f"other data ({one.digest[:8]})", other.digest[:8]


def _few(batch: Batch) -> str:
    head = ", ".join(batch.samples[:_SHOWN])
    return f"{head}, .." if len(batch.samples) > _SHOWN else head
