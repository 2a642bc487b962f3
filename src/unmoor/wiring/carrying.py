"""A plan carried out, in the order that is the promise.

First all that changes nothing: files opened, checksums read ahead where asked, data of objects and random streams into
memory of their own, those streams tried. Then objects, which are put back if anything fails; then the live tensors;
optimizers; streams last.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from unmoor.errors import CorruptFile, MismatchError, ReadError, RestoreError
from unmoor.execute.reading import OpenSpan
from unmoor.execute.streaming import Streamed, Verify, stream
from unmoor.execute.together import Part
from unmoor.live.rings import rings_for
from unmoor.live.running import Run
from unmoor.live.survey import Handles
from unmoor.report.restore import report_text
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
from unmoor.values.text import listing

__all__ = ["Carrying"]

_SHOWN: Final = 12


class Carrying:
    """One plan on its way into the live objects behind it: `prepare`, then `change`, then `finish`."""

    def __init__(
        self,
        plan: Plan,
        handles: Handles,
        *,
        open_span: OpenSpan,
        verify: Verify,
        buffer_bytes: int,
        threads: int,
        progress: Callable[[int], None] | None,
    ) -> None:
        self.plan = plan
        self._run = Run(handles)
        self._open_span = open_span
        self._verify = verify
        self._how: dict[str, Any] = {"buffer_bytes": buffer_bytes, "threads": threads, "progress": progress}
        self._copies: list[Copy] = []
        self._others: list[Step] = []
        for step in plan.steps:
            if isinstance(step, Copy):
                self._copies.append(step)
            else:
                self._others.append(step)
        self._early: list[Copy] = []
        self._late: list[Copy] = []
        for copy in self._copies:
            (self._early if copy.slot.make and not _is_optimizer(copy) else self._late).append(copy)
        self._streamed: list[Streamed] = []
        self._setters: list[Callable[[], None]] = []
        self._changed = False
        self._proved: frozenset[str] = frozenset()

    def open_files(self) -> None:
        """Open every file: one that is gone since it was described is met before anything changes."""
        for file in sorted(_files(self._copies)):
            self._open_span(file)

    def prepare(self) -> None:
        """Do all that changes nothing in the run."""
        self.open_files()
        self._prove_twins()
        self._streamed.append(self._fill(self._early))
        self._setters = self._run.rng_setters(self._of(SetRng))

    def change(self) -> None:
        """Fill the live objects, all but the random streams. An error says what was overwritten."""
        states = [step for step in self._others if isinstance(step, LoadState | LoadSchedule | AdvanceSchedule)]
        self._run.load([step for step in states if not (isinstance(step, LoadState) and step.name)])
        self._changed = True
        with self._telling():
            self._run.move(self._of(MoveModule))
            self._streamed.append(self._fill(self._late))
            self._run.extra_states([step for step in self._of(LoadState) if step.name])
            self._run.set_optimizers(self._of(SetOptimizer))

    @property
    def parts(self) -> list[Part]:
        """What was read of storages in part, with its sums."""
        return [part for streamed in self._streamed for part in streamed.parts]

    def vouch(self, keys: Iterable[str]) -> None:
        """Take the storages with these keys for checked: what all ranks read of them adds up to their checksums."""
        self._proved |= frozenset(keys)

    def paths_on(self, keys: Collection[str]) -> list[str]:
        """The paths of the tensors that this rank has read from storages with these keys."""
        wanted = [c for c in self._copies if c.node.storage is not None]
        return [c.path for c in wanted if any(s.key in keys for s in c.node.storage.sources())]  # type: ignore[union-attr]

    def undo(self) -> tuple[str, ...]:
        """Put back what can be, because another rank failed; lines that say what was overwritten here."""
        stuck = self._run.undo()
        rows = list(_overwritten(self._copies, frozenset(c.slot.id for c in self._copies))) if self._changed else []
        rows += [f"{name} (could not be put back)" for name in stuck]
        if not rows:
            return ("nothing was overwritten on this rank",)
        return (f"overwritten on this rank: {', '.join(rows)}; restore on every rank before training on",)

    def finish(self, seconds: Callable[[], float]) -> Report:
        """Set the random streams, and report."""
        for set_state in self._setters:
            set_state()
        report = self._report(seconds())
        unchecked = replace(report, unverified=0) if self._verify == "none" else report
        if self._verify != "stream":  # either nothing is checked, or all of it has been
            unchecked = replace(unchecked, in_part=0)
        return replace(unchecked, text=report_text(unchecked))

    def _fill(self, batch: Sequence[Copy]) -> Streamed:
        sinks = self._run.sinks(batch)
        return stream(
            batch,
            sinks,
            buffers=rings_for(sink.device for sink in sinks.values()),
            open_span=self._open_span,
            verify="none" if self._verify == "none" else "stream",
            **self._how,
        )

    def _prove_twins(self) -> None:
        """Stored tensors that go into one live memory must hold the same values."""
        faults: dict[bool, list[str]] = {}
        for one, other in self.plan.twins:
            difference = self._run.difference(one, other, self._fill)
            if difference:
                text = f"{one.path} and {other.path} are one tensor in the live {one.label} and differ in the file"
                faults.setdefault(_is_optimizer(one), []).append(f"{text}, {difference}")
        if faults:
            what, remedy = _COUNTERS if True in faults else _TIED
            raise MismatchError(
                f"{what} are not equal in {self.plan.path}; nothing was changed",
                details=[line for lines in faults.values() for line in lines],
                remedy=remedy,
                path=self.plan.path,
            )

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Errors that leave say what was overwritten; objects that were loaded are put back."""
        try:
            yield
        except (CorruptFile, ReadError, RestoreError) as error:
            self._run.undo()
            moved = [step.label for step in self._of(MoveModule)]
            raise _told(error, moved, self._copies) from error

    def _of(self, kind: type[Step]) -> list[Any]:
        return [step for step in self._others if isinstance(step, kind)]

    def _report(self, seconds: float) -> Report:
        return Report(
            plan=self.plan,
            extra=self._run.value(dict(self.plan.extra)),
            counts=_counts(self._copies),
            nbytes=sum(s.nbytes for s in self._streamed),
            seconds=seconds,
            verified=sum(s.verified for s in self._streamed) + len(self._proved),
            unverified=sum(s.unverified for s in self._streamed),
            in_part=sum(not keys <= self._proved for s in self._streamed for keys in s.in_part.values()),
        )


def _files(copies: Sequence[Copy]) -> set[str]:
    storages = [source for c in copies if c.node.storage is not None for source in c.node.storage.sources()]
    return {storage.span.file for storage in storages if storage.span is not None}


def _is_optimizer(step: Copy) -> bool:
    return "/state/" in step.slot.id and step.label.partition("[")[0] == "optimizer"


_TIED: Final = (
    "tied weights",
    'Untie them in the live model, or drop one: rename={"its.name": "unused"}, unexpected="ignore".',
)
_COUNTERS: Final = (
    "states of parameters that are one FlatParameter",
    "Wrap the live model with FullyShardedDataParallel(..., use_orig_params=True).",
)


def _told(error: CorruptFile | ReadError | RestoreError, moved: Sequence[str], copies: Sequence[Copy]) -> Exception:
    done = error.done
    rows = list(_overwritten(copies, done))
    changed = f"already overwritten: {', '.join(rows)}" if rows else "nothing was overwritten"
    changes = [changed, *([f"already moved: {', '.join(moved)}"] if moved else []), *_names(copies, done)]
    details, remedy = (*error.details, *changes), error.remedy
    kind = CorruptFile if isinstance(error, CorruptFile) else RestoreError
    if rows:
        which = "another checkpoint" if kind is CorruptFile else "it again, or another checkpoint,"
        remedy = f"{remedy} Restore {which} before training on.".lstrip()
    made = kind(error.headline, details=details, remedy=remedy, path=error.path)
    made.done = done
    if isinstance(made, RestoreError):
        made.errno = getattr(error, "errno", None)
    return made


def _overwritten(copies: Sequence[Copy], done: frozenset[str]) -> Iterator[str]:
    for label, slots, hit in _written(copies, done):
        yield f"{label} ({'all' if len(hit) == len(slots) else f'{len(hit)} of {len(slots)} tensors'})"


def _names(copies: Sequence[Copy], done: frozenset[str]) -> Iterator[str]:
    """Which tensors of an object were written to, where it was not all of them."""
    for label, slots, hit in _written(copies, done):
        if len(hit) < len(slots):
            yield f"of {label}: {listing([name.removeprefix(label + '/') for name in slots if name in hit], _SHOWN)}"


def _written(copies: Sequence[Copy], done: frozenset[str]) -> Iterator[tuple[str, list[str], set[str]]]:
    """Each live object that was written to: its label, the ids of its slots, and of those whose memory was."""
    memory = {c.slot.id: c.slot.alias or c.slot.id for c in copies if not c.slot.make}
    written = {memory[one] for one in done if one in memory}
    for label in dict.fromkeys(c.label for c in copies if not c.slot.make):
        slots = list(dict.fromkeys(c.slot.id for c in copies if c.label == label and not c.slot.make))
        hit = {one for one in slots if memory[one] in written}
        if hit:
            yield label, slots, hit


def _counts(copies: Sequence[Copy]) -> dict[str, tuple[int, int]]:
    """Role -> how many tensors, and how many bytes of them are here."""
    found: dict[str, tuple[int, int]] = {}
    roles = {label: label.partition("[")[0] for label in {c.label for c in copies}}
    for c in copies:
        number, total = found.get(roles[c.label], (0, 0))
        here = c.node.numel if c.slot.boxes is None else sum(box.numel for box in c.slot.boxes)
        found[roles[c.label]] = (number + 1, total + here * dtype_bytes(c.node.dtype))
    return found
