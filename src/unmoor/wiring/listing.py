"""runs and latest: a folder -> its checkpoints, newest first; which of them resume would take."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from unmoor.describe.listed import Pointer, list_folder
from unmoor.errors import NotACheckpoint, UnmoorError
from unmoor.filing import path_text, why_absent
from unmoor.places import entries, exists, is_folder, join
from unmoor.report.listing import listing_text
from unmoor.values.listing import Listing, Saved, newest_first
from unmoor.values.text import listing
from unmoor.values.verification import Verification

from .listing_notes import noted, stamp
from .verifying import verify_path

__all__ = ["Check", "latest_of", "listed", "run_listing"]

_SHOWN: Final = 8

Check = Callable[[str], Verification]
"""What holds every byte of a checkpoint against its checksums."""


def run_listing(
    folder: str | os.PathLike[str],
    *,
    verify: bool,
    buffer_bytes: int,
    threads: int,
    progress: Callable[[int], None] | None,
) -> Listing:
    """The checkpoints of a folder, each verified now where `verify` says so."""
    found = listed(folder)
    if verify:
        check = _check(buffer_bytes, threads, progress)
        found = replace(found, rows=tuple(checked(row, check) if row.complete else row for row in found.rows))
        found = replace(found, text=listing_text(found))
    return found


def latest_of(
    folder: str | os.PathLike[str],
    *,
    verify: bool,
    buffer_bytes: int,
    threads: int,
    progress: Callable[[int], None] | None,
) -> Saved:
    """The newest checkpoint that can be resumed from, of those that `verify` finds sound where it is asked for.

    Raises NotACheckpoint, naming what is there, where there is none.
    """
    found = listed(folder)
    check = _check(buffer_bytes, threads, progress)
    passed: list[Saved] = []
    for row in found.rows:
        one = checked(row, check) if verify and row.complete else row
        if one.complete:
            return replace(one, passed=tuple(passed))
        passed.append(one)
    raise _none(found, passed)


def _check(buffer_bytes: int, threads: int, progress: Callable[[int], None] | None) -> Check:
    return lambda path: verify_path(
        path, buffer_bytes=buffer_bytes, threads=threads, progress=progress, look_beside=False
    )


def checked(row: Saved, check: Check) -> Saved:
    """The row of a checkpoint after all of its bytes were read."""
    try:
        made = check(row.path)
    except (UnmoorError, OSError) as error:
        why = error.headline if isinstance(error, UnmoorError) else f"cannot be read: {error.strerror or error}"
        return replace(row, verified=False, complete=False, why=_short(why, row.path))
    if made.ok:
        return replace(row, verified=True if made.records else None)
    return replace(row, verified=False, complete=False, why=_why(made))


def _why(made: Verification) -> str:
    """What is wrong with a checkpoint, in one line."""
    if made.damaged:
        return f"damaged: {listing(made.damaged, 2)}"
    if made.faults:
        first = made.faults[0]
        said = first.message if first.kind == "structure" else f"{first.place}: {first.message}"
        return _short(said, made.path)
    return next(finding.message for finding in made.findings if finding.severity in ("danger", "error"))


def _short(said: str, path: str) -> str:
    """A sentence without the path that the row names already."""
    return said.removeprefix(path).lstrip(": ").removeprefix("is ")


def _none(found: Listing, passed: Sequence[Saved]) -> NotACheckpoint:
    details = [f"{row.name}: {row.why}" for row in passed[:_SHOWN]]
    details += [f"and {len(passed) - _SHOWN:,} more"] if len(passed) > _SHOWN else []
    if not passed:
        names = [entry.name + ("/" if entry.is_folder else "") for entry in entries(found.folder)]
        details = [f"it holds {listing(names, _SHOWN)}" if names else "it is empty"]
    return NotACheckpoint(
        f"{found.folder} holds no checkpoint that can be resumed from", details=details, path=found.folder
    )


def listed(folder: str | os.PathLike[str]) -> Listing:
    """The checkpoints of a folder, by a glance at each.

    Raises NotACheckpoint where there is no such folder, OSError where it cannot be listed.
    """
    path = path_text(folder)
    if not is_folder(path):
        what = "is a file, not a folder of checkpoints" if exists(path) else why_absent(path)
        raise NotACheckpoint(f"{path} {what}", remedy="Give the folder in which checkpoints lie.", path=path)
    found = list_folder(path)
    rows = newest_first(_with_notes(path, found.rows))
    made = Listing(path, rows, (*found.notes, *_pointed(path, found.pointers, rows)))
    return replace(made, text=listing_text(made))


def _with_notes(folder: str, rows: Sequence[Saved]) -> Iterator[Saved]:
    """The rows with what a run noted: which were verified and not changed since; which save a broken one was."""
    notes = noted(folder)
    there = {entry.name: entry for entry in entries(folder)} if notes else {}
    for row in rows:
        note, entry = notes.get(row.name), there.get(row.name)
        if note is None or entry is None:
            yield row
        elif row.complete:
            yield replace(row, verified=True) if stamp(entry) == note.stamp else row
        else:
            yield replace(row, number=row.number or note.number)


def _pointed(folder: str, pointers: Sequence[Pointer], rows: Sequence[Saved]) -> Iterator[str]:
    """What is wrong with what names the newest checkpoint: it is a hint, and nothing is taken because of it."""
    newest = next((row for row in rows if row.complete), None)
    for name, target in pointers:
        row = next((row for row in rows if row.name == target or row.name.startswith(f"{target}.")), None)
        if row is None:
            if "/" in target or not exists(join(folder, target)):
                yield f"{name} names {target}, which is {'elsewhere' if '/' in target else 'not there'}"
        elif not row.complete:
            yield f"{name} names {target}, which cannot be resumed from"
        elif row is not newest and newest is not None and name.startswith(("latest", "last")):
            yield f"{name} names {target}, and {newest.name} is newer"
