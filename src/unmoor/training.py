"""The run itself: `unmoor.Run`. The signatures and the documentation, and little else; `wiring/run_loop.py` does it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from . import api
from .api import TIMEOUT
from .api_files import BUFFER_BYTES, THREADS, PathLike
from .errors import UsageError
from .filing import path_text
from .values.run_policy import parse_keep, parse_policy

if TYPE_CHECKING:
    from .values.listing import Saved
    from .values.report import Report
    from .values.run_events import Event

__all__ = ["Run"]

_NOT_OURS: Final = ("run", "tree", "path", "progress")
"""Keywords that a checkpoint of a run has a use of its own for, or that mean nothing here."""


class Run:
    """A training run in a folder: it resumes by itself, saves by its policy, and ends in order when it is told to.

    A checkpoint is a file `step_000001000.pt` in the folder, as `unmoor.save` writes it: 1,000 steps are done. What a
    step is, the loop decides: a batch, an epoch. State is saved between steps only, where the run can go on from it.

    folder: where the checkpoints of this run lie, and of no other: a path or a URL; it is made where it is missing.
    model, optimizer, scheduler, scaler, loss, metrics, ema, loader, rng: as for `unmoor.save`. Objects with state_dict
        under any other keyword are saved and restored too, plain values are saved.
    every: how often to save, beside the end: 1000 or "1000 steps", "15min", "1h", a tuple of both, with "best" in it
        also whenever a metric of keep_best is logged that would be kept; None for the end alone. A time is measured
        from the beginning of one save to the next, by a clock that cannot be set.
    keep_last: how many of the newest verified checkpoints stay; None deletes nothing.
    keep_best: ("val_loss", "min", 2): the two with the smallest such metric stay too; or a list of these.
    keep_every: "10000 steps": of every so many steps the first checkpoint stays for ever.
    background: True or "wait" writes behind the run, and a save that is due meanwhile waits; "skip" leaves that one
        out; False writes while the run waits. The last save of a run is always waited for.
    on_exception: when the loop is left within a step, by an exception or by break, "save" writes the state there to
        `step_000001000.interrupted.pt`, which `resume` never takes by itself: half a step may be in it. "leave" does
        not.
    on_signal: after SIGTERM, SIGINT or SIGUSR1 the step is ended and the run saved; then "exit" ends the process with
        `exit_code`, and "return" ends the loop. A second SIGINT interrupts at once.
    exit_code: 75 says to job schedulers: come again (EX_TEMPFAIL).
    group, timeout, buffer_bytes: as for `unmoor.save`.

    Each checkpoint is read back and verified after it is written. Older ones are deleted only after that: never the one
    that was resumed from, never the newest verified one, and nothing that no Run wrote. A save that the disk refuses is
    a warning; the run goes on, and saves again when it is next due. The last save of a run raises instead.

    One run at a time has a folder. `with unmoor.Run(...) as run:`, or `run.close()`, lets go of it before the process
    ends. Nothing is read or written before the first call of a method.

    Raises UsageError for a policy that cannot be meant.

    >>> run = unmoor.Run("runs/exp1", model=model, optimizer=optimizer, every="15min")  # doctest: +SKIP
    >>> start = run.resume(model_device="auto")  # doctest: +SKIP
    >>> for step in run.steps(start, 10_000):  # doctest: +SKIP
    ...     train(step)
    """

    def __init__(
        self,
        folder: PathLike,
        *,
        model: Any = None,
        optimizer: Any = None,
        scheduler: Any = None,
        scaler: Any = None,
        loss: Any = None,
        metrics: Any = None,
        ema: Any = None,
        loader: Any = None,
        rng: bool | Mapping[str, Any] = True,
        every: Any = "15min",
        keep_last: int | None = 3,
        keep_best: Any = None,
        keep_every: Any = None,
        background: bool | str = True,
        on_exception: str = "save",
        on_signal: str = "exit",
        exit_code: int = 75,
        group: Any = "world",
        timeout: float = TIMEOUT,
        buffer_bytes: int = BUFFER_BYTES,
        **objects: Any,
    ) -> None:
        from .wiring.run_loop import RunLoop

        keep = parse_keep(last=keep_last, best=keep_best, every=keep_every)
        policy = parse_policy(
            every=every,
            keep=keep,
            background=background,
            on_exception=on_exception,
            on_signal=on_signal,
            exit_code=exit_code,
        )
        taken = [key for key in _NOT_OURS if key in objects]
        if taken:
            raise UsageError(f"{taken[0]}= is no keyword of Run", remedy="Save that value under another keyword.")
        roles = {
            "model": model,
            "optimizer": optimizer,
            "scheduler": scheduler,
            "scaler": scaler,
            "loss": loss,
            "metrics": metrics,
            "ema": ema,
            "loader": loader,
        }
        self._saved = {**{role: value for role, value in roles.items() if value is not None}, **objects}
        self._live = {key: value for key, value in self._saved.items() if key in roles or _has_state(value)}
        self._how = {"rng": rng, "group": group, "timeout": timeout, "buffer_bytes": buffer_bytes}
        self._loop = RunLoop(
            path_text(folder),
            policy,
            write=self._writer(),
            check=self._checker(),
            roles=self._live,
            group=group,
            timeout=timeout,
            how={"buffer_bytes": buffer_bytes, "threads": THREADS},
        )

    def resume(self, *, from_: PathLike | None = None, otherwise: str = "fresh", **restore: Any) -> int:
        """Put the run back as its newest checkpoint that holds has it; how many steps are done, 0 for a fresh start.

        Every byte of a checkpoint is verified before anything changes (`verify="first"`). One that is broken is passed
        over for the one before it, with a warning; where file and live objects do not fit, that is an error, as for
        `unmoor.restore`. `run.report` says what was restored.

        from_: a checkpoint to begin from, of whatever program, or the folder of another run, whose newest is taken. A
            run that has begun from it goes on from its own newest checkpoint when it is started again in the same way.
        otherwise: "fresh" starts at step 0 where no checkpoint holds, with a warning if there are broken ones; "error"
            raises then.
        restore: any keyword of `unmoor.restore`: model_device, missing, only, hyperparameters and so on; also objects,
            in place of those that Run was given.

        Raises what `unmoor.restore` raises; CorruptFile or MachineError where checkpoints are there and it cannot be
        told that all are broken; UsageError where another run has the folder.
        """
        source = None if from_ is None else path_text(from_)
        asked = {**self._how, **self._live, "verify": "first", **restore}
        return self._loop.resume(lambda path: api.restore(path, **asked), source=source, otherwise=otherwise)

    def steps(self, start: int, total: int | None = None) -> Iterator[int]:
        """The numbers of the steps that are left: `start` to `total` - 1; without `total`, until `stop` is called.

        Between two steps the run is saved if that is due, and at the end always; the last save is complete when the
        loop is over. Of a run that had reached its end nothing is left: not a step, not a save. A larger `total` has
        it go on.

        Signals are heard while the loop runs in the main thread. Handlers of your own are called once the save is made,
        and are back when the loop is over.

        Raises UsageError, before the first step, for values that can never be saved, where `start` is not what `resume`
        gave, or checkpoints of an earlier run are there and `resume` was not called; SystemExit with the exit code
        after a signal; SaveError where the last save fails.
        """
        return self._loop.steps(start, total)

    def log(self, **metrics: Any) -> None:
        """Keep numbers for the next checkpoint: ints, floats, or tensors of one element, which are waited for.

        Of several values under one name the last one goes into it. With keep_best these choose what stays; with
        every=(..., "best") a good value has the run saved at the end of the step.
        """
        self._loop.log(metrics)

    def save(self, *, step: int | None = None) -> Saved | None:
        """Save by hand. Within the loop: at the end of the step that is under way. Outside: now, and gives what it is.

        step: how many steps are done, where the loop was left by break or there is none; else it is known.

        Raises SaveError, outside of the loop, where the disk refuses it.
        """
        return self._loop.save(step)

    def stop(self) -> None:
        """End the loop at the end of this step, saved and finished: early stopping, where break would lose the step."""
        self._loop.stop()

    def close(self) -> None:
        """Wait for what is still being saved, and let another run have the folder; this one is over."""
        self._loop.close()

    @property
    def folder(self) -> str:
        """Where the checkpoints lie."""
        return self._loop.path

    @property
    def step(self) -> int:
        """How many steps are done."""
        return self._loop.step

    @property
    def last(self) -> Saved | None:
        """The checkpoint that was written last, or resumed from; None where there is none."""
        return self._loop.saver.last

    @property
    def report(self) -> Report | None:
        """What `resume` restored; None for a fresh start."""
        return self._loop.report

    @property
    def events(self) -> tuple[Event, ...]:
        """All that happened beside training, in order."""
        return self._loop.diary.events

    @property
    def stopped(self) -> str:
        """The name of the signal that ended the loop, "" for none."""
        return self._loop.stopped

    @property
    def finished(self) -> bool:
        """Whether the run has reached its end."""
        return self._loop.finished

    def __enter__(self) -> Run:  # noqa: PYI034 - typing.Self came with Python 3.11
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def __str__(self) -> str:
        return self._loop.text()

    def __repr__(self) -> str:
        return f"unmoor.Run({self.folder!r}, step={self.step})"

    def _writer(self) -> Callable[[str, Mapping[str, Any], bool | str], Any]:
        """What writes a checkpoint. It does not hold the run, which would keep the folder locked."""
        saved, how = self._saved, self._how

        def write(path: str, record: Mapping[str, Any], background: Any) -> Any:
            return api.save(path, **saved, **how, run=dict(record), background=background)

        return write

    def _checker(self) -> Callable[[], None]:
        """What finds out that something can never be saved, before the first step is taken."""
        live, rng = self._live, self._how["rng"]
        values = {key: value for key, value in self._saved.items() if key not in live}

        def check() -> None:
            from .live.content import collect

            collect(live, values, rng=rng is not False, generators=rng if isinstance(rng, Mapping) else {})

        return check


def _has_state(value: Any) -> bool:
    return callable(getattr(value, "state_dict", None))
