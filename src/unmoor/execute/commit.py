"""Puts a file in its place whole or not at all, and on the disk before it says so.

Knows nothing of checkpoints. A file is written beside its target under a hidden name, checked, made durable, renamed.
What a process that was killed left there of the same target is removed first (`leftovers.py`).
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Literal

from unmoor.errors import FileError, ReadError, SaveError, UsageError
from unmoor.steady import leave_out, refuse_changed
from unmoor.urls import is_url
from unmoor.values.text import format_bytes

from .leftovers import claim, let_go, sweep

__all__ = ["Durability", "not_as_meant", "publish", "reads_other", "real_path", "refuse_full", "save_error",
           "sync_folder", "sync_names"]  # fmt: skip

#: "disk" returns when the data and its name are on the disk; "system" leaves that to the operating system, so that a
#: crash of the machine (not of the process) may lose the new file, and on some file systems the old one with it.
Durability = Literal["disk", "system"]

_RENAMES_OPEN: Final = os.name == "posix"
"""Whether a file can be renamed while it is open, so that its lock holds until it has its name."""
_NO_FOLDER_SYNC: Final = {errno.EINVAL, errno.ENOTSUP, errno.EBADF}
_CAUSES: Final = {
    errno.ENOSPC: ("the disk is full", "Free that much space, or save to another disk."),
    errno.EDQUOT: ("your disk quota is used up", "Free that much space, or save to another disk."),
    errno.EFBIG: ("the file would be larger than allowed", "Raise the limit (ulimit -f), or save to another disk."),
    errno.EACCES: ("this user may not write in {folder}", "Change its permissions, or save elsewhere."),
    errno.EPERM: ("this user may not write in {folder}", "Change its permissions, or save elsewhere."),
    errno.EROFS: ("{folder} is on a read-only file system", "Save to a disk that can be written."),
    errno.ENOENT: ("the folder {folder} does not exist, or not any more", "Make it, or mount its disk, first."),
    errno.ENOTDIR: ("{folder} is not a folder", "Save to a path inside a folder."),
    errno.ENAMETOOLONG: ("its name is longer than the file system takes", "Give a shorter one."),
    errno.EIO: ("the disk reports an error", "Save to another disk."),
    errno.ESTALE: ("the server no longer knows {folder}", "Mount it anew, or save to another disk."),
    errno.ENODEV: ("the disk of {folder} is gone", "Mount it anew, or save to another disk."),
    errno.ENXIO: ("the disk of {folder} is gone", "Mount it anew, or save to another disk."),
    errno.ENOTCONN: ("the connection to the file system of {folder} is lost", "Mount it anew, or save elsewhere."),
    errno.ETIMEDOUT: ("the server of {folder} does not answer", "Save again, or to another disk."),
    errno.EMFILE: ("this process has too many files open", "Raise the limit (ulimit -n), or close some."),
    errno.ENFILE: ("the system has too many files open", "Close some, and save again."),
    errno.ENOMEM: ("the system has no memory left", "Free some, and save again."),
    errno.EINTR: ("the call was interrupted", "Save again."),
    errno.EISDIR: ("a folder has come to be there", "Give the path of a file."),
    errno.ELOOP: ("its links lead in a circle", "Give the path of a file."),
    errno.EBUSY: ("something else holds {folder}", "Save again once it is free, or save elsewhere."),
}
_NO_NAMES: Final = ("the file system takes no more files", "Remove files from it, or save to another disk.")
"""What a full disk is called that has room for the bytes: its table of files (inodes) is full."""


@contextmanager
def publish(
    path: str | os.PathLike[str], *, needed: int, durability: Durability, check: Callable[[str], None]
) -> Iterator[str]:
    """Write the file at `path` atomically: yields the path of an empty hidden file beside it, to be written.

    When the block ends, the hidden file is handed to `check`, brought to the disk and renamed to `path`. When the block
    or any of that fails, it is removed, and what was at `path` is as before. A symbolic link stays one, its target is
    replaced. An existing file's mode is kept. `needed` is about how many bytes will be written, for a full disk to be
    found before the first.

    Raises SaveError (an OSError too, with its errno) for what the system refuses; other exceptions pass through.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "note.txt")
    >>> with publish(path, needed=2, durability="system", check=lambda hidden: None) as hidden:
    ...     _ = pathlib.Path(hidden).write_text("hi")
    >>> path.read_text()
    'hi'
    """
    text = os.fspath(path)
    if is_url(text):
        from .remote import publish_remote

        with publish_remote(text, needed=needed, check=check) as hidden:
            yield hidden
        return
    target = real_path(text)
    folder, name = os.path.split(target)
    hidden = ""
    try:
        _refuse_special(target, text)
        sweep(folder, name)
        hidden, handle = claim(target)
        leave_out(hidden)
        with _closing(handle):
            refuse_full(folder, needed)
            yield hidden
            _checked(check, hidden, text)
            _keep_mode(target, hidden)
            if durability == "disk":
                os.fsync(handle)
            refuse_changed()
            if _RENAMES_OPEN:
                os.replace(hidden, target)
        if not _RENAMES_OPEN:
            os.replace(hidden, target)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(hidden)
        if isinstance(error, OSError) and not isinstance(error, SaveError) and not reads_other(error, hidden):
            raise save_error(error, text, target, needed) from error
        raise
    if durability == "disk":
        sync_folder(folder, text)


def _checked(check: Callable[[str], None], hidden: str, path: str) -> None:
    """Hand the file to `check`. What it finds wrong with the file itself is a fault of the disk, or of ours."""
    os.stat(hidden)  # fails as the system does where the folder has gone meanwhile
    try:
        check(hidden)
    except FileError as error:
        if error.path != hidden:
            raise
        raise not_as_meant(error, path) from error


def not_as_meant(error: FileError, path: str) -> SaveError:
    """What the reader says of what was just written to `path`, as the error of the save."""
    return SaveError(
        f"{path} was not saved: what was written does not read back as it was meant",
        details=(error.headline, *error.details),
        remedy="The disk may be failing: save to another one. What was there before is untouched.",
        path=path,
    )


def reads_other(error: OSError, hidden: str) -> bool:
    """Whether what failed was the reading of another file than the one that is written, or of one within it."""
    return isinstance(error, ReadError) and error.path != hidden and not error.path.startswith(hidden + os.sep)


def real_path(path: str) -> str:
    """A path to be written to, with its links followed. Raises UsageError for what names no file."""
    if not path or "\0" in path or not _is_encodable(path):
        raise UsageError(f"{path!r} is no path", remedy="Give the path of a file or folder.")
    return os.path.realpath(path)


def _is_encodable(path: str) -> bool:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


def _refuse_special(target: str, path: str) -> None:
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        code, cause = (errno.EISDIR, "a folder") if stat.S_ISDIR(mode) else (errno.EINVAL, "no regular file")
        remedy = "Give the path of a file."
        raise SaveError(f"{path} was not saved: it is {cause}", remedy=remedy, path=path, errno=code)


@contextmanager
def _closing(handle: int) -> Iterator[None]:
    try:
        yield
    finally:
        let_go(handle)


def refuse_full(folder: str, needed: int) -> None:
    """Raise OSError (ENOSPC) where the disk of `folder` is known to have less than `needed` bytes free."""
    free = _free(folder)
    if free is not None and free < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), folder)


def _free(folder: str) -> int | None:
    """Bytes free to this user on the disk of `folder`; None where the system does not say.

    Asked for instead of reserved: posix_fallocate costs 15 % on tmpfs, and writes every block twice on NFS.
    """
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None
    return usage.free if usage.total else None


def _names_left(folder: str) -> int | None:
    """How many more files the disk of `folder` takes; None where the system does not say, or has no such limit."""
    try:
        facts = os.statvfs(folder)
    except (OSError, AttributeError):
        return None
    return facts.f_favail if facts.f_files else None


def _keep_mode(target: str, hidden: str) -> None:
    """Give the new file the mode of the old one, where there is one and the file system has modes."""
    with suppress(OSError):
        os.chmod(hidden, stat.S_IMODE(os.stat(target).st_mode))


def sync_folder(folder: str, path: str) -> None:
    """Bring the new name `path` in a folder to the disk. Raises SaveError where that is not confirmed."""
    try:
        sync_names(folder)
    except OSError as error:
        raise SaveError(
            f"{path} is complete and in place, but the disk did not confirm its name: {error.strerror}",
            remedy="Until it does, a power failure may bring the older checkpoint back.",
            path=path,
            errno=error.errno,
        ) from error


def sync_names(folder: str) -> None:
    """Bring the names in a folder to the disk. Systems that cannot open folders keep names in order by themselves."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except (PermissionError, IsADirectoryError):
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        with suppress(OSError):  # nothing was written through it
            os.close(handle)


def save_error(error: OSError, path: str, target: str, needed: int, done: str = "saved") -> SaveError:
    """What the system refused, as the error of a save to `path`, which is `target` with its links followed.

    `done` is what was to be done to it.
    """
    if is_url(path):
        return _refused_behind(error, path, done)
    folder, code = os.path.dirname(target), error.errno
    free = _free(folder)
    details = [] if free is None else [f"needed {format_bytes(needed)}, free {format_bytes(free)} in {folder}"]
    if os.path.exists(target):
        details.append("the checkpoint that was there before is untouched")
    cause, remedy = _CAUSES.get(code or 0, ("", ""))
    if code == errno.ENOSPC and _names_left(folder) == 0:
        cause, remedy = _NO_NAMES
    headline = f"{path} was not {done}: {cause.format(folder=folder) or error}"
    return SaveError(headline, details=details, remedy=remedy, path=path, errno=code)


def _refused_behind(error: OSError, url: str, done: str) -> SaveError:
    """The same where it was to go to a URL: what a store refused, or the disk on which a folder is put together."""
    if isinstance(error, ReadError):
        headline = f"{url} was not {done}: {error.headline}"
        return SaveError(headline, details=error.details, remedy=error.remedy, path=url, errno=error.errno)
    place = tempfile.gettempdir()
    cause, remedy = _CAUSES.get(error.errno or 0, ("", ""))
    why = f"{cause.format(folder=place) or error} (its files are put together in {place})"
    return SaveError(f"{url} was not {done}: {why}", remedy=remedy, path=url, errno=error.errno)
