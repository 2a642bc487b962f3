"""Sees what a call does to the machine: files that it opens to write, names that it makes or removes, processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["Seen", "watched"]

_RUNS = frozenset({
    "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "subprocess.Popen", "pty.spawn",
    "socket.connect", "socket.bind", "socket.getaddrinfo", "ctypes.dlopen", "os.startfile", "webbrowser.open",
    "urllib.Request", "os.kill", "signal.pthread_kill",
})  # fmt: skip
_NAMES = frozenset({"os.rename", "os.link", "os.symlink", "os.mkdir", "os.rmdir", "os.remove", "os.truncate",
                    "os.chmod", "os.chown", "os.mkfifo", "os.mknod"})  # fmt: skip
_OWN = (None, "libc.so.6")
"""Libraries that the process has loaded anyway, and that this package and torch ask for."""

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_NOWHERE = (os.devnull, "/proc/")


class Seen:
    """What was seen since the last time it was asked."""

    def __init__(self) -> None:
        self.on = False
        self.ran: list[str] = []
        self.wrote: list[str] = []

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        """What `sys.addaudithook` calls."""
        if not self.on:
            return
        if event in _RUNS and not (event == "ctypes.dlopen" and args[0] in _OWN):
            self.ran.append(f"{event} {args!r:.200}")
        elif event == "open" and isinstance(args[0], str | bytes | os.PathLike) and _is_write(args):
            self._at(args[0])
        elif event in _NAMES:
            for part in args[1:2] if event in ("os.symlink", "os.link") else args[:2]:
                if isinstance(part, str | bytes | os.PathLike):
                    self._at(part)

    def _at(self, path: Any) -> None:
        text = os.path.realpath(os.fsdecode(path))
        if not text.startswith(_NOWHERE):
            self.wrote.append(text)

    def outside(self, *folders: Path) -> list[str]:
        """What was written to that lies in none of `folders`."""
        roots = [os.path.realpath(folder) + os.sep for folder in folders]
        return [path for path in self.wrote if not (path + os.sep).startswith(tuple(roots))]


def _is_write(args: tuple[Any, ...]) -> bool:
    mode, flags = args[1], args[2]
    return bool(set(mode or "") & set("wax+")) or (mode is None and isinstance(flags, int) and bool(flags & _WRITES))


_SEEN = Seen()
_HOOKED: list[bool] = []


@contextmanager
def watched() -> Iterator[Seen]:
    """While the block runs, what it does is seen. A hook of this kind cannot be taken off: it is put on once."""
    if not _HOOKED:
        sys.addaudithook(_SEEN.hook)
        _HOOKED.append(True)
    _SEEN.ran, _SEEN.wrote, _SEEN.on = [], [], True
    try:
        yield _SEEN
    finally:
        _SEEN.on = False
