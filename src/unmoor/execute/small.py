"""A few bytes put in their place whole or not at all: a page, a note, an index."""

from __future__ import annotations

import os

from unmoor.places import tree_bytes
from unmoor.urls import is_url

from .commit import Durability, publish

__all__ = ["write_small"]


def write_small(path: str | os.PathLike[str], data: bytes, *, durability: Durability) -> None:
    """Write `data` at `path`, a file or an object behind a URL. Raises SaveError for what the system refuses."""

    def whole(hidden: str) -> None:
        if tree_bytes(hidden) != len(data):
            raise OSError(f"only {tree_bytes(hidden):,} of {len(data):,} bytes were written")

    with publish(path, needed=len(data), durability=durability, check=whole) as hidden:
        if is_url(hidden):
            from .remote import written_draft

            written_draft(hidden).write(data, keep=True)
        else:
            with open(hidden, "wb") as file:
                file.write(data)
