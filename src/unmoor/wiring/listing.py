"""runs and latest: a folder -> its checkpoints, newest first; which of them resume would take."""

from __future__ import annotations

import os

from unmoor.describe.listed import list_folder
from unmoor.filing import path_text
from unmoor.values.listing import Listing, newest_first

__all__ = ["listed"]


def listed(folder: str | os.PathLike[str]) -> Listing:
    """The checkpoints of a folder, by a glance at each. Raises OSError where the folder cannot be listed."""
    path = path_text(folder)
    rows, notes = list_folder(path)
    return Listing(path, newest_first(rows), tuple(notes))
