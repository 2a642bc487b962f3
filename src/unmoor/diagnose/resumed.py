"""Whether a resumed run is the run that was never cut, and what differs first: recordings in, a proof out. Pure.

The state right after the restore is held against that at the cut, bit for bit, always. The steps after it are held
against those of the uninterrupted run: bit for bit where both take the same arithmetic, else within a tolerance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from unmoor.values.proof import Compared, Difference, Proof
from unmoor.values.recording import CLUES, RNG, Moment, Recording, State

from .resumed_causes import Case, Holdings, cause_of, cause_of_failure
from .resumed_compare import Compare, Row, losses, rows_of

__all__ = ["Runs", "judge"]

ORDER: Final = (
    "data order",
    "loss",
    "gradients",
    "parameters",
    "buffers",
    "optimizer",
    "options",
    "scheduler",
    "scaler",
    "loss function",
    "metrics",
    "ema",
)
"""Components in the order in which a step makes them; other keywords follow, random streams are last."""

_NOT_AT_CUT: Final = ("gradients", "data order", "loss")
"""What the restore alone says nothing of."""


Notes = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Runs:
    """What the processes of a proof recorded, each a list by rank, and how they were run.

    `whole` never stopped; `first` stopped at the cut and saved; `resumed` went on from there; `again` is another run
    that never stopped, where one was taken. `exact` tells that all of them take the same arithmetic. `holdings` are
    what the checkpoint was found to hold, `own` that the user's functions saved and resumed.
    """

    build: str
    steps: int
    cut: int
    whole: Sequence[Recording]
    first: Sequence[Recording]
    resumed: Sequence[Recording]
    again: Sequence[Recording] = ()
    exact: bool = True
    tolerance: float = 1e-3
    own: bool = False
    holdings: Holdings | None = None
    setting: tuple[tuple[str, str], ...] = ()


def judge(runs: Runs) -> Proof:
    """The proof that the recordings give."""
    failed = next((r.failure for r in runs.resumed if r.failure is not None), None)
    if failed is not None:
        cause, fix = cause_of_failure(failed, own=runs.own)
        there = Difference(runs.cut, "the restore", "", f"{failed.kind}: {failed.headline}", "went on")
        return _proof(runs, (), "different", there, cause, fix)
    table, first = _table(runs), None
    unsteady = _unsteady(runs)
    moved = _by_the_save(runs)
    restored = _at_restore(runs)
    later = _after(runs)
    if unsteady is not None and restored is None:
        return _undetermined(runs, table, unsteady)
    first = moved or restored or later
    if first is None:
        same = all(row.verdict == "equal" for row in table)
        return _proof(runs, table, "equal" if same else "within", None, "", "")
    case = Case(runs.build, runs.cut, runs.own, runs.holdings, runs.exact)
    if first is moved:
        cause, fix = "saving changes the run", "Let save look at the run and leave it as it is."
    else:
        cause, fix = cause_of(case, first, runs.whole, runs.first, runs.resumed)
    notes = (*_also(table, first, restored), *_effect(runs, first, restored))
    return _proof(runs, table, "different", first, cause, fix, notes)


def components(*states: State) -> list[str]:
    """All components of these states in their order; clues left out."""
    found = dict.fromkeys(name for state in states for name in state if not name.startswith(CLUES))
    known = [name for name in ORDER if name in found]
    streams = [name for name in found if name.startswith(RNG)]
    return [*known, *(name for name in found if name not in known and name not in streams), *streams]


def _common(runs: Runs) -> range:
    """The ranks that both sides have."""
    return range(min(len(runs.whole), len(runs.resumed)))


def _pairs_at_restore(runs: Runs) -> Iterator[tuple[int, State, State]]:
    for rank in _common(runs):
        at_cut, restored = runs.first[rank].at(runs.cut), runs.resumed[rank].restored
        if at_cut is not None and restored is not None:
            yield rank, restored, at_cut.state


def _at_restore(runs: Runs) -> Difference | None:
    """What is not as it was at the cut, right after the restore."""
    compare = Compare(exact=True)
    for rank, restored, at_cut in _pairs_at_restore(runs):
        for component in components(at_cut, restored):
            if component in _NOT_AT_CUT or not _told(runs, component):
                continue
            rows = rows_of(compare, component, restored, at_cut, strict=rank == 0, lasting=True)
            if bad := [row for row in rows if row.verdict == "different"]:
                return _difference(runs, runs.cut, component, bad, rank)
    return None


def _told(runs: Runs, component: str) -> bool:
    """Whether a component means the same on both sides: streams of devices do where both have the same ones."""
    if not component.startswith(RNG):
        return True
    ours, theirs = (_names(recordings, component) for recordings in (runs.resumed, runs.first))
    return not any(":" in name for name in ours | theirs) or (runs.exact and ours == theirs)


def _names(recordings: Sequence[Recording], component: str) -> set[str]:
    """The names of a component's things in what processes saw first."""
    states = [r.restored or r.moments[0].state for r in recordings if r.restored or r.moments]
    return {name for state in states for name in state.get(component, {})}


def _after(runs: Runs) -> Difference | None:
    """The first step after which something is not as the uninterrupted run had it."""
    return _first(runs, runs.resumed, runs.whole, range(runs.cut + 1, runs.steps + 1), exact=runs.exact)


def _unsteady(runs: Runs) -> Difference | None:
    """Where two runs that were not resumed differ: before the cut, or in the run that was taken again."""
    steps = range(1, runs.cut + 1)
    found = _first(runs, runs.first, runs.whole, steps, exact=True)
    if found is None and runs.again:
        found = _first(runs, runs.again, runs.whole, range(1, runs.steps + 1), exact=True)
    return found


def _by_the_save(runs: Runs) -> Difference | None:
    """What is not after the save as it was before it."""
    compare = Compare(exact=True)
    for rank, recording in enumerate(runs.first):
        before, after = recording.at(runs.cut), recording.saved
        if before is None or after is None:
            continue
        for component in components(before.state, after):
            rows = rows_of(compare, component, after, before.state, strict=True, lasting=False)
            if bad := [row for row in rows if row.verdict == "different"]:
                return _difference(runs, runs.cut, component, bad, rank)
    return None


def _first(
    runs: Runs, ours: Sequence[Recording], theirs: Sequence[Recording], steps: range, *, exact: bool
) -> Difference | None:
    compare = Compare(exact=exact, tolerance=runs.tolerance)
    for step in steps:
        here, there = _moments(ours, step), _moments(theirs, step)
        if here and there and (found := _differs(runs, compare, step, here, there)):
            return found
    return None


def _moments(recordings: Sequence[Recording], step: int) -> list[Moment]:
    return [moment for recording in recordings if (moment := recording.at(step)) is not None]


def _differs(
    runs: Runs, compare: Compare, step: int, here: Sequence[Moment], there: Sequence[Moment]
) -> Difference | None:
    """The first component that differs after a step."""
    data = compare.batches(here, there)
    if data is not None:
        return Difference(step, "data order", "", *data)
    if compare.loss(here, there) == "different":
        return Difference(step, "loss", "", *losses(here, there))
    for rank, (one, other) in enumerate(zip(here, there, strict=False)):
        for component in components(other.state, one.state):
            unclear = not compare.exact and (component.startswith(RNG) or component == "gradients")
            if unclear or not _told(runs, component):
                continue
            rows = rows_of(compare, component, one.state, other.state, strict=rank == 0, lasting=False)
            if bad := [row for row in rows if row.verdict == "different"]:
                return _difference(runs, step, component, bad, rank)
    return None


def _difference(runs: Runs, step: int, component: str, bad: Sequence[Row], rank: int) -> Difference:
    row = bad[0]
    many = max(len(runs.whole), len(runs.resumed)) > 1
    return Difference(step, component, row.name, row.here, row.there, len(bad) - 1, rank if many else -1)


def _table(runs: Runs) -> tuple[Compared, ...]:
    """A row for each component: the restore, and how many of the steps after it are equal."""
    steps = range(runs.cut + 1, runs.steps + 1)
    exact, loose = Compare(exact=True), Compare(exact=runs.exact, tolerance=runs.tolerance)
    pairs = [(_moments(runs.resumed, step), _moments(runs.whole, step)) for step in steps]
    pairs = [(here, there) for here, there in pairs if here and there]
    rows = []
    if any(moment.batches for _, there in pairs for moment in there):
        drawn = ["equal" if loose.batches(*pair) is None else "different" for pair in pairs]
        rows.append(_row("data order", None, drawn, pairs))
    if any(moment.loss is not None for _, there in pairs for moment in there):
        rows.append(_row("loss", None, [loose.loss(*pair) for pair in pairs], pairs))
    restored = list(_pairs_at_restore(runs))
    states = [state for _, one, other in restored for state in (one, other)]
    states += [moment.state for here, there in pairs for moment in (*here, *there)]
    for component in components(*states):
        if not _told(runs, component):
            continue
        at_restore = None
        if component not in _NOT_AT_CUT:
            found = [
                row.verdict
                for rank, one, other in restored
                for row in rows_of(exact, component, one, other, strict=rank == 0, lasting=True)
            ]
            at_restore = "different" not in found if found else None
        if component == "gradients" and not runs.exact:
            continue
        told = runs.exact or not component.startswith(RNG)
        judged = [_of(loose, component, *pair) for pair in pairs] if told else []
        things = max((len(state.get(component, ())) for state in states), default=0)
        rows.append(_row(component, at_restore, judged, pairs, things))
    return tuple(rows)


def _of(compare: Compare, component: str, here: Sequence[Moment], there: Sequence[Moment]) -> str:
    found = {
        row.verdict
        for rank, (one, other) in enumerate(zip(here, there, strict=False))
        for row in rows_of(compare, component, one.state, other.state, strict=rank == 0, lasting=False)
    }
    return next((word for word in ("different", "within") if word in found), "equal")


def _row(
    component: str,
    restored: bool | None,  # noqa: FBT001 - a fact of the row, None where there is none
    verdicts: Sequence[str],
    pairs: Sequence[tuple[list[Moment], list[Moment]]],
    things: int = 0,
) -> Compared:
    bad = [there[0].step for verdict, (_, there) in zip(verdicts, pairs, strict=False) if verdict == "different"]
    worst = "different" if bad or restored is False else "within" if "within" in verdicts else "equal"
    good = sum(verdict != "different" for verdict in verdicts)
    return Compared(component, restored, good, len(verdicts), bad[0] if bad else 0, things, worst)


def _also(table: Sequence[Compared], first: Difference, restored: Difference | None) -> Notes:
    """What else was not as it was right after the restore."""
    found = [row.component.replace(RNG, "RNG ") for row in table if row.restored is False]
    others = [name for name in found if name != first.component.replace(RNG, "RNG ")]
    return (("also", f"{', '.join(others)}: not as at the cut either"),) if restored is not None and others else ()


def _effect(runs: Runs, first: Difference, restored: Difference | None) -> Notes:
    """What becomes of a state that was not restored: from which step on the results differ."""
    if restored is None or first.step != runs.cut:
        return ()
    compare = Compare(exact=runs.exact, tolerance=runs.tolerance)
    for step in range(runs.cut + 1, runs.steps + 1):
        here, there = _moments(runs.resumed, step), _moments(runs.whole, step)
        if not here or not there:
            continue
        data, loss = compare.batches(here, there), compare.loss(here, there)
        if data is not None or loss == "different":
            text = f"the batch of step {step} is another one" if data is not None else _gone(step, here, there)
            return (("effect", text),)
        if _of(compare, "parameters", here, there) == "different":
            return (("effect", f"parameters differ from step {step} on"),)
    number = runs.steps - runs.cut
    return (("effect", f"none so far: losses and parameters of the {number} steps that followed are equal"),)


def _gone(step: int, here: Sequence[Moment], there: Sequence[Moment]) -> str:
    ours, theirs = losses(here, there)
    return f"the loss differs from step {step} on: {ours}; the uninterrupted run had {theirs}"


def _undetermined(runs: Runs, table: tuple[Compared, ...], found: Difference) -> Proof:
    cause = (
        f"the run itself is not deterministic: two uninterrupted runs differ from step {found.step} on, first in "
        f"{found.component}{f' ({found.name})' if found.name else ''}"
    )
    fix = (
        "A proof can only be as exact as the run. Seed what draws random numbers inside of the build function, and "
        "take kernels that repeat: torch.use_deterministic_algorithms(True)."
    )
    told = "the state right after the restore is that at the cut, bit for bit; what follows cannot be judged"
    return _proof(runs, table, "undetermined", found, cause, fix, (("but", told),))


def _proof(
    runs: Runs,
    table: tuple[Compared, ...],
    verdict: str,
    difference: Difference | None,
    cause: str,
    fix: str,
    notes: Notes = (),
) -> Proof:
    steps = range(1, runs.steps + 1)
    whole = tuple(_loss(runs.whole, step) for step in steps)
    resumed = tuple(_loss(runs.resumed, step) for step in steps[runs.cut :])
    pairs = [(a, b) for a, b in zip(whole[runs.cut :], resumed, strict=True) if a is not None and b is not None]
    largest = max((abs(a - b) / max(abs(a), 1e-12) for a, b in pairs if a != b and abs(a - b) >= 0), default=0.0)
    return Proof(
        ok=verdict in ("equal", "within"),
        verdict=verdict,
        build=runs.build,
        steps=runs.steps,
        cut=runs.cut,
        difference=difference,
        cause=cause,
        fix=fix,
        table=table,
        losses=whole,
        resumed=resumed,
        largest=largest,
        tolerance=0.0 if runs.exact else runs.tolerance,
        setting=runs.setting,
        notes=notes,
    )


def _loss(recordings: Sequence[Recording], step: int) -> float | None:
    """The loss of a step: the mean of what the ranks had."""
    found = [m.loss for m in _moments(recordings, step) if m.loss is not None]
    return sum(found) / len(found) if found else None
