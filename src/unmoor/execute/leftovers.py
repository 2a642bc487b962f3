"""Hidden files beside a target: how they are named, whose they are, and the removal of those whose process is gone.

A file of that kind is locked by its process as long as that makes it; a hidden folder has a lock file beside it, which
comes first and goes last. The name tells machine, boot and process. One of this machine is left over once its process
is gone; one of another only where its lock can be had and locks are seen by all machines. All else stays.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from hashlib import sha256
from typing import Final

__all__ = ["LOCK", "NEW", "OLD", "claim", "hidden_name", "is_for", "kept", "let_go", "release", "sweep"]

NEW: Final = ".tmp"
"""The end of a hidden file's or folder's name."""
OLD: Final = ".old"
"""That of an older folder put aside for a new one."""
LOCK: Final = ".lock"
"""That of a hidden folder's lock."""

_LONGEST_NAME: Final = 255
_TRIES: Final = 16
_LOCKED, _UNLOCKED = "1", "0"
_HIDDEN: Final = re.compile(
    r"\.(?P<name>.+)\.unmoor-(?P<pid>\d+)-(?P<boot>[0-9a-f]{8})(?P<start>[0-9a-f]{4})(?P<kept>[01])[0-9a-f]{7}"
    r"(?P<end>\.tmp|\.old|\.lock)",
    re.DOTALL,
)
_HELD: Final = {errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES}
_ON_THIS_MACHINE: Final = frozenset(
    "apfs bcachefs btrfs ext2 ext3 ext4 f2fs hfs jfs nilfs2 overlay ramfs reiserfs tmpfs xfs zfs".split()
)
"""File systems that no other machine writes to: a lock is seen by all who can."""


def hidden_name(target: str, end: str = NEW, *, locked: bool = True) -> str:
    """A new name beside `target` that tells whose it is and by which process it is made."""
    folder, name = os.path.split(target)
    kept = _LOCKED if locked else _UNLOCKED
    tail = f".unmoor-{os.getpid()}-{_boot()}{_start(os.getpid())}{kept}{secrets.token_hex(4)[1:]}"
    room = _LONGEST_NAME - len(tail) - len(LOCK) - 1
    return os.path.join(folder, "." + os.fsdecode(os.fsencode(name)[:room]) + tail + end)


def is_for(found: str, name: str, hidden: str) -> bool:
    """Whether `found`, the name of a target in the name `hidden`, is `name`, or what of it fits there."""
    return found == name or (len(os.fsencode(hidden)) >= _LONGEST_NAME - 1 and name.startswith(found))


def claim(target: str, end: str = NEW) -> tuple[str, int]:
    """Create a hidden file beside `target` and lock it: its path, and the open file that keeps the lock.

    Raises OSError as the system gives it.
    """
    locked = True
    for _ in range(_TRIES):
        path = hidden_name(target, end, locked=locked)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
        free = _lock(handle)
        # Somebody may take a file for a left one in the moment before it is locked, and remove it.
        if (free is None and not locked) or (free and os.fstat(handle).st_nlink):
            _claimed.add(handle)
            return path, handle
        release(path, handle)
        locked = locked and free is not None
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), target)


def release(path: str, handle: int) -> None:
    """Close and remove a file that was claimed."""
    let_go(handle)
    with suppress(OSError):
        os.unlink(path)


def let_go(handle: int) -> None:
    """Close a file that was claimed: it has its name by now, or waits to be swept."""
    _claimed.discard(handle)
    with suppress(OSError):  # what was written through other handles is on the disk, or that has failed
        os.close(handle)


_claimed: Final[set[int]] = set()


def _forget() -> None:
    """In a forked process: close what it has of its parent's, whose locks would else hold as long as it lives."""
    while _claimed:
        with suppress(OSError):
            os.close(_claimed.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def kept(lock: str) -> bool:
    """Whether the process that made a lock file may still be there; False where there is no such file."""
    match = _HIDDEN.fullmatch(os.path.basename(lock))
    if match is None or not os.path.lexists(lock):
        return False
    try:
        with _left(lock, match) as left:
            return not left
    except OSError:
        return True


def sweep(folder: str, name: str | None = None) -> tuple[str, ...]:
    """Remove what processes that are gone left in `folder` of saves to `name` there, to any name by default.

    An older folder that was put aside, and not replaced, is put back. What cannot be told or removed stays, without an
    error. The names of what is gone.
    """
    try:
        names = os.listdir(folder or os.curdir)
    except OSError:
        return ()
    gone: list[str] = []
    for each in sorted(names, key=lambda each: not each.endswith(LOCK)):  # folders whose lock is there go with it
        match = _HIDDEN.fullmatch(each)
        if match is not None and (name is None or is_for(match["name"], name, each)):
            with suppress(OSError):
                gone += _swept(folder, each, match, name)
    return tuple(gone)


def _swept(folder: str, each: str, match: re.Match[str], name: str | None) -> Iterator[str]:
    path = os.path.join(folder, each)
    if match["end"] == LOCK:
        with _left(path, match) as left:
            if left and _folders_gone(path.removesuffix(LOCK), _target(folder, match, name)):
                os.unlink(path)
                yield each
    elif os.path.isdir(path) and not os.path.islink(path):
        stem = path.removesuffix(match["end"])
        alone = not os.path.lexists(stem + LOCK)  # its lock comes first and goes last
        here = match["boot"] == _boot()
        left = alone and (not _alive(match) if here else _seen_by_all(folder))
        if left and _folders_gone(stem, _target(folder, match, name)):
            yield each
    elif os.path.isfile(path):
        with _left(path, match) as left:
            if left:
                os.unlink(path)
                yield each


def _target(folder: str, match: re.Match[str], name: str | None) -> str:
    """The path for which it was made; "" where its name was cut and is not known."""
    if name is None and len(os.fsencode(match[0])) >= _LONGEST_NAME - 1:
        return ""
    return os.path.join(folder, match["name"] if name is None else name)


@contextmanager
def _left(path: str, match: re.Match[str]) -> Iterator[bool]:
    """Whether the process that made a file is gone; within the block the file is locked, where it can be."""
    flags = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    handle = os.open(path, os.O_RDWR | flags)
    try:
        free = _lock(handle)
        if match["boot"] == _boot():
            yield free is not False and not _alive(match)
        else:
            yield bool(free) and match["kept"] == _LOCKED and _seen_by_all(os.path.dirname(path))
    finally:
        os.close(handle)


def _folders_gone(stem: str, target: str) -> bool:
    """Remove the hidden folders of a save that is gone, and whether all are; nothing of it is needed any more."""
    if not target:
        return False
    if os.path.isdir(stem + OLD) and not os.path.lexists(target):
        os.rename(stem + OLD, target)
    if os.path.isdir(stem + NEW) or os.path.isdir(stem + OLD):
        _sync(os.path.dirname(stem))  # one of them may be the older folder, whose successor's name is not safe yet
    for end in (NEW, OLD):
        shutil.rmtree(stem + end, ignore_errors=True)
    return not os.path.lexists(stem + NEW) and not os.path.lexists(stem + OLD)


def _sync(folder: str) -> None:
    handle = os.open(folder or os.curdir, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _lock(handle: int) -> bool | None:
    """Lock an open file; False where another has, None where its file system knows no locks.

    Not by lockf: such a lock ends as soon as the process closes any file that it opened under the same name.
    """
    try:
        import fcntl
    except ImportError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in _HELD else None
    return True


def _alive(match: re.Match[str]) -> bool:
    """Whether the process of this machine and boot that a name tells of is there; True where that is not known."""
    pid = int(match["pid"])
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return _start(pid) in (match["start"], _UNKNOWN)


_UNKNOWN: Final = "0000"


def _start(pid: int) -> str:
    """Tells a process from a later one of the same number: when it began. _UNKNOWN where the system does not say.

    "" for one that has ended and that its parent has not asked about yet.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return "" if fields[0] in (b"Z", b"X") else _digest(fields[19])[:4]
    except (OSError, IndexError):
        return _UNKNOWN


@lru_cache(maxsize=1)
def _boot() -> str:
    """Tells this machine since it was started, and the processes that have their numbers in common, from all others."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            boot = file.read() + os.fsencode(os.readlink("/proc/self/ns/pid"))
    except OSError:
        boot = platform.node().encode()
    return _digest(boot)


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()[:8]


def _seen_by_all(folder: str) -> bool:
    """Whether a lock in `folder` keeps out all who can write there, on whatever machine."""
    kind, options = _mount(os.path.realpath(folder))
    if kind.startswith("nfs"):
        return not {"nolock", "local_lock=all", "local_lock=flock"} & set(options.split(","))
    return kind in _ON_THIS_MACHINE


def _mount(folder: str) -> tuple[str, str]:
    """The kind and options of the file system of a folder; empty where the system does not say."""
    best, found = "", ("", "")
    with suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            own, _, rest = line.partition(" - ")
            point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), own.split(" ")[4])
            inside = folder == point or folder.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(best):
                kind, _, options = rest.split(" ", 2)
                best, found = point, (kind, options.strip())
    return found
