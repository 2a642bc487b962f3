"""restore and plan: describe -> survey -> plan -> execute -> report.

The order is the promise. First all that needs no tensor data; then data of objects and random streams, into memory of
their own; then those objects, which are put back if anything fails; then the live tensors; optimizers; streams last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from unmoor.describe import describe_path
from unmoor.describe.pausing import collector_paused
from unmoor.errors import ArgumentConflict, CorruptFile, KindError, MismatchError, RestoreError, UsageError
from unmoor.execute.streaming import Streamed, Verify, stream
from unmoor.live import devices
from unmoor.live.loading import refuse_other_order
from unmoor.live.running import Run
from unmoor.live.survey import Handles, survey
from unmoor.plan.policy import CHOICES, Policy
from unmoor.plan.restore import plan_restore
from unmoor.report.restore import plan_text, report_text
from unmoor.values.dtypes import dtype_bytes
from unmoor.values.plan import (
    AdvanceSchedule,
    Copy,
    LoadSchedule,
    LoadState,
    MoveModule,
    Plan,
    SetOptimizer,
    SetRng,
    Step,
)
from unmoor.values.report import Report

from .checking import check_all
from .neighbours import with_neighbours
from .spans import open_spans

__all__ = ["Asked", "carry_out", "check_devices", "prepare"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a caller asked of restore, with its defaults filled in."""

    roles: Mapping[str, Any]
    rng: Any
    model_device: Any
    map_location: Any
    modes: Mapping[str, str]
    rename: Any
    only: Any
    skip: Any
    at: Mapping[str, Any]


def check_devices(model_device: Any, map_location: Any) -> None:
    """Refuse both placements together, before a byte is read."""
    if model_device is not None and map_location is not None:
        raise ArgumentConflict(
            "Passing map_location explicitly and the model device are incompatible: "
            f"map_location={map_location!r}, model_device={model_device!r}",
            remedy="Pass model_device alone: it places every part by its role. map_location has torch's meaning.",
        )


def prepare(path: str, asked: Asked) -> tuple[Plan, Handles]:
    """The plan for what was asked, and the live objects behind it. Changes nothing."""
    check_devices(asked.model_device, asked.map_location)
    for mode, value in asked.modes.items():
        if value not in CHOICES[mode]:
            choices = ", ".join(map(repr, CHOICES[mode]))
            raise UsageError(f"{mode}={value!r} is none of {choices}")
    if not isinstance(asked.rng, Mapping) and asked.rng not in (True, False, "exact"):
        raise UsageError(f"rng={asked.rng!r} is none of True, False, 'exact' and a dict of generators")
    only, skip = _patterns("only", asked.only), _patterns("skip", asked.skip) or ()
    generators = asked.rng if isinstance(asked.rng, Mapping) else {}
    device = devices.resolve(asked.model_device)
    mapping, _ = devices.read_map_location(asked.map_location)
    catalog = describe_path(path)
    refuse_other_order(catalog)
    target, handles = survey(asked.roles, generators, device)
    policy = Policy(
        **{mode: value for mode, value in asked.modes.items() if mode != "verify"},
        rename=asked.rename,
        only=only,
        skip=skip,
        at=asked.at,
        device=None if device is None else devices.tag(device),
        rng="none" if asked.rng is False else "exact" if asked.rng == "exact" else "all",
        extras=mapping,
    )
    try:
        with collector_paused():
            made = plan_restore(catalog, target, policy)
    except KindError as error:
        raise with_neighbours(error, catalog.path) from None
    return replace(made, text=plan_text(made)), handles


def _patterns(word: str, value: Any) -> tuple[str, ...] | None:
    """One pattern or a list of them; None where none was given."""
    if value is None:
        return None
    found = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list | tuple) else (None,)
    if not all(isinstance(pattern, str) and pattern for pattern in found):
        raise UsageError(f"{word}={value!r} is no pattern and no list of patterns", remedy=f'{word}=["encoder.*"]')
    if not found and word == "only":
        raise UsageError("only=[] names nothing to restore", remedy="Leave only= out to restore everything.")
    return found


def carry_out(
    plan: Plan,
    handles: Handles,
    *,
    verify: Verify,
    buffer_bytes: int,
    threads: int,
    progress: Callable[[int], None] | None,
    begin: float,
) -> Report:
    """Do what the plan says, in its order."""
    run = Run(handles)
    copies = plan.copies()
    first = [c for c in copies if c.slot.make and not _is_optimizer(c)]
    rest = [c for c in copies if not (c.slot.make and not _is_optimizer(c))]
    states = [step for step in plan.steps if isinstance(step, LoadState | LoadSchedule | AdvanceSchedule)]
    outside = [step for step in states if not (isinstance(step, LoadState) and step.name)]
    with open_spans(plan.path) as open_span:

        def fill(batch: Sequence[Copy]) -> Streamed:
            return stream(
                batch,
                run.sinks(batch),
                open_span=open_span,
                buffer_bytes=buffer_bytes,
                threads=threads,
                verify="none" if verify == "none" else "stream",
                progress=progress,
            )

        for file in sorted(_files(copies)):  # one that is gone since it was described is met before anything changes
            open_span(file)
        if verify == "first":
            check_all(plan, open_span=open_span, buffer_bytes=buffer_bytes, threads=threads, progress=progress)
        _prove_twins(plan, run, fill)
        early = fill(first)
        setters = run.rng_setters(_of(plan, SetRng))
        run.load(outside)
        with _telling(plan, copies, run):
            run.move(_of(plan, MoveModule))
            late = fill(rest)
            run.extra_states([step for step in _of(plan, LoadState) if step.name])
            run.set_optimizers(_of(plan, SetOptimizer))
    for set_state in setters:
        set_state()
    report = _report(plan, run, (early, late), time.perf_counter() - begin)
    unchecked = replace(report, unverified=0) if verify == "none" else report
    return replace(unchecked, text=report_text(unchecked))


def _files(copies: Sequence[Copy]) -> set[str]:
    storages = [source for c in copies if c.node.storage is not None for source in c.node.storage.sources()]
    return {storage.span.file for storage in storages if storage.span is not None}


def _of(plan: Plan, kind: type[Step]) -> list[Any]:
    return [step for step in plan.steps if isinstance(step, kind)]


def _is_optimizer(step: Copy) -> bool:
    return "/state/" in step.slot.id and step.label.partition("[")[0] == "optimizer"


def _prove_twins(plan: Plan, run: Run, fill: Callable[[Sequence[Copy]], Streamed]) -> None:
    """Stored tensors that go into one live memory must hold the same values: an error before anything starts."""
    faults: dict[bool, list[str]] = {}
    for one, other in plan.twins:
        difference = run.difference(one, other, fill)
        if difference:
            text = f"{one.path} and {other.path} are one tensor in the live {one.label} and differ in the file"
            faults.setdefault(_is_optimizer(one), []).append(f"{text}, {difference}")
    if faults:
        what, remedy = _COUNTERS if True in faults else _TIED
        raise MismatchError(
            f"{what} are not equal in {plan.path}; nothing was changed",
            details=[line for lines in faults.values() for line in lines],
            remedy=remedy,
            path=plan.path,
        )


_TIED: Final = (
    "tied weights",
    'Untie them in the live model, or drop one: rename={"its.name": "unused"}, unexpected="ignore".',
)
_COUNTERS: Final = (
    "states of parameters that are one FlatParameter",
    "Wrap the live model with FullyShardedDataParallel(..., use_orig_params=True).",
)


@contextmanager
def _telling(plan: Plan, copies: Sequence[Copy], run: Run) -> Iterator[None]:
    """Errors that leave say what was overwritten; objects that were loaded are put back."""
    try:
        yield
    except (CorruptFile, RestoreError) as error:
        run.undo()
        raise _told(error, plan, copies) from error


def _told(error: CorruptFile | RestoreError, plan: Plan, copies: Sequence[Copy]) -> Exception:
    done: frozenset[str] = getattr(error, "done", frozenset())
    rows = list(_overwritten(copies, done))
    moved = [step.label for step in _of(plan, MoveModule)]
    changed = f"already overwritten: {', '.join(rows)}" if rows else "nothing was overwritten"
    details = (*error.details, changed, *([f"already moved: {', '.join(moved)}"] if moved else []))
    remedy = error.remedy
    if rows:
        remedy = (remedy + " " if remedy else "") + "Restore another checkpoint before training on."
    made = type(error)(error.headline, details=details, remedy=remedy, path=error.path)
    made.done = done
    return made


def _overwritten(copies: Sequence[Copy], done: frozenset[str]) -> Iterator[str]:
    labels = dict.fromkeys(c.label for c in copies if not c.slot.make)
    for label in labels:
        slots = {c.slot.id for c in copies if c.label == label and not c.slot.make}
        hit = len(slots & done)
        if hit:
            yield f"{label} ({'all' if hit == len(slots) else f'{hit} of {len(slots)} tensors'})"


def _report(plan: Plan, run: Run, streams: Sequence[Streamed], seconds: float) -> Report:
    counts: dict[str, tuple[int, int]] = {}
    for c in plan.copies():
        role = c.label.partition("[")[0]
        number, total = counts.get(role, (0, 0))
        counts[role] = (number + 1, total + c.node.numel * dtype_bytes(c.node.dtype))
    return Report(
        plan=plan,
        extra=run.value(dict(plan.extra)),
        counts=counts,
        nbytes=sum(s.nbytes for s in streams),
        seconds=seconds,
        verified=sum(s.verified for s in streams),
        unverified=sum(s.unverified for s in streams),
    )
