"""What unmoor.Run noted of the checkpoints that it verified: `run.json` in their folder.

A note holds while the checkpoint has the size and the time that it had when it was verified; a lost or stale one only
means that nobody knows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from unmoor.errors import FileError
from unmoor.filing import open_reader, read
from unmoor.places import Entry, entries, join

__all__ = ["NOTES", "Note", "Stamp", "noted", "stamp"]

NOTES: Final = "run.json"
_MOST: Final = 16 << 20

Stamp = tuple[int, int]
"""Bytes of a checkpoint and the time of its last change in ns; of a folder those of all files in it."""


class Note(NamedTuple):
    """What was noted of a checkpoint: its stamp when it was verified, and the number of its save."""

    stamp: Stamp
    number: int


def stamp(entry: Entry) -> Stamp:
    """What a note about a checkpoint holds against it later. Raises OSError where the system does."""
    if not entry.is_folder:
        return entry.nbytes, entry.changed
    inside = entries(entry.path)
    return sum(each.nbytes for each in inside), max((each.changed for each in inside), default=0)


def noted(folder: str) -> Mapping[str, Note]:
    """The note of each checkpoint by its name; empty where there is none that can be read."""
    try:
        with open_reader(join(folder, NOTES)) as reader:
            found = json.loads(read(reader, 0, min(reader.size, _MOST)))
    except (FileError, OSError, ValueError, RecursionError):
        return {}
    rows = found.get("verified", found) if isinstance(found, dict) else None
    named = rows.items() if isinstance(rows, dict) else ()
    return {name: made for name, row in named if (made := _note(row)) is not None}


def _note(row: Any) -> Note | None:
    size, changed, number = (row.get(key) for key in ("size", "mtime_ns", "number")) if isinstance(row, dict) else "   "
    if type(size) is not int or type(changed) is not int:
        return None
    return Note((size, changed), number if type(number) is int and number > 0 else 0)
