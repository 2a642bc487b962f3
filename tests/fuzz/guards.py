"""What watches a process that fuzzes: nothing is imported, run, written or opened elsewhere; memory and time end.

An audit hook cannot be taken off again, nor a limit of memory: `watch` is for processes of their own.
"""

from __future__ import annotations

import codecs
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = ["Guard", "TooLong", "Violation"]

SECONDS = 2.0
"""CPU time that one look at a file of at most a mebibyte may take; twice that is told as a fault."""

ROOM = 64 << 20
"""Memory that a look may take beyond what it takes for each byte of the file."""

_EACH = 48
_MOST = 1 << 30
_GRAVE = (
    "compile", "code.__new__", "ctypes", "cpython.run", "exec", "ftplib", "http", "marshal", "mmap", "os.add_dll",
    "os.chmod", "os.chown",
    "os.exec", "os.fork", "os.kill", "os.link", "os.mkdir", "os.posix_spawn", "os.putenv", "os.remove", "os.rename",
    "os.rmdir",
    "os.setxattr", "os.spawn", "os.startfile", "os.symlink", "os.system", "os.truncate", "os.utime",
    "pickle.find_class", "pty", "shutil",
    "socket", "sqlite3", "subprocess", "tempfile", "urllib", "webbrowser",
)  # fmt: skip


_CODECS = (
    "ascii",
    "latin-1",
    "raw-unicode-escape",
    "unicode-escape",
    "utf-8",
    "utf-16",
    "utf-32-be",
    "utf-32-le",
    "idna",
)
"""What readers and reports encode and decode with: Python imports each when it is first asked for."""


class Violation(Exception):
    """Something was done that looking at a file must not do."""


class TooLong(BaseException):
    """A look at a file that does not end. No Exception, so that no reader takes it for one of its own."""


class Guard:
    """Watches what happens while `looking`. `folder` is the only place where files may be opened, to be read."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.on = False
        self.done: list[str] = []

    def watch(self) -> None:
        """Begin, for as long as the process lives."""
        for codec in _CODECS:
            codecs.lookup(codec)
        sys.addaudithook(self._see)
        signal.signal(signal.SIGPROF, _interrupt)
        if _STATUS.exists():
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + _MOST, resource.RLIM_INFINITY))

    @contextmanager
    def looking(self, nbytes: int) -> Iterator[None]:
        """Look at an input of so many bytes. Raises Violation at the end for what was done within; TooLong within."""
        self.done.clear()
        modules, cpu, memory = len(sys.modules), time.process_time(), _memory(peak=False)
        signal.setitimer(signal.ITIMER_PROF, 10 * SECONDS)
        self.on = True
        try:
            yield
        finally:
            self.on = False
            signal.setitimer(signal.ITIMER_PROF, 0)
        seconds, grown = time.process_time() - cpu, _memory(peak=True) - memory
        if seconds > 2 * SECONDS * max(1, nbytes >> 20):
            self.done.append(f"took {seconds:.1f} s")
        if grown > ROOM + _EACH * nbytes:
            self.done.append(f"took {grown >> 20} MiB for {nbytes:,} bytes")
        new = [name for name in list(sys.modules)[modules:] if not name.startswith("unmoor")]
        if self.done or new:
            raise Violation("; ".join([*self.done[:3], *(f"imported {name}" for name in new[:3])]))

    def _see(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open":
            path, mode, flags = args
            writing = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            if writing or not str(path).startswith((self.folder, _SOURCE)):
                self.done.append(f"opened {path!r} {mode}")
        elif event.startswith(_GRAVE) and not _is_own(event, args):
            self.done.append(f"{event} {str(args)[:100]}")


def _memory(*, peak: bool) -> int:
    """Resident memory in bytes, now or at its peak since it was last asked for what it is now; 0 where nobody tells."""
    if not _STATUS.exists():
        return 0
    if not peak:
        _RESET.write_bytes(b"5")
    found = re.search(rb"VmHWM:\s*(\d+) kB" if peak else rb"VmRSS:\s*(\d+) kB", _STATUS.read_bytes())
    return int(found[1]) << 10 if found else 0


_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_SOURCE = str(Path(__file__).parents[2] / "src")


def _is_own(event: str, args: tuple[Any, ...]) -> bool:
    """Code of this package that is imported late, and memory that no file is behind."""
    if event == "mmap.__new__":
        return args[0] == -1
    return event in ("exec", "compile", "marshal.loads", "code.__new__") and _SOURCE in repr(args)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise TooLong(f"more than {10 * SECONDS:.0f} s of CPU")
