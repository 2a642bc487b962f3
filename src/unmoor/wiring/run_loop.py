"""A run: its steps, and what is done at the end of each. What is decided is in `plan/run_due.py`; this does it.

Between the end of a step and the beginning of the next lies the boundary. Only there is the state of a run one from
which it can go on, so only there it is saved.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from unmoor.errors import UsageError
from unmoor.live.parts import holds_parts
from unmoor.places import join, name_of
from unmoor.plan.retention import is_new_best
from unmoor.plan.run_due import Decision, Facts, Verdict, Wish, judge, pace
from unmoor.report.run import run_text
from unmoor.urls import is_url
from unmoor.values.listing import Saved
from unmoor.values.report import Report
from unmoor.values.run_policy import Policy, whole_number

from .run_clock import now, wall
from .run_council import Council
from .run_diary import Diary
from .run_folder import RunFolder, told
from .run_metrics import Metrics
from .run_resuming import Resumed, check_otherwise, resume_run
from .run_saver import Saver, Write
from .run_signals import Signals

__all__ = ["RunLoop"]


@dataclass(slots=True)
class _Asked:
    """What the caller asked for within the step that is under way, and the metrics that were logged since a save."""

    save: bool = False
    stop: bool = False


class RunLoop:
    """The state of a run between its steps. `step` steps are done; `within` is the step that is under way, if any."""

    def __init__(
        self,
        path: str,
        policy: Policy,
        *,
        write: Write,
        check: Callable[[], None],
        roles: Mapping[str, Any],
        group: Any,
        timeout: float,
        how: Mapping[str, Any],
    ) -> None:
        self.path, self.policy = path, policy
        self.diary = Diary()
        self.folder = RunFolder(path, self.diary)
        self.metrics = Metrics()
        council = Council(group, timeout)
        self.saver = Saver(self.folder, council, self.diary, policy, metrics=self.metrics, write=write, how=how)
        self.step = 0
        self.total: int | None = None
        self.within: int | None = None
        self.stopped = ""
        self.finished = False
        self.report: Report | None = None
        self.resumed: Resumed | None = None
        self._council, self._roles, self._signals, self._check = council, roles, Signals(), check
        self._generator: weakref.ref[Generator[int, None, None]] | None = None
        self._asked = _Asked()
        self._looping = self._opened = self._closed = False
        self._began = 0.0

    def resume(self, restore: Callable[[str], Report], *, source: str | None, otherwise: str) -> int:
        """Restore what the run goes on from; the number of steps that are done."""
        check_otherwise(otherwise)
        self._refuse_looping("resume")
        self.saver.settle()
        self._open()
        try:
            found = resume_run(self.folder, self._council, self.diary, restore, source=source, otherwise=otherwise)
        finally:
            self.diary.tell()
        self.resumed, self.report, self.step, self.within = found, found.report, found.step, None
        name = name_of(found.path)
        own = bool(name) and _is_one(found.path, join(self.path, name))
        self.finished, self.stopped = own and bool(found.record.get("finished")), ""
        self.folder.protected = {name} if own else set()
        self.saver.saved = found.step if own and found.known and not found.record.get("interrupted") else None
        self.saver.last = next((row for row in self.folder.rows if row.name == name), None) if own else None
        return found.step

    def steps(self, start: int, total: int | None) -> Iterator[int]:
        """The numbers of the steps that are left."""
        self._refuse_looping("steps")
        begin, end = whole_number(start), None if total is None else whole_number(total)
        if begin is None or begin < 0 or (total is not None and (end is None or end < 0)):
            raise UsageError(
                f"steps({start!r}, {total!r}) names no steps",
                remedy="Pass what resume() gave, and the number of steps in all, or None for no end.",
            )
        if not self._opened:
            self._open()
        self._council.first("steps", lambda: self._refuse_overrun(begin))
        if self._over(begin, end):
            return _none()
        self._council.each("check", self._check)
        self.total, self.step, self.finished, self.stopped = end, begin, False, ""
        made = self._loop(begin, end)
        self._generator = weakref.ref(made)
        return made

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Keep metrics for the next save."""
        self.metrics.log(metrics, self.step if self.within is None else self.within + 1)

    def save(self, step: int | None) -> Saved | None:
        """Save at the end of the step that is under way, or now where none is."""
        self._refuse_closed("save")
        if self._looping:
            if step is not None:
                raise UsageError(
                    f"save(step={step!r}): within the loop it is known how many steps are done",
                    remedy="Call run.save() without it: it saves at the end of this step.",
                )
            self._asked.save = True
            return None
        if not self._opened:
            self._open()
        if self.resumed is None and not self.saver.last:
            self._council.first("save", lambda: self._refuse_overrun(self.step))
        done = self.step if step is None else whole_number(step)
        if done is None or done < 0:
            raise UsageError(f"save(step={step!r}) is no number of steps", remedy="Pass the number of steps done.")
        if step is None and self.within is not None:
            raise UsageError(
                f"the loop was left within step {self.within}, and only you know if it was done",
                remedy=f"Say how many are: run.save(step={self.within + 1}) if it was. run.stop() ends a loop well.",
            )
        self.step, self.within = done, None
        self.diary.step = done
        self._here("asked for")
        self.diary.tell()
        return self.saver.last

    def stop(self) -> None:
        """End the loop at the end of this step."""
        if not self._looping:
            raise UsageError("stop() ends the loop over run.steps(), and none is under way")
        self._asked.stop = True

    def text(self) -> str:
        """How the run stands, in words."""
        return run_text(
            self.path,
            self.policy,
            step=self.step,
            total=self.total,
            ending=f"ended by {self.stopped}" if self.stopped else "finished" if self.finished else "",
            last=self.saver.last,
            kept=self.folder.rows,
            events=self.diary.events,
        )

    def close(self) -> None:
        """Leave the loop if it is open, wait for what is being saved, and let another run have the folder."""
        open_loop = self._generator() if self._generator is not None else None
        if self._looping and open_loop is not None:
            with suppress(ValueError):  # it is the loop itself that closes the run
                open_loop.close()
        self.saver.settle()
        self.folder.close()
        self._opened, self._closed = False, True
        self.diary.tell()
        self.saver.complain()

    def _open(self) -> None:
        self._refuse_closed("resume")
        self._council.begin()
        self.diary.quiet = self._council.rank > 0
        if not self._opened:
            self._council.first("open", self.folder.open)
            self._opened = True

    def _loop(self, start: int, total: int | None) -> Generator[int, None, None]:
        """The loop itself. A generator, so that leaving the loop is noticed."""
        self._refuse_looping("steps")
        self._asked, self._looping = _Asked(), True
        try:
            with self._signals.heard() as heard:
                if not heard:
                    said = "the loop does not run in the main thread, so that no signal ends this run in order"
                    self.diary.note("unheard", said, warn=True)
                    self.diary.tell()
                self.saver.began = self._began = now()
                for step in _numbers(start, total):
                    self.within = step
                    try:
                        yield step
                    except GeneratorExit:
                        self._left(step)
                        raise
                    self.within = None
                    if self._boundary(step + 1, total, steps=step + 1 - start):
                        return
        finally:
            self._looping = False

    def _boundary(self, step: int, total: int | None, *, steps: int) -> bool:
        """What is done at the end of a step; whether the loop ends."""
        self.step = self.diary.step = step
        self.saver.complain()
        self.diary.tell()
        last = total is not None and step >= total
        wish = Wish(self._signals.first, self._asked.stop, self._asked.save)
        decision = self._council.boundary(step, wish, partial(self._decide, step, steps, last=last), last=last)
        if decision is None:
            return False
        self._asked = _Asked()
        verdict = decision.verdict
        if verdict.skipped:
            self.saver.began = now()
            said = f"no save at step {step} ({verdict.skipped}): an earlier one is still being written"
            self.diary.note("skipped", said)
        if verdict.save:
            self._save(decision.name, decision.record, final=bool(verdict.ending))
        return bool(verdict.ending) and self._end(verdict)

    def _decide(self, step: int, steps: int, wishes: Sequence[Wish], *, last: bool) -> Decision:
        """What the first rank decides for all."""
        if last or any(wish.stop or wish.signal for wish in wishes):
            self.saver.settle()
        saver, every = self.saver, self.policy.every
        best = every.best and is_new_best(self.metrics.values, self.folder.rows, self.policy.keep)
        facts = Facts(step, saver.saved, now() - saver.began, last, best=best, busy=saver.busy)
        verdict = judge(wishes, facts, every, self.policy.background)
        again = pace(step, (now() - self._began) / max(1, steps), every)
        if not verdict.save:
            return Decision(verdict, again)
        saver.settle()
        name, record = self._named(verdict.save, finished=verdict.finished, half=False)
        return Decision(verdict, again, name, record)

    def _named(self, why: str, *, finished: bool, half: bool) -> tuple[str, dict[str, Any]]:
        """The name of a checkpoint, and what the run notes of itself in it."""
        sharded = self._council.size > 1 and holds_parts(self._roles)
        name, number = self.folder.name(self.step, half=half, sharded=sharded)
        found = self.resumed or Resumed()
        return name, {
            "version": 1,
            "step": self.step,
            "number": number,
            "metrics": self.metrics.values,
            "logged_at": self.metrics.logged_at(),
            "written": wall(),
            "finished": finished,
            "total": self.total,
            "why": why,
            "resumed_from": name_of(found.path) or None,
            "origin": found.origin or None,
            "interrupted": half,
        }

    def _save(self, name: str, record: Mapping[str, Any], *, final: bool, half: bool = False) -> None:
        self.saver.save(name, record, final=final, half=half)

    def _here(self, why: str) -> None:
        """Save now, outside of the loop."""
        self._refuse_closed("save")
        self.saver.settle()
        made = self._council.first("save", lambda: list(self._named(why, finished=False, half=False)))
        self._save(made[0], made[1], final=True)

    def _end(self, verdict: Verdict) -> bool:
        """The loop is over: by itself, or by a signal, which then ends the process where that is the policy."""
        if verdict.finished:
            self.finished = True
            said = "finished" if verdict.ending == "finished" else "stopped, as it was asked to"
            self.diary.note(verdict.ending, f"{said} at step {self.step}")
        signal = verdict.signal or (self._signals.first if self._council.size == 1 else "")
        if signal:
            self.stopped = signal
            last = (
                f"the last checkpoint is {self.saver.last.name}" if self.saver.last is not None else "nothing was saved"
            )
            self.diary.note("signal", f"ended by {signal} at step {self.step}; {last}")
        self.diary.tell()
        if signal:
            self._signals.pass_on()
            if self.policy.on_signal == "exit":
                raise SystemExit(self.policy.exit_code)
        return True

    def _left(self, step: int) -> None:
        """The loop was left within a step, so that the state is none from which the run could simply go on."""
        if sys.is_finalizing():
            return
        self.diary.note("left", f"the loop was left within step {step}, by an exception or by break")
        self.saver.settle()
        if self.policy.on_exception == "save" and not self._signals.at_once and self._council.size == 1:
            self._save_half(step)
        self.diary.tell()

    def _save_half(self, step: int) -> None:
        try:
            name, record = self._named("left within a step", finished=False, half=True)
            self._save(name, record, final=True, half=True)
        except Exception as error:  # noqa: BLE001 - the exception that left the loop is the one to be seen
            said = f"the state within step {step} was not saved: {error}"
            self.diary.note("failed", said, warn=True)
            return
        said = (
            f"the loop was left within step {step}; the state there is in {name}, which resume() does not take "
            f"by itself: resume(from_={join(self.path, name)!r}) does. run.stop() ends a loop at the end of a step"
        )
        self.diary.note("interrupted", said, path=join(self.path, name), warn=True)

    def _over(self, start: int, total: int | None) -> bool:
        """Whether no step is left, or the run that was resumed had reached its end by itself."""
        if total is not None and start >= total:
            self.finished = True
            return True
        found = self.resumed
        if found is None or found.step != start or not (self.finished and found.record.get("finished")):
            return False
        before = found.record.get("total")
        return total is None if before is None else total is not None and total <= before

    def _refuse_overrun(self, start: int) -> None:
        """Refuse to begin where checkpoints are of which this run has not taken notice."""
        found = self.resumed
        if found is None and self.folder.rows:
            raise UsageError(
                f"{self.path} holds {told(self.folder.rows)} of an earlier run, and this one did not resume",
                remedy="Call start = run.resume() first, or give the run a folder of its own: it would delete them.",
                path=self.path,
            )
        if found is not None and (found.known or not found.path) and start != self.step:
            raise UsageError(
                f"steps({start}, ...) does not go on where the run stands: {self.step} steps are done",
                remedy="Pass what resume() gave: for step in run.steps(start, total).",
            )

    def _refuse_looping(self, what: str) -> None:
        self._refuse_closed(what)
        if self._looping:
            raise UsageError(
                f"{what}() was called while a loop over run.steps() is under way",
                remedy="End that loop first; a generator that was left keeps it open: call its close().",
            )

    def _refuse_closed(self, what: str) -> None:
        if self._closed:
            raise UsageError(f"{what}() was called after close()", remedy="Make a new unmoor.Run.")


def _is_one(path: str, other: str) -> bool:
    """Whether two paths, of which one was given by the user, name one file."""
    return path == other or (not is_url(path) and os.path.realpath(path) == os.path.realpath(other))


def _none() -> Iterator[int]:
    yield from ()


def _numbers(start: int, total: int | None) -> Iterator[int]:
    step = start
    while total is None or step < total:
        yield step
        step += 1
