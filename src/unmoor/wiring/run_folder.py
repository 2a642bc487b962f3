"""The folder of a run, as the one process sees it that writes there: what lies in it, what is added, what goes.

The folder is looked at once, when the run begins; from then on the lock keeps others out, and it is known.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from typing import Final

from unmoor.errors import SaveError, UsageError
from unmoor.execute.leftovers import hidden_name, sweep
from unmoor.places import exists, is_folder, join, make_folder, name_of, remove
from unmoor.plan.retention import expendable, is_own
from unmoor.urls import is_url
from unmoor.values.listing import Saved
from unmoor.values.run_policy import Keep
from unmoor.values.text import count, listing

from .listing import listed
from .listing_notes import Stamp
from .run_diary import Diary
from .run_lock import Lock, take_lock
from .run_notes import stamp_of, write_notes

__all__ = ["HALF", "RunFolder", "told"]

HALF: Final = ".interrupted"
"""In the name of a checkpoint that holds the state within a step."""


class RunFolder:
    """What lies in the folder of a run. `rows` are its own checkpoints, oldest first; `foreign` all others."""

    def __init__(self, path: str, diary: Diary) -> None:
        self.path = path
        self.rows: list[Saved] = []
        self.foreign: tuple[Saved, ...] = ()
        self.protected: set[str] = set()
        self._diary = diary
        self._lock: Lock | None = None
        self._stamps: dict[str, Stamp] = {}
        self._number = 0

    def open(self) -> None:
        """Make the folder where there is none, keep others out, sweep it, and see what is there.

        Raises UsageError for what is no folder, and where another run has it; SaveError for what the system refuses.
        """
        try:
            make_folder(self.path)
        except FileExistsError:
            raise UsageError(
                f"{self.path} is a file, not a folder", remedy="Give the run a folder of its own.", path=self.path
            ) from None
        except OSError as error:
            raise _refused(self.path, error) from error
        self._lock = self._lock or take_lock(self.path)
        if self._lock is None:
            self._diary.note("unlocked", f"{self.path} cannot be locked here: nothing keeps a second run out of it")
        gone = sweep(self.path)
        if gone:
            self._diary.note("swept", f"removed what killed processes had left: {listing(gone)}")
        self._look()

    def close(self) -> None:
        """Let another run have the folder."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def name(self, step: int, *, half: bool, sharded: bool) -> tuple[str, int]:
        """A name that nothing has yet, and its number."""
        number = self._number + 1
        stem, end = f"step_{step:09d}", (HALF if half else "") + ("" if sharded else ".pt")
        name = stem + end
        return (f"{stem}-{number}{end}" if exists(join(self.path, name)) else name), number

    def add(self, row: Saved) -> None:
        """Note a checkpoint that was written."""
        self._number = max(self._number, row.number)
        self.rows = [*(one for one in self.rows if one.name != row.name), row]

    def note(self, name: str, *, verified: bool) -> Saved:
        """Note whether a checkpoint holds; the row as it is now."""
        made = replace(next(row for row in self.rows if row.name == name), verified=verified)
        self.rows = [made if row.name == name else row for row in self.rows]
        self._stamps.pop(name, None)
        if verified:
            with suppress(OSError):
                found = stamp_of(self.path, name)
                self._stamps |= {name: found} if found is not None else {}
        self._write_notes()
        return made

    def doubt(self, path: str) -> None:
        """Note that a checkpoint does not hold after all, if it is one of these."""
        if any(row.path == path for row in self.rows):
            self.note(name_of(path), verified=False)

    def retire(self, keep: Keep) -> None:
        """Delete what the policy has no use for. What cannot be deleted stays, and is tried again the next time."""
        half, gone = [row.name for row in self.rows if HALF in row.name], False
        for name in expendable(self.rows, keep, self.protected, interrupted=half):
            path = join(self.path, name)
            try:
                _discard(path)
            except OSError as error:
                self._diary.note("kept", f"{name} could not be deleted: {error.strerror or error}", path=path)
                continue
            self.rows = [row for row in self.rows if row.name != name]
            self._stamps.pop(name, None)
            self._diary.note("removed", f"deleted {name}", path=path)
            gone = True
        if gone:
            self._write_notes()

    def candidates(self) -> list[Saved]:
        """What a run may go on from, the newest first."""
        return [row for row in reversed(self.rows) if row.complete and HALF not in row.name]

    def broken(self) -> list[Saved]:
        """What is newer than all that a run may go on from, and cannot be resumed from; the newest first."""
        good = {row.name for row in self.candidates()}
        newer = takewhile(lambda row: row.name not in good, reversed(self.rows))
        return [row for row in newer if not row.complete and HALF not in row.name]

    def _look(self) -> None:
        found = listed(self.path).rows if is_folder(self.path) else ()  # behind a URL none may be there yet
        self.rows = [row for row in reversed(found) if is_own(row)]
        self.foreign = tuple(row for row in found if not is_own(row))
        self._number = max((row.number for row in self.rows), default=0)
        stamps = ((row.name, stamp_of(self.path, row.name)) for row in self.rows if row.verified)
        self._stamps = {name: stamp for name, stamp in stamps if stamp is not None}

    def _write_notes(self) -> None:
        """A note that cannot be written is no matter: what it would tell can be found out again."""
        numbers = {row.name: row.number for row in self.rows}
        with suppress(SaveError):
            write_notes(self.path, {name: (stamp, numbers.get(name, 0)) for name, stamp in self._stamps.items()})


def told(rows: Collection[Saved]) -> str:
    """How many checkpoints, and the first of them by name."""
    return f"{count(len(rows), 'checkpoint')} ({listing([row.name for row in rows])})"


def _discard(path: str) -> None:
    """Delete a checkpoint; one in several files is hidden first, so that no half of it looks like a whole."""
    if not is_url(path) and is_folder(path) and not os.path.islink(path):
        hidden = hidden_name(path)
        os.rename(path, hidden)
        path = hidden
    remove(path)


def _refused(path: str, error: OSError) -> SaveError:
    return SaveError(
        f"the folder {path} could not be made: {error.strerror or error}",
        remedy="Give the run a folder that this user may make or write in.",
        path=path,
        errno=error.errno,
    )
