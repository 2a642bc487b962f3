"""Which checkpoints of a run were verified: a small file beside them that nothing depends on.

What it says of a file holds as long as that has the size and the time it had then. Lost or damaged, it says nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from unmoor.execute.commit import publish
from unmoor.filing import open_reader, read
from unmoor.errors import UnmoorError
from unmoor.places import Entry, entries, join, tree_bytes

__all__ = ["NOTES", "note_of", "read_notes", "write_notes"]

NOTES: Final = "run.json"
_MOST: Final = 4 << 20
"""Bytes of it that are read at most."""


def read_notes(folder: str) -> dict[str, dict[str, int]]:
    """Name of a checkpoint -> its size, time and number when it was verified. Empty where nothing can be read."""
    with suppress(OSError, ValueError, UnmoorError, RecursionError):
        with open_reader(join(folder, NOTES)) as reader:
            found = json.loads(read(reader, 0, min(reader.size, _MOST)))
        if isinstance(found, dict):
            return {name: row for name, row in found.items() if _is_row(row)}
    return {}


def write_notes(folder: str, notes: Mapping[str, Mapping[str, int]]) -> None:
    """Write it, whole or not at all. Raises SaveError for what the system refuses."""
    text = json.dumps({name: dict(row) for name, row in sorted(notes.items())}, indent=1) + "\n"
    with (
        publish(join(folder, NOTES), needed=len(text), durability="system", check=lambda _: None) as hidden,
        open(hidden, "w", encoding="utf-8") as file,
    ):
        file.write(text)


def note_of(path: str, number: int) -> dict[str, int]:
    """What is noted of a checkpoint as it is now. Raises OSError where it is not there."""
    folder, _, name = path.rpartition("/")
    entry = next((one for one in entries(folder or ".") if one.name == name), None)
    if entry is None:
        raise FileNotFoundError(path)
    return {"size": _size(entry), "mtime_ns": entry.changed, "number": number}


def _size(entry: Entry) -> int:
    return tree_bytes(entry.path) if entry.is_folder else entry.nbytes


def _is_row(row: Any) -> bool:
    return isinstance(row, dict) and all(isinstance(row.get(key), int) for key in ("size", "mtime_ns", "number"))
