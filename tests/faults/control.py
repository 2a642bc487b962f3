"""The page of memory that a test shares with the processes in which the shim is loaded, and the log that they write.

Both are laid out in shim.c; the kinds of operations are read from there. Knows nothing of who starts processes.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CHANGES", "KINDS", "CompilerMissing", "Control", "Fault", "Operation", "library", "read_log"]

SOURCE = Path(__file__).with_name("shim.c")
CACHE = Path(__file__).parents[2] / ".cache" / "faults"


def _kinds() -> tuple[str, ...]:
    table = SOURCE.read_text().partition("#define KINDS(X)")[2].partition("\n\n")[0]
    return tuple(re.findall(r"X\((\w+)\)", table))


KINDS = _kinds()
"""All kinds of operations, in the order of their numbers."""
CHANGES = KINDS[: KINDS.index("read")]
"""Those that change the folder, or bring it to the disk: they are numbered, and logged."""
WHEN = ("before", "after", "half")
"""When a process ends: before or after the operation, or when half of its bytes are written."""
WHOM = ("self", "main", "others", "all")
"""Who ends: the process whose operation it is, the one that the test started, all others, all."""


class CompilerMissing(RuntimeError):
    """No C compiler is there to build the shim, and no build of it is cached."""


def library() -> Path:
    """The shim, compiled once per source. Raises `CompilerMissing` if it must be built and cannot be."""
    place = CACHE / f"shim-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]}.so"
    if place.exists():
        return place
    compiler = os.environ.get("CC", "cc")
    if shutil.which(compiler) is None:
        raise CompilerMissing(f"no C compiler {compiler!r} on PATH to build {SOURCE.name}")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        made = Path(scratch, place.name)
        flags = ["-O1", "-shared", "-fPIC", "-pthread"]
        done = subprocess.run(
            [compiler, *flags, "-o", made, SOURCE, "-ldl"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"the shim does not compile:\n{done.stderr}")
        os.replace(made, place)
    return place


@dataclass(frozen=True, slots=True)
class Fault:
    """An error that operations fail with.

    kind: one of KINDS, "change" for any of CHANGES, "any" for every kind. first: fails from the first-th that matches
    on. times: that many of them, 0 for all after. after_bytes: and only once that many bytes were written to the
    folder; the write that would pass it is cut short. match: only paths that contain this.
    """

    kind: str
    error: int
    first: int = 1
    times: int = 1
    after_bytes: int | None = None
    match: str = ""

    @classmethod
    def of(cls, fail: object) -> Fault:
        """A fault as it is, or (kind, n, errno): the n-th of a kind, 0 for all of them."""
        if isinstance(fail, Fault):
            return fail
        kind, n, error = fail
        return cls(kind, error, first=n or 1, times=1 if n else 0)


class _Rule(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int32),
        ("error", ctypes.c_int32),
        ("first", ctypes.c_int64),
        ("times", ctypes.c_int64),
        ("after_bytes", ctypes.c_int64),
        ("match", ctypes.c_char * 64),
        ("seen", ctypes.c_int64),
        ("failed", ctypes.c_int64),
    ]


class _Page(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32),
        ("armed", ctypes.c_uint32),
        ("ready", ctypes.c_uint32),
        ("killed", ctypes.c_uint32),
        ("lock", ctypes.c_uint64 * 5),
        ("operations", ctypes.c_int64),
        ("written", ctypes.c_int64),
        ("kill_at", ctypes.c_int64),
        ("kill_when", ctypes.c_int32),
        ("kill_whom", ctypes.c_int32),
        ("main", ctypes.c_int32),
        ("pid_count", ctypes.c_int32),
        ("short_write", ctypes.c_int64),
        ("short_read", ctypes.c_int64),
        ("delay_us", ctypes.c_int64),
        ("log_data", ctypes.c_int32),
        ("rule_count", ctypes.c_int32),
        ("counts", ctypes.c_int64 * 32),
        ("pids", ctypes.c_int32 * 64),
        ("rules", _Rule * 8),
        ("folder", ctypes.c_char * 1024),
        ("log", ctypes.c_char * 1024),
    ]


class Control:
    """The shared page, at a path of its own: `page` are its fields."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        with open(self.path, "a+b") as file:
            file.truncate(ctypes.sizeof(_Page))
            self._memory = mmap.mmap(file.fileno(), ctypes.sizeof(_Page))
        self.page = _Page.from_buffer(self._memory)

    def environment(self) -> dict[str, str]:
        """What a process must be started with for the shim to be in it and in its children."""
        before = os.environ.get("LD_PRELOAD")
        return {"UNMOOR_FAULTS": self.path, "LD_PRELOAD": str(library()) + (f":{before}" if before else "")}

    def order(
        self,
        folder: str | os.PathLike[str],
        *,
        kill_at: int | None = None,
        when: str = "before",
        whom: str = "self",
        fail: object = (),
        short_write: int = 0,
        short_read: int = 0,
        delay_us: int = 0,
        log: str | os.PathLike[str] | None = None,
        log_data: bool = True,
    ) -> None:
        """Ask for faults in `folder`; they are done once `arm` is called."""
        page = self.page
        page.armed = page.killed = page.operations = page.written = page.main = page.pid_count = 0
        page.counts[:] = [0] * len(page.counts)
        page.kill_at, page.kill_when, page.kill_whom = kill_at or 0, WHEN.index(when), WHOM.index(whom)
        page.short_write, page.short_read, page.delay_us = short_write, short_read, delay_us
        page.folder, page.log = os.fsencode(os.path.realpath(folder)), os.fsencode(log or "")
        page.log_data = log_data
        faults = _faults(fail)
        page.rule_count = len(faults)
        for at, fault in enumerate(faults):
            number = {"change": -1, "any": -2}.get(fault.kind)
            page.rules[at] = _Rule(
                KINDS.index(fault.kind) if number is None else number,
                fault.error,
                fault.first,
                fault.times,
                -1 if fault.after_bytes is None else fault.after_bytes,
                os.fsencode(fault.match),
            )

    def arm(self, main: int = 0) -> None:
        """From now on; `main` is the process that counts as the one of the test, 0 for the first that starts."""
        self.page.main, self.page.pid_count = main, 0
        if main:
            self.page.pids[0], self.page.pid_count = main, 1
        self.page.armed = 1

    def disarm(self) -> None:
        """No more."""
        self.page.armed = 0

    def counts(self) -> dict[str, int]:
        """How many operations there were, by kind."""
        return {kind: self.page.counts[at] for at, kind in enumerate(KINDS) if self.page.counts[at]}

    def check(self) -> None:
        """Raise where the two descriptions of the page differ, or no process had the shim."""
        if self.page.size != ctypes.sizeof(_Page):
            raise RuntimeError(f"the shim was not loaded: its page has {self.page.size} bytes")


def _faults(fail: object) -> list[Fault]:
    if not fail:
        return []
    many = isinstance(fail, Sequence) and not isinstance(fail[0], str)
    return [Fault.of(one) for one in (fail if many else [fail])]


_ENTRY = struct.Struct("<3I3i5q4I")
_MAGIC = 0x746C6166
_FLAGS = {1: "created", 2: "cut", 4: "exchanged", 16: "on purpose"}


@dataclass(frozen=True, slots=True)
class Operation:
    """One that a process did: `path` (and `other`, where a name goes) as they were, `data` what was written.

    `number` is its place among all, `result` what it gave (below 0: it failed with `error`), `flags` of _FLAGS.
    """

    number: int
    kind: str
    path: str
    other: str
    result: int
    error: int
    offset: int
    length: int
    inode: int
    process: int
    thread: int
    flags: frozenset[str]
    data: bytes

    def __str__(self) -> str:
        what = f"{self.path} -> {self.other}" if self.other else self.path
        size = f" [{self.offset}:+{self.result}]" if self.kind in ("write", "copy") else ""
        return f"{self.number} {self.kind} {what}{size}" + (f" failed: {self.error}" if self.result < 0 else "")


def read_log(path: str | os.PathLike[str]) -> list[Operation]:
    """The operations of a log, in their order."""
    place = Path(path)
    return list(_entries(place.read_bytes())) if place.exists() else []


def _entries(data: bytes) -> Iterator[Operation]:
    at = 0
    while at + _ENTRY.size <= len(data):
        (magic, kind, flags, process, thread, error, result, offset, length, inode, number, *sizes) = (
            _ENTRY.unpack_from(data, at)
        )
        if magic != _MAGIC:
            raise ValueError(f"no operation at byte {at} of the log")
        at += _ENTRY.size
        texts = []
        for size in sizes[:3]:
            texts.append(data[at : at + size])
            at += size
        yield Operation(
            number,
            KINDS[kind],
            os.fsdecode(texts[0]),
            os.fsdecode(texts[1]),
            result,
            error,
            offset,
            length,
            inode,
            process,
            thread,
            frozenset(name for bit, name in _FLAGS.items() if flags & bit),
            texts[2],
        )
