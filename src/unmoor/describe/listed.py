"""The checkpoints that lie in a folder, of whatever program: a row for each, in no order, and what points to them.

What each is, is told by names; how far it was, and if it is whole, by a glance. Nothing is run, no link leads out of
the folder, and what cannot be read is a row that says why.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from unmoor.errors import FileError
from unmoor.filing import open_reader, read
from unmoor.places import Entry, join, name_of
from unmoor.values.listing import Saved

from .listed_files import listed_files
from .listed_folders import kind_of
from .listed_inside import Inside, opened
from .listed_names import LASTING, POINTERS, SURE, WITHIN, temporary
from .listed_row import broken, looked_at

__all__ = ["Found", "Pointer", "list_folder"]

_LONGEST: Final = 256
"""Bytes of a file that may be a pointer."""
_DEEPEST: Final = 2


class Pointer(NamedTuple):
    """Something that says which checkpoint is the newest: what it is called, and which it names."""

    name: str
    target: str


class Found(NamedTuple):
    """The rows of a folder, what points to them, and what to know of the folder."""

    rows: list[Saved]
    pointers: list[Pointer]
    notes: list[str]


def list_folder(folder: str) -> Found:
    """Every checkpoint in `folder`, or the one that it is itself. Raises OSError where it cannot be listed."""
    inside = opened(folder)
    pointers = list(_pointers(inside))
    inside = inside.without({pointer.name for pointer in pointers})
    alone = _alone(folder, inside)
    if alone is not None:
        return Found([alone], [], [])
    rows = [*_unreadable(inside), *_temporary(inside), *listed_files(inside), *_folders(inside)]
    within = next((name for name in WITHIN if name in inside.folders), "")
    if not any(row.complete for row in rows) and within:
        found = list_folder(inside.folders[within].path)
        if found.rows:
            return Found([*rows, *found.rows], [*pointers, *found.pointers], [*found.notes, f"they lie in {within}/"])
    return Found(rows, pointers, [])


def _alone(folder: str, inside: Inside) -> Saved | None:
    """The row of a folder that is itself one checkpoint, as programs write them; None for a folder of several."""
    name = name_of(folder)
    look = kind_of(name, inside, plain=False)
    if look is None:
        return None
    entry, nbytes = _entry(folder, inside)
    return looked_at(entry, look, nbytes=nbytes)


def _entry(path: str, inside: Inside) -> tuple[Entry, int]:
    """A folder as an entry, changed when the last of its files was, and its bytes; both two folders down."""
    files = list(_files(inside, _DEEPEST))
    changed = max((entry.changed for entry in files), default=0)
    return Entry(name_of(path), path, is_folder=True, nbytes=0, changed=changed), sum(entry.nbytes for entry in files)


def _files(inside: Inside, deep: int) -> Iterator[Entry]:
    yield from inside.files.values()
    for name in inside.folders if deep else ():
        yield from _files(inside.below(name), deep - 1)


def _pointers(inside: Inside) -> Iterator[Pointer]:
    """Links to what lies beside them, and small files that are called as pointers are."""
    for name, entry in {**inside.files, **inside.folders}.items():
        if entry.link:
            yield Pointer(name, entry.link)
        elif name in POINTERS and not entry.is_folder and 0 < entry.nbytes <= _LONGEST:
            try:
                with open_reader(entry.path) as reader:
                    word = read(reader, 0, _LONGEST).decode("utf-8", "replace").strip()
            except (FileError, OSError):
                continue
            named = POINTERS[name].format(int(word)) if word.isascii() and word.isdigit() else word
            yield Pointer(name, named.replace("\\", "/").rstrip("/").rpartition("/")[2])
    for name, target in inside.links.items():
        if name in POINTERS:
            yield Pointer(name, target)


def _unreadable(inside: Inside) -> Iterator[Saved]:
    """What is called as a checkpoint is, and lies elsewhere."""
    for name, target in inside.links.items():
        if name.endswith(SURE) or LASTING.fullmatch(name):
            entry = Entry(name, join(inside.path, name), is_folder=False, nbytes=0, changed=0)
            yield broken(entry, [f"a link that leads out of the folder, to {target}: give that path itself"], nbytes=0)


def _temporary(inside: Inside) -> Iterator[Saved]:
    """What a save, a copy or a download has not finished, or is busy with."""
    for name, entry in {**inside.files, **inside.folders}.items():
        if temporary(name):
            aside = name.startswith(".") and name.endswith(".old")
            why = "put aside by a save that was cut off" if aside else "a save or copy that is under way or was cut off"
            yield broken(entry, [why], nbytes=entry.nbytes, named=False)


def _folders(inside: Inside) -> Iterator[Saved]:
    """The folders that are one checkpoint each."""
    for name, entry in inside.folders.items():
        if name.startswith(".") or temporary(name):
            continue
        try:
            row = _folder(entry, inside.below(name))
        except FileNotFoundError:
            continue
        except OSError as error:
            known = LASTING.fullmatch(name)
            row = broken(entry, [f"cannot be read: {error.strerror or error}"], nbytes=0) if known else None
        if row is not None:
            yield row


def _folder(entry: Entry, inside: Inside) -> Saved | None:
    look = kind_of(entry.name, inside)
    if look is None:
        return None
    found, nbytes = _entry(entry.path, inside)
    return looked_at(found, look, nbytes=nbytes)
