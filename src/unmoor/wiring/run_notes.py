"""Writes which checkpoints of a run were verified: `run.json` beside them. What reads it is in `listing_notes.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping

from unmoor.execute.small import write_small
from unmoor.places import entries, join

from .listing_notes import NOTES, Stamp, stamp

__all__ = ["stamp_of", "write_notes"]


def write_notes(folder: str, verified: Mapping[str, tuple[Stamp, int]]) -> None:
    """Note size, time and number of each verified checkpoint by its name; the file is replaced as a whole.

    Raises SaveError for what the system refuses.
    """
    rows = {
        name: {"size": size, "mtime_ns": changed, "number": number}
        for name, ((size, changed), number) in sorted(verified.items())
    }
    text = json.dumps({"version": 1, "verified": rows}, indent=1) + "\n"
    write_small(join(folder, NOTES), text.encode(), durability="system")


def stamp_of(folder: str, name: str) -> Stamp | None:
    """What is noted of a checkpoint as it is now; None where it is not there."""
    entry = next((entry for entry in entries(folder) if entry.name == name), None)
    return None if entry is None else stamp(entry)
