"""The checkpoints that lie in a folder, of whatever program: a row for each, in no order. A folder -> rows and notes.

What each is, is told by names; how far it was, and if it is whole, by a glance. Nothing is run, no link leads out of
the folder, and what cannot be read is a row that says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from unmoor.places import Entry, entries
from unmoor.values.listing import Saved

from .folder_plain import CHECKPOINTS
from .glance import glance_file
from .glance_shards import glance_shards, is_sharded
from .listed_row import broken, looked_at

__all__ = ["list_folder"]

_SURE = (".pt", ".pth", ".ckpt", ".safetensors")


def list_folder(folder: str) -> tuple[list[Saved], list[str]]:
    """Every checkpoint in `folder`, and what to know of the folder. Raises OSError where it cannot be listed."""
    found = entries(folder)
    return [*_files(found), *_folders(found)], []


def _files(found: Sequence[Entry]) -> Iterator[Saved]:
    for entry in found:
        if not entry.is_folder and entry.name.endswith(CHECKPOINTS):
            row = looked_at(entry, lambda path=entry.path: glance_file(path), nbytes=entry.nbytes,
                            sure=entry.name.endswith(_SURE))  # fmt: skip
            if row is not None:
                yield row


def _folders(found: Sequence[Entry]) -> Iterator[Saved]:
    for entry in found:
        if not entry.is_folder or entry.name.startswith("."):
            continue
        try:
            inside = entries(entry.path)
        except OSError as error:
            yield broken(entry, [f"cannot be listed: {error.strerror or error}"], nbytes=0)
            continue
        sizes = {each.name: each.nbytes for each in inside}
        if is_sharded(sizes):
            row = looked_at(entry, lambda path=entry.path, sizes=sizes: glance_shards(path, sizes), nbytes=sum(sizes.values()))
            if row is not None:
                yield row
