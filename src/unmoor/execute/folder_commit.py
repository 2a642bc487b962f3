"""Puts a folder in its place whole or not at all, and on the disk before it says so; several processes may fill it.

Knows nothing of checkpoints. A folder is made beside its target under a hidden name, filled, checked, made durable, and
renamed; an older folder there is exchanged for it in one step where the system can, and removed afterwards. A lock file
beside it, which is there before it and until nothing of it is left, tells others that its process lives.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from unmoor.errors import FileError, SaveError
from unmoor.steady import leave_out, refuse_changed
from unmoor.urls import is_url, name_of
from unmoor.values.text import listing

from .commit import not_as_meant, reads_other, real_path, refuse_full, save_error, sync_folder, sync_names
from .leftovers import LOCK, NEW, OLD, claim, is_for, kept, let_go, release, sweep

__all__ = ["Staging", "discard", "left_behind", "publish_folder", "sees", "stage", "staged"]

_TOKEN: Final = ".unmoor-token"  # noqa: S105 - the name of a file
_ASIDE_NAME: Final = re.compile(r"\.(?P<name>.+)\.unmoor-\d+-[0-9a-f]{8,}\.old", re.DOTALL)
_EXCHANGE: Final = 2
"""RENAME_EXCHANGE of Linux and RENAME_SWAP of macOS."""
_HERE: Final = -100
"""AT_FDCWD of Linux: paths are as seen from the working directory."""
_MET: Final = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT}
"""What a rename meets where another save has renamed first."""
_TRIES: Final = 20
_PATIENCE: Final = 3.0
"""Seconds within which another machine's view of a shared file system shows a folder that was just made."""

_locks: Final[dict[str, int]] = {}
"""Path of a hidden folder of this process -> its lock file, open."""


@dataclass(frozen=True, slots=True)
class Staging:
    """A hidden folder that waits for its content: its `name` beside the target, and the `token` that lies in it."""

    name: str
    token: str

    def beside(self, path: str) -> str:
        """The folder's path as this process sees it, for the target `path`: of a URL where temporary files are."""
        if is_url(path):
            return os.path.join(tempfile.gettempdir(), self.name)
        return os.path.join(os.path.dirname(os.path.realpath(path)), self.name)


def stage(path: str, *, own: Callable[[str], bool], whole: Callable[[Collection[str]], bool] = bool) -> Staging:
    """Make the hidden folder beside `path`, for one process of those that fill it.

    An older folder at `path` will be replaced, so that all in it must be `own` by its name. A replacement that was cut
    off between its two renames is finished by taking the older folder back. Behind a URL no folder can be exchanged for
    another: one whose names are `whole` is refused, and what is left of a save that was cut off is removed.

    Raises SaveError, with nothing changed, for a file at `path` or a folder with anything else in it; OSError for what
    the system refuses.
    """
    if is_url(path):
        from .remote_folder import make_way

        make_way(path, own, whole)
        target = os.path.join(tempfile.gettempdir(), name_of(path))
        sweep(*os.path.split(target))
    else:
        target = real_path(path)
        sweep(*os.path.split(target))
        _take_back(target)
        _refuse(target, path, own)
    lock, handle = claim(target, LOCK)
    hidden = lock.removesuffix(LOCK) + NEW
    _locks[hidden] = handle
    leave_out(hidden)
    staging = Staging(os.path.basename(hidden), secrets.token_hex(16))
    try:
        os.mkdir(hidden, 0o700 if is_url(path) else 0o777)
        with open(os.path.join(hidden, _TOKEN), "x", encoding="ascii") as file:
            file.write(staging.token)
    except BaseException:
        _clear(hidden)
        raise
    return staging


@contextmanager
def staged(
    path: str, needed: int, *, own: Callable[[str], bool], whole: Callable[[Collection[str]], bool] = bool
) -> Iterator[Staging]:
    """The hidden folder that `stage` makes, for one process alone, which publishes it within the block.

    Where that fails, the folder is removed, and what the system refused, or was not written as it was meant, is a
    SaveError. `needed` is about how many bytes will be written.
    """
    hidden = ""
    staging: Staging | None = None
    try:
        staging = stage(path, own=own, whole=whole)
        hidden = staging.beside(path)
        refuse_full(hidden, needed)
        yield staging
    except BaseException as error:
        if staging is not None:
            discard(staging, path)
        if isinstance(error, OSError) and not isinstance(error, SaveError) and not reads_other(error, hidden):
            raise save_error(error, path, os.path.realpath(path), needed) from error
        if hidden and isinstance(error, FileError) and error.path.startswith(hidden):
            raise not_as_meant(error, path) from error
        raise


def sees(staging: Staging, path: str) -> bool:
    """Whether this process sees that very folder beside `path`, waiting a little for a shared file system."""
    place, deadline, pause = os.path.join(staging.beside(path), _TOKEN), time.monotonic() + _PATIENCE, 0.01
    while True:
        with suppress(OSError), open(place, encoding="ascii") as file:
            return file.read() == staging.token
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.5)


def publish_folder(staging: Staging, path: str) -> None:
    """Bring the hidden folder's names to the disk and rename it to `path`. Its files must be on the disk already.

    A symbolic link at `path` stays one, its target is replaced. An older folder's mode is kept. Where it fails before
    the folder is in place, the hidden one is removed. To a URL its files are sent, in the order of their last change
    and names that begin with a dot at the end.
    """
    if is_url(path):
        from .remote_folder import send_folder

        os.unlink(os.path.join(staging.beside(path), _TOKEN))
        try:
            send_folder(staging.beside(path), path)
        finally:
            _clear(staging.beside(path))
        return
    target, hidden = os.path.realpath(path), staging.beside(path)
    os.unlink(os.path.join(hidden, _TOKEN))
    try:
        _keep_mode(target, hidden)
        sync_names(hidden)
        refuse_changed()
        older = _put(hidden, target)
    except BaseException:
        _clear(hidden)
        raise
    try:
        sync_folder(os.path.dirname(target), path)
    except BaseException:
        _unlock(hidden, left=bool(older))
        raise
    _clear(older or hidden, hidden)


def discard(staging: Staging, path: str) -> None:
    """Remove the hidden folder of a save that failed, as far as the system lets; a published one is left alone."""
    hidden = staging.beside(path)
    if os.path.exists(os.path.join(hidden, _TOKEN)):
        _clear(hidden)


def _clear(folder: str, hidden: str = "") -> None:
    """Remove a folder, and the lock of `hidden` (by default the same) once nothing is left for others to clear away."""
    shutil.rmtree(folder, ignore_errors=True)
    _unlock(hidden or folder, left=os.path.lexists(folder))


def _unlock(hidden: str, *, left: bool) -> None:
    handle = _locks.pop(hidden, None)
    if handle is None:
        return
    if left:
        let_go(handle)
    else:
        release(hidden.removesuffix(NEW) + LOCK, handle)


def left_behind(path: str) -> str:
    """The older folder of `path` that a replacement cut off between its two renames left beside it; "" for none."""
    target = os.path.realpath(path)
    if os.path.lexists(target):
        return ""
    return max(_aside_of(target), key=os.path.getmtime, default="")


def _keep_mode(target: str, hidden: str) -> None:
    if os.path.isdir(target):
        with suppress(OSError):
            os.chmod(hidden, stat.S_IMODE(os.stat(target).st_mode))


def _put(hidden: str, target: str) -> str:
    """Rename `hidden` to `target`; where the older folder is now, "" if there was none.

    Another save to the same path may put its folder there between any two steps, or put aside what is there.
    """
    for _ in range(_TRIES):
        try:
            return _put_now(hidden, target)
        except OSError as error:
            if error.errno not in _MET:
                raise
    return _put_now(hidden, target)


def _put_now(hidden: str, target: str) -> str:
    if not os.path.isdir(target):
        os.rename(hidden, target)
        return ""
    if _exchange(hidden, target):
        return hidden
    aside = hidden.removesuffix(NEW) + OLD
    os.rename(target, aside)
    try:
        os.rename(hidden, target)
    except BaseException:
        try:
            os.rename(aside, target)
        except OSError as error:
            if error.errno not in _MET:
                raise
            shutil.rmtree(aside, ignore_errors=True)  # a newer one is there by now
        raise
    return aside


def _exchange(one: str, other: str) -> bool:
    """Let two folders swap their names in one step; False where the system or the file system cannot."""
    swap = _swapper()
    if swap is None:
        return False
    if swap(os.fsencode(one), os.fsencode(other)) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP):
        return False
    raise OSError(code, os.strerror(code), other)


@cache
def _swapper() -> Callable[[bytes, bytes], int] | None:
    """The system's call that swaps two names: renameat2 of Linux, renamex_np of macOS."""
    try:
        library: Any = ctypes.CDLL(None, use_errno=True)
    except (OSError, TypeError):
        return None
    if sys.platform == "darwin" and hasattr(library, "renamex_np"):
        return lambda one, other: int(library.renamex_np(one, other, _EXCHANGE))
    if sys.platform.startswith("linux") and hasattr(library, "renameat2"):
        return lambda one, other: int(library.renameat2(_HERE, one, _HERE, other, _EXCHANGE))
    return None


def _refuse(target: str, path: str, own: Callable[[str], bool]) -> None:
    """Refuse what must not be replaced: a file, and a folder in which anything else lies."""
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(mode):
        raise SaveError(
            f"{path} was not saved: a file is there, and what is to be written is a folder",
            remedy="Give another path, or remove the file first.",
            path=path,
            errno=errno.ENOTDIR,
        )
    strange = sorted(name for name in os.listdir(target) if not own(name))
    if strange:
        raise SaveError(
            f"{path} was not saved: the folder there holds more than a checkpoint, and would be replaced as a whole",
            details=[f"it holds {listing(strange, 6)}"],
            remedy="Save to a path of its own, or move these files away.",
            path=path,
            errno=errno.ENOTEMPTY,
        )


def _aside_of(target: str) -> Iterator[str]:
    folder, name = os.path.split(target)
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for each in names:
        match = _ASIDE_NAME.fullmatch(each)
        if match and is_for(match["name"], name, each):
            yield os.path.join(folder, each)


def _take_back(target: str) -> None:
    older = left_behind(target)
    if older and not kept(older.removesuffix(OLD) + LOCK):
        os.rename(older, target)
