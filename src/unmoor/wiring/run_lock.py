"""One run at a time in a folder: a lock on a hidden file in it, which the system takes back when the process ends.

Where the system or the file system knows no such locks, there is none, and the run goes on.
"""

from __future__ import annotations

import os
import socket
import weakref
from contextlib import suppress
from typing import Final

from unmoor.errors import UsageError
from unmoor.places import join
from unmoor.urls import is_url

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["LOCK", "Lock", "take_lock"]

LOCK: Final = ".unmoor-run.lock"


class Lock:
    """A lock that is held until `release`, until this object is gone, or until the process ends, however it ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        _held.add(self)

    def release(self) -> None:
        """Let another run have the folder."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)

    def __del__(self) -> None:
        self.release()


_held: weakref.WeakSet[Lock] = weakref.WeakSet()


def _forget() -> None:
    """In a forked process: close what it has of its parent's locks, which would else outlive the parent with it."""
    for lock in list(_held):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def take_lock(folder: str) -> Lock | None:
    """The lock of a folder; None where there can be none. Raises UsageError where another run has it."""
    if fcntl is None or is_url(folder):
        return None
    try:
        descriptor = os.open(join(folder, LOCK), os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 300).decode(errors="replace").strip()
        os.close(descriptor)
        raise _refused(folder, holder) from None
    except OSError:
        os.close(descriptor)
        return None
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.write(descriptor, _me().encode())
    return Lock(descriptor)


def _me() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _refused(folder: str, holder: str) -> UsageError:
    mine = holder == _me()
    remedy = (
        "Call close() on the other Run, or let go of it."
        if mine
        else "Wait until it has ended, or end it; or give this run a folder of its own."
    )
    return UsageError(
        f"{folder} belongs to another run that is under way: {'one of this process' if mine else holder or 'unknown'}",
        details=["two runs in one folder would delete each other's checkpoints; nothing was changed"],
        remedy=remedy,
        path=folder,
    )
