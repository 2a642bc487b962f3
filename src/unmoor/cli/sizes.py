"""How much there is to read, for a progress bar: all of a file, or of a folder."""

from __future__ import annotations

import os
from contextlib import suppress

from unmoor.errors import UnmoorError
from unmoor.places import tree_bytes
from unmoor.urls import is_url

__all__ = ["bytes_below"]


def bytes_below(path: str) -> int:
    """The bytes of a file, or of all files of a folder; 0 for what is not there."""
    if is_url(path):
        with suppress(OSError, UnmoorError):
            return tree_bytes(path)
        return 0
    if not os.path.isdir(path):
        return os.path.getsize(path) if os.path.isfile(path) else 0
    places = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    return sum(os.path.getsize(place) for place in places if os.path.isfile(place))
