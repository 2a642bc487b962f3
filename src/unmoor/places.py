"""What lies in a folder, and the few things that are done to whole files and folders: list, ask, remove.

Knows nothing of checkpoints. All that names a place of the user's, a path or a URL, goes through here or through
`filing.open_reader`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from . import urls

__all__ = ["Entry", "entries", "exists", "is_file", "is_folder", "join", "kinds", "make_folder",
           "name_of", "names", "parent", "remove", "tree_bytes"]  # fmt: skip


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
    found = _behind(folder) if urls.is_url(folder) else _entries(folder)
    return tuple(sorted(found, key=lambda entry: entry.name))


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


def _behind(url: str) -> Iterator[Entry]:
    from .remote.looking import listed

    for name, place, facts in listed(url):
        yield Entry(name, place, facts.is_folder, 0 if facts.is_folder else max(0, facts.nbytes), facts.changed)


def kinds(folder: str) -> Iterator[tuple[str, bool]]:
    """The names in a folder, each with whether it is a folder itself; a link to nothing is a file that is missed.

    What is neither is left out. Raises OSError as os.scandir does.
    """
    if urls.is_url(folder):
        yield from ((entry.name, entry.is_folder) for entry in _behind(folder))
        return
    with os.scandir(folder) as found:
        for item in found:
            if item.is_dir():
                yield item.name, True
            elif item.is_file() or item.is_symlink():
                yield item.name, False


def names(folder: str) -> list[str]:
    """The names in a folder. Raises OSError as os.listdir does."""
    return [entry.name for entry in _behind(folder)] if urls.is_url(folder) else os.listdir(folder)


def exists(path: str) -> bool:
    """Whether anything is there, a link that leads nowhere included."""
    if urls.is_url(path):
        from .remote.looking import found

        return found(path) is not None
    return os.path.lexists(path)


def is_folder(path: str) -> bool:
    """Whether it is a folder, or a link to one."""
    if urls.is_url(path):
        from .remote.looking import found

        facts = found(path)
        return facts is not None and facts.is_folder
    return os.path.isdir(path)


def is_file(path: str) -> bool:
    """Whether it is a file, or a link to one."""
    if urls.is_url(path):
        from .remote.looking import found

        facts = found(path)
        return facts is not None and not facts.is_folder
    return os.path.isfile(path)


def join(folder: str, *names: str) -> str:
    """The path of what lies in a folder."""
    return urls.join(folder, *names) if urls.is_url(folder) else os.path.join(folder, *names)


def name_of(path: str) -> str:
    """The last part of a path."""
    return urls.name_of(path) if urls.is_url(path) else os.path.basename(path.rstrip("/"))


def parent(path: str) -> str:
    """The folder in which it lies."""
    return urls.parent(path) if urls.is_url(path) else os.path.dirname(path)


def tree_bytes(path: str) -> int:
    """How many bytes a file has, or all files of a folder together. Raises OSError where nothing is there."""
    if urls.is_url(path):
        from .remote.looking import size_of

        known = size_of(path)
        if known is not None:
            return known
    elif not is_folder(path):
        return os.stat(path).st_size
    return sum(tree_bytes(item.path) if item.is_folder else item.nbytes for item in entries(path))


def make_folder(path: str) -> None:
    """Make a folder and those above it, where they are missing, and bring their names to the disk.

    Object stores have no folders: there it is only looked at.
    Raises FileExistsError where a file is there, OSError for what the system refuses.
    """
    if not urls.is_url(path):
        above, made = os.path.abspath(path), []
        while not os.path.lexists(above):
            above = os.path.dirname(above)
            made.append(above)
        os.makedirs(path, exist_ok=True)
        for folder in made:
            _sync(folder)
        return
    from .remote.looking import make_way

    make_way(path)


def _sync(folder: str) -> None:
    """Bring the names in a folder to the disk, where the system can be asked to."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except (PermissionError, IsADirectoryError):
        return
    try:
        with suppress(OSError):  # what it is for has not begun: what is saved there is synced itself, and may fail
            os.fsync(handle)
    finally:
        os.close(handle)


def remove(path: str) -> None:
    """Remove a file, or a folder with all that is in it; what is gone already is well. Links are removed, not followed.

    Raises OSError for what the system refuses.
    """
    if urls.is_url(path):
        from .remote.looking import remove_all

        remove_all(path)
        return
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        return
