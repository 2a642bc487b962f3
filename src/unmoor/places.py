"""What lies in a folder, and the few things that are done to whole files and folders: list, ask, remove.

Knows nothing of checkpoints. All that names a place of the user's goes through here or through `filing.open_reader`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Entry", "entries", "exists", "is_folder", "join", "name_of", "remove", "tree_bytes"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a folder. `nbytes` is the size of a file, 0 of a folder; `changed` its time in ns, 0 if not known.

    Of a link these are what it leads to, 0 where that is nothing. `link` is then the bare name of what lies in the same
    folder, a whole path where the link leads out of it; "" for what is no link.
    """

    name: str
    path: str
    is_folder: bool
    nbytes: int
    changed: int
    link: str = ""


def entries(folder: str) -> tuple[Entry, ...]:
    """What a folder holds, by name; what vanishes while it is listed is left out. Raises OSError as os.scandir does."""
    return tuple(sorted(_entries(folder), key=lambda entry: entry.name))


def _entries(folder: str) -> Iterator[Entry]:
    with os.scandir(folder) as found:
        for item in found:
            link = _link(folder, item) if item.is_symlink() else ""
            try:
                facts, is_folder = item.stat(), item.is_dir()
            except OSError:
                if link:
                    yield Entry(item.name, item.path, is_folder=False, nbytes=0, changed=0, link=link)
                continue
            yield Entry(item.name, item.path, is_folder, 0 if is_folder else facts.st_size, facts.st_mtime_ns, link)


def _link(folder: str, item: os.DirEntry[str]) -> str:
    """What a link leads to, its own links followed as far as there are any."""
    target = os.path.realpath(item.path)
    inside = os.path.dirname(target) == os.path.realpath(folder)
    return os.path.basename(target) if inside else target


def exists(path: str) -> bool:
    """Whether anything is there, a link that leads nowhere included."""
    return os.path.lexists(path)


def is_folder(path: str) -> bool:
    """Whether it is a folder, or a link to one."""
    return os.path.isdir(path)


def join(folder: str, *names: str) -> str:
    """The path of what lies in a folder."""
    return os.path.join(folder, *names)


def name_of(path: str) -> str:
    """The last part of a path."""
    return os.path.basename(path.rstrip("/"))


def tree_bytes(path: str) -> int:
    """How many bytes a file has, or all files of a folder together."""
    if not is_folder(path):
        return os.stat(path).st_size
    return sum(tree_bytes(item.path) if item.is_folder else item.nbytes for item in entries(path))


def remove(path: str) -> None:
    """Remove a file, or a folder with all that is in it; what is gone already is well. Links are removed, not followed.

    Raises OSError for what the system refuses.
    """
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        return
