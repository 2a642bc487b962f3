"""What lies behind a URL, and the few things that are done to it whole: list, ask, remove."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from unmoor import urls

from .drafts import draft_at
from .stores import Facts, Store, facts_of, made_facts, patiently, store_of

__all__ = ["Row", "found", "listed", "make_way", "remove_all", "size_of"]

_WITH_FOLDERS: Final = frozenset({"memory", "sftp", "ssh", "ftp", "smb", "hdfs", "webdav"})
"""Stores in which a folder is there by itself. In others `rmdir` may mean the whole bucket."""

Row = tuple[str, str, Facts]
"""The name of what lies in a folder, its URL, and what the store says of it."""


def found(url: str) -> Facts | None:
    """What the store says of a URL; None where nothing is there. Raises ReadError where it does not say."""
    draft = draft_at(url)
    if draft is not None:
        return Facts(is_folder=False, nbytes=draft.nbytes, changed=0, identity=())
    try:
        return facts_of(store_of(url))
    except FileNotFoundError:
        return None


def listed(url: str) -> list[Row]:
    """What a folder holds. Raises FileNotFoundError, NotADirectoryError, or ReadError where it is not told."""
    store = store_of(url)
    store.fs.invalidate_cache(store.path)
    rows = patiently(lambda: list(store.fs.ls(store.path, detail=True)), url, "listed")
    if len(rows) == 1 and _is_itself(rows[0], store) and rows[0].get("type") != "directory":
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), url)
    return list(_rows(store, rows))


def _rows(store: Store, rows: list[dict[str, Any]]) -> Iterator[Row]:
    """The rows below the folder: some stores list a mark of the folder itself too."""
    for row in rows:
        name = str(row["name"]).rstrip("/").rpartition("/")[2]
        if name and not _is_itself(row, store):
            yield name, urls.join(store.url, name), made_facts(row)


def _is_itself(row: dict[str, Any], store: Store) -> bool:
    return str(row["name"]).strip("/") == store.path.strip("/")


def size_of(url: str) -> int | None:
    """The bytes of an object; None for a folder. Raises FileNotFoundError where nothing is there."""
    facts = found(url)
    if facts is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url)
    return None if facts.is_folder else max(0, facts.nbytes)


def make_way(url: str) -> None:
    """Make a folder, in stores that have folders. Raises FileExistsError where an object is there."""
    facts = found(url)
    if facts is not None and not facts.is_folder:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), url)
    store = store_of(url)
    if facts is None and store.schemes & _WITH_FOLDERS:
        patiently(lambda: store.fs.makedirs(store.path, exist_ok=True), url, "made")


def remove_all(url: str) -> None:
    """Remove an object, or a folder with all in it; what is gone already is well.

    Of a folder what was written last goes first: that is what makes the rest a checkpoint.
    """
    facts = found(url)
    if facts is not None:
        _remove(url, is_folder=facts.is_folder)


def _remove(url: str, *, is_folder: bool) -> None:
    store = store_of(url)
    if is_folder:
        for _, place, facts in sorted(listed(url), key=lambda row: -row[2].changed):
            _remove(place, is_folder=facts.is_folder)
    with suppress(FileNotFoundError):
        if not is_folder:
            patiently(lambda: store.fs.rm_file(store.path), url, "removed")
        elif store.schemes & _WITH_FOLDERS:
            patiently(lambda: store.fs.rmdir(store.path), url, "removed")
    store.fs.invalidate_cache(store.path.rpartition("/")[0])
