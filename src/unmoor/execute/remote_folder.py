"""Puts a folder behind a URL: file by file, what makes it a checkpoint last.

Knows nothing of checkpoints. No store exchanges a folder for another in one step, so that none is ever replaced.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final

from unmoor import places
from unmoor.errors import SaveError
from unmoor.values.text import listing

from .remote import publish_remote, written_draft

__all__ = ["make_way", "send_folder"]

_PIECE: Final = 1 << 20


def make_way(url: str, own: Callable[[str], bool], whole: Callable[[Collection[str]], bool]) -> None:
    """See that nothing is in the way at `url`: what is left of a save that was cut off is removed.

    Raises SaveError for an object there, a folder with anything that is not `own`, and one whose names are `whole`.
    """
    if places.is_file(url):
        raise SaveError(
            f"{url} was not saved: an object is there, and what is to be written is a folder",
            remedy="Give another URL, or remove the object first.",
            path=url,
            errno=errno.ENOTDIR,
        )
    try:
        names = places.names(url)
    except FileNotFoundError:
        return
    strange = sorted(name for name in names if not own(name))
    if strange or whole(names):
        holds = f"it holds {listing(strange, 6)}" if strange else "it holds a checkpoint, which stays as it is"
        raise SaveError(
            f"{url} was not saved: a folder is there, and no store exchanges one for another in one step",
            details=[holds],
            remedy="Save each step to a URL of its own; remove older ones once the new one is there.",
            path=url,
            errno=errno.EEXIST,
        )
    for name in names:
        places.remove(places.join(url, name))


def send_folder(folder: str, url: str) -> None:
    """Send the files of a folder of this machine to the folder `url`. Where one fails, what was sent is removed."""
    try:
        for name in _in_order(folder):
            _send(os.path.join(folder, name), places.join(url, name))
    except BaseException:
        with suppress(OSError):
            places.remove(url)
        raise


def _in_order(folder: str) -> list[str]:
    """As they were last written; names that begin with a dot are what a folder is known by, and go at the end."""
    rows = sorted(places.entries(folder), key=lambda entry: (entry.name.startswith("."), entry.changed, entry.name))
    return [entry.name for entry in rows]


def _send(path: str, url: str) -> None:
    needed = os.stat(path).st_size
    with publish_remote(url, needed=needed, check=lambda _: None) as hidden, open(path, "rb") as file:
        draft, end = written_draft(hidden), needed - _PIECE
        while piece := file.read(_PIECE):
            draft.write(piece, keep=not draft.nbytes or draft.nbytes >= end)
