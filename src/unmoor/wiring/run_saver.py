"""Saves of a run: written, read back, noted, and only then may older ones go. A failure does not end the run.

What is written behind the run is followed by a thread. One save is under way at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from unmoor.errors import SaveError, UnmoorError
from unmoor.execute.yielding import step_back
from unmoor.places import join
from unmoor.values.listing import Saved
from unmoor.values.report import Receipt
from unmoor.values.run_policy import Policy
from unmoor.values.text import format_bytes

from .pending import Pending
from .run_clock import now
from .run_council import Council
from .run_diary import Diary
from .run_folder import HALF, RunFolder
from .run_metrics import Metrics
from .verifying import verify_path

__all__ = ["Saver", "Write"]

Write = Callable[[str, Mapping[str, Any], bool | str], Receipt | Pending]
"""Path, what the run notes of itself, and how it is written behind the run -> what save gives."""

_GLANCE: Final = 0.5
"""Seconds after which ranks that wait are told that this one still does."""


class Saver:
    """Writes the checkpoints of a run.

    `saved` is the step of the last one, `began` when it was begun, `last` what it is; `failure` why the newest save did
    not succeed, None where it did.
    """

    def __init__(
        self,
        folder: RunFolder,
        council: Council,
        diary: Diary,
        policy: Policy,
        *,
        metrics: Metrics,
        write: Write,
        how: Mapping[str, Any],
    ) -> None:
        self.saved: int | None = None
        self.began = now()
        self.last: Saved | None = None
        self.failure: BaseException | None = None
        self._folder, self._council, self._diary, self._policy = folder, council, diary, policy
        self._metrics, self._write, self._how = metrics, write, how
        self._thread: threading.Thread | None = None
        self._fatal: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether an earlier save is still under way."""
        return self._thread is not None and self._thread.is_alive()

    def settle(self) -> None:
        """Wait for what is under way."""
        while self._thread is not None and self._thread.is_alive():
            self._council.alive()
            self._thread.join(_GLANCE)
        self._thread = None

    def complain(self) -> None:
        """Raise what ended a save behind the run and must end the run."""
        fatal, self._fatal = self._fatal, None
        if fatal is not None:
            raise fatal

    def save(self, name: str, record: Mapping[str, Any], *, final: bool, half: bool = False) -> bool:
        """Write a checkpoint; False where nothing was written.

        `final`: here and now, and what it fails with is raised. Else a failure of the machine is told to the user, and
        the run goes on.
        """
        self.settle()
        before, path = self.saved, join(self._folder.path, name)
        row = Saved(path, name, record["step"], record["number"], dict(record["metrics"]), written=record["written"])
        row = replace(row, dialect="unmoor", finished=record["finished"])
        self.began = now()
        self._metrics.clear()
        mode: bool | str = False if final or self._policy.background == "no" else self._policy.background
        try:
            made = self._write(path, record, mode)
        except (SaveError, OSError) as error:
            self._failed(row, record, error, before, final=final)
            if final:
                raise
            return False
        if not half:
            self.saved = row.step
        if isinstance(made, Receipt):
            self._complete(row, made, before)
        elif made.skipped:
            self.saved = before
            self._metrics.give_back(record["metrics"], record["logged_at"])
            self._diary.note("skipped", f"{name} was not saved: an earlier save was still being written", path=path)
            return False
        else:
            self._diary.note("saving", f"{name} is written behind the run ({record['why']})", path=path)
            self._thread = threading.Thread(
                target=self._follow, args=(made, row, record, before), name="unmoor-run", daemon=False
            )
            self._thread.start()
        return True

    def _follow(self, pending: Pending, row: Saved, record: Mapping[str, Any], before: int | None) -> None:
        try:
            receipt = pending.wait()
        except (SaveError, OSError) as error:
            self._failed(row, record, error, before, final=False)
        except BaseException as error:  # noqa: BLE001 - raised by the thread that runs the loop
            self.saved, self._fatal = before, error
        else:
            step_back()
            self._complete(row, receipt, before)

    def _failed(
        self, row: Saved, record: Mapping[str, Any], error: Exception, before: int | None, *, final: bool
    ) -> None:
        self.saved, self.failure = before, error
        self._metrics.give_back(record["metrics"], record["logged_at"])
        said = error.headline if isinstance(error, UnmoorError) else f"{row.path} was not saved: {error}"
        last = f"the last checkpoint is {self.last.name}" if self.last is not None else "there is no checkpoint yet"
        goes = "" if final else "; the run goes on, and saves again when it is next due"
        self._diary.note("failed", f"{said}; {last}{goes}", path=row.path, step=row.step, warn=not final)

    def _complete(self, row: Saved, receipt: Receipt, before: int | None) -> None:
        row = replace(row, nbytes=receipt.nbytes)
        self.failure = None
        size = format_bytes(receipt.nbytes)
        self._diary.note("saved", f"saved {row.name}, {size}", path=row.path, step=row.step)
        self._known(row)
        if self._council.rank:
            return
        self._folder.add(row)
        why = self._why_not(row.path)
        self._known(self._folder.note(row.name, verified=not why))
        if why:
            self.saved = before
            said = f"{row.path} was written and does not hold: {why}; older checkpoints were kept"
            self._diary.note("unverified", said, path=row.path, step=row.step, warn=True)
            return
        self._diary.note("verified", f"{row.name} was read back: every checksum holds", path=row.path, step=row.step)
        self._folder.retire(self._policy.keep)

    def _known(self, row: Saved) -> None:
        if HALF not in row.name:
            self.last = row

    def _why_not(self, path: str) -> str:
        """Why a checkpoint that was just written does not hold, "" where it does."""
        try:
            made = verify_path(path, progress=None, **self._how)
        except (UnmoorError, OSError) as error:
            return error.headline if isinstance(error, UnmoorError) else str(error)
        if made.ok:
            return ""
        with suppress(IndexError):
            return f"{made.faults[0].place}: {made.faults[0].message}"
        return next(str(finding) for finding in made.findings if finding.severity in ("error", "danger"))
