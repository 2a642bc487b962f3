"""Saves that go on in the background: one at a time, unless threads begin them at once; no failure goes unsaid.

The call after it waits for it, and raises what it failed with unless `wait` has; if there is no such call, it is told
when the interpreter exits, as an error of a thread is.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from unmoor.errors import SaveError, UnmoorError, UsageError
from unmoor.values.report import Receipt

__all__ = ["MODES", "Pending", "adopt", "finish_earlier", "run_behind", "skipped"]

MODES = (False, True, "wait", "refuse", "skip")
"""What `background` may be, if an earlier save is still being written: True is "wait"."""


class Pending:
    """A save that goes on in the background while the run does. What it writes is the state at the call of `save`.

    `path` is where it goes; what was there before stays until all of it is written. `skipped` tells that nothing is
    written because an earlier save was still being written: background="skip".
    """

    def __init__(self, path: str, *, skipped: bool = False) -> None:
        self.path = path
        self.skipped = skipped
        self._process = os.getpid()
        self._result: Future[Receipt] = Future()
        self._told = False

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._result.done()

    def wait(self) -> Receipt:
        """Wait until it has ended; its receipt, which says so if it was skipped.

        Raises SaveError, or what else it failed with; UsageError in a process that was forked from the run meanwhile.
        """
        if not self.done() and self._process != os.getpid():
            raise UsageError(
                f"{self.path} is saved by the process from which this one was forked", remedy="Wait for it there."
            )
        error = self._result.exception()
        self._told = True
        if error is not None:
            raise error
        return self._result.result()

    def __str__(self) -> str:
        if not self.done():
            return f"saving {self.path} in the background"
        error = self._result.exception()
        return str(self._result.result()) if error is None else f"the save in the background failed: {error}"

    __repr__ = __str__

    def end(self, receipt: Callable[[], Receipt], failed: Callable[[BaseException], BaseException]) -> None:
        """Keep the receipt, or what `failed` makes of the error instead."""
        try:
            made = receipt()
        except BaseException as error:  # noqa: BLE001 - raised where the run can see it
            try:
                self._result.set_exception(failed(error))
            except BaseException as another:  # noqa: BLE001
                self._result.set_exception(another)
            return
        self._result.set_result(made)

    def untold(self) -> BaseException | None:
        """The error that it failed with and that nobody was told; from now on it counts as told."""
        if self._told or not self.done():
            return None
        self._told = True
        return self._result.exception()


def run_behind(path: str, work: Callable[[], Receipt]) -> Pending:
    """Do `work`, a save to `path`, in a thread. The interpreter does not exit before it has ended.

    Raises SaveError where no thread can be started, as when the interpreter is about to exit.
    """
    pending = Pending(path)
    pool = ThreadPoolExecutor(1, thread_name_prefix="unmoor-save")
    try:
        pool.submit(pending.end, work, lambda error: error)
    except RuntimeError as error:
        raise SaveError(
            f"{path} was not saved: {error}", remedy="Save with background=False, which needs no thread.", path=path
        ) from error
    pool.shutdown(wait=False)
    return _begun(pending)


def adopt(
    path: str,
    future: Future[Any],
    receipt: Callable[[Any], Receipt],
    failed: Callable[[BaseException], BaseException],
) -> Pending:
    """The save that a future of another engine is: `receipt` and `failed` make ours of its result or its error."""
    pending = _begun(Pending(path))
    future.add_done_callback(lambda ended: pending.end(lambda: receipt(ended.result()), failed))
    return pending


def skipped(path: str, busy: str) -> Pending:
    """A save to `path` that is none, because `busy` was still being written."""
    why = f"{busy} was still being saved in the background"
    pending = Pending(path, skipped=True)
    pending._result.set_result(
        Receipt(path, 0, 0.0, {}, notes=(("skipped", why),), text=f"{path} was not saved: {why} (skipped)")
    )
    return pending


def finish_earlier(mode: Any, now: str) -> str:
    """Wait for the save that is still in the background before `now` (in words) begins.

    Where `mode` is "skip", nothing is waited for: the path of that save is given if there is one, else "". Raises
    UsageError instead of waiting where `mode` is "refuse"; what the save failed with if nobody was told.
    """
    if mode not in MODES:
        raise UsageError(f"background={mode!r} is none of {', '.join(map(repr, MODES))}")
    for pending in _open():
        if mode == "skip" and not pending.done():
            return pending.path
        if mode == "refuse" and not pending.done():
            raise UsageError(
                f"{pending.path} is still being saved in the background",
                remedy='Wait for it: pending.wait(), or background="wait".',
                path=pending.path,
            )
        pending._result.exception()
        error = pending.untold()
        if error is not None:
            raise _retold(error, pending.path, now) from error
    return ""


def _retold(error: BaseException, path: str, now: str) -> UnmoorError:
    line = f"that was the save in the background, told now: {now} was not begun"
    if isinstance(error, UnmoorError):
        own = {"errno": error.errno} if isinstance(error, SaveError) else {}
        return type(error)(error.headline, details=(*error.details, line), remedy=error.remedy, path=error.path, **own)
    return SaveError(f"{path} was not saved: {type(error).__name__}: {error}", details=(line,), path=path)


_last: list[Pending] = []
"""The save in the background that was begun last, and those before it of which nobody knows how they ended."""
_lock: Final = threading.Lock()


def _begun(pending: Pending) -> Pending:
    with _lock:
        if not _last:
            atexit.register(_tell_at_exit)
        _last[:] = [*_open(), pending]
    return pending


def _open() -> list[Pending]:
    """What this process may still write, or has yet to tell. A forked one has none of its parent's threads."""
    return [pending for pending in _last if pending._process == os.getpid() and not pending._told]


def _tell_at_exit() -> None:
    """Say what nobody was told, as Python does for an error that ends a thread."""
    for pending in _open():
        error = pending.untold()
        if error is not None:
            thread = threading.Thread(name=f"background save of {pending.path}")
            threading.excepthook(threading.ExceptHookArgs([type(error), error, error.__traceback__, thread]))
