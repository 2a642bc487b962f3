"""Which checkpoint beside an unfinished one can be used in its place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final

from unmoor import places
from unmoor.errors import FileError
from unmoor.urls import is_url

from .folder_members import natural

__all__ = ["METADATA", "SHARD", "cut_off", "newest_complete", "real_name", "unfinished"]

METADATA: Final = ".metadata"
SHARD: Final = ".distcp"
_LISTED: Final = 64
_TRIED: Final = 4
"""How many siblings are looked into."""


def unfinished(path: str) -> bool:
    """Whether a folder holds shards of torch.distributed.checkpoint and not the list of them, which is written last."""
    names = places.names(path)
    return METADATA not in names and any(name.endswith(SHARD) for name in names)


def cut_off(path: str) -> str:
    """The older folder that a save to `path` put aside before it was killed; "" where it did not."""
    if is_url(path) or os.path.lexists(path):
        return ""
    folder, name = os.path.split(path.rstrip(os.sep))
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return ""
    found = (other for other in names if other.startswith(f".{name}.unmoor-") and other.endswith(".old"))
    return next((os.path.join(folder, other) for other in found), "")


def newest_complete(path: str, read: Callable[[str], Any]) -> str:
    """The newest complete folder beside `path` that `read` can read, by the numbers in their names; "" for none.

    A link is followed first: it is what it points to that has siblings. The path is relative where `path` is.
    """
    if is_url(path):
        return _newest_behind(path, read)
    given = os.path.normpath(path)
    target = os.path.realpath(given)
    folder, name = os.path.split(target)
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir() and not entry.is_symlink()]
    except OSError:
        return ""
    beside = [other for other in names if other != name and not other.startswith(".")]
    found = [other for other in beside if os.path.isfile(os.path.join(folder, other, METADATA))]
    shown = os.path.dirname(given) if os.path.realpath(os.path.dirname(given) or ".") == folder else folder
    return _first_read((os.path.join(shown, other) for other in sorted(found, key=natural, reverse=True)), read)


def _newest_behind(url: str, read: Callable[[str], Any]) -> str:
    """The same for a folder behind a URL."""
    folder, name = places.parent(url), places.name_of(url)
    try:
        beside = [other for other, is_folder in places.kinds(folder) if is_folder and other != name]
    except OSError:
        return ""
    newest = (places.join(folder, other) for other in sorted(beside, key=natural, reverse=True)[:_LISTED])
    return _first_read((place for place in newest if places.is_file(places.join(place, METADATA))), read)


def _first_read(found: Iterable[str], read: Callable[[str], Any]) -> str:
    for place in islice(found, _TRIED):
        try:
            read(place)
        except FileError:
            continue
        return place
    return ""


def real_name(path: str) -> str:
    """`path`, with what it leads to where it is a link."""
    link = not is_url(path) and os.path.islink(path.rstrip(os.sep))
    return f"{path} (a link to {os.path.realpath(path)})" if link else path
