"""Saves with a step left out or done too early: what the model of a disk must find. Each is called in a fork."""

from __future__ import annotations

import importlib
import os
import stat

from unmoor.execute import archive, commit, folder_commit

__all__ = ["FILE", "FOLDER"]

_fsync, _replace = os.fsync, os.replace


def _is_folder(handle: int) -> bool:
    return stat.S_ISDIR(os.fstat(handle).st_mode)


def _go_on(call: str, path: str, generation: int) -> None:
    module, _, name = call.partition(":")
    getattr(importlib.import_module(module), name)(path, generation)


def no_sync_of_data(call: str, path: str, generation: int) -> None:
    os.fsync = lambda handle: _fsync(handle) if _is_folder(handle) else None
    _go_on(call, path, generation)


def no_sync_of_names(call: str, path: str, generation: int) -> None:
    os.fsync = lambda handle: None if _is_folder(handle) else _fsync(handle)
    _go_on(call, path, generation)


def renamed_before_it_is_synced(call: str, path: str, generation: int) -> None:
    def replace(hidden: str, target: str) -> None:
        _replace(hidden, target)
        handle = os.open(target, os.O_RDWR)
        _fsync(handle)
        os.close(handle)

    os.fsync = lambda handle: _fsync(handle) if _is_folder(handle) else None
    commit.os.replace = replace
    _go_on(call, path, generation)


def written_in_place(call: str, path: str, generation: int) -> None:
    def claim(target: str) -> tuple[str, int]:
        return target, os.open(target, os.O_RDWR | os.O_CREAT)

    commit.claim = claim
    _go_on(call, path, generation)


def shards_not_synced(call: str, path: str, generation: int) -> None:
    archive.ArchiveFile.sync = lambda self: None
    _go_on(call, path, generation)


def older_removed_first(call: str, path: str, generation: int) -> None:
    folder_commit.sync_folder = lambda folder, path: None
    _go_on(call, path, generation)


def put_aside_in_two_steps(call: str, path: str, generation: int) -> None:
    folder_commit._exchange = lambda one, other: False
    _go_on(call, path, generation)


def _names(*calls: object) -> list[str]:
    return [f"{__name__}:{call.__name__}" for call in calls]


FILE = _names(no_sync_of_data, no_sync_of_names, renamed_before_it_is_synced, written_in_place)
"""Of a save to a file."""
FOLDER = _names(no_sync_of_data, no_sync_of_names, shards_not_synced, older_removed_first, put_aside_in_two_steps)
"""Of a save to a folder; the last is what file systems without an exchange get, and loses the name for a moment."""
