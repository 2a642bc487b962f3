"""Faults on purpose: a process is killed at an operation on files, or the operation fails, is cut short, is logged.

`run` starts a script of its own; `zygote.Zygote` forks from a process in which torch is imported, for hundreds of runs.
Both load shim.c by LD_PRELOAD, which works on Linux with glibc; `missing()` says why it does not here. For example

    run(SCRIPT, folder, fail=("write", 3, errno.ENOSPC))                      # the third write
    run(SCRIPT, folder, fail=Fault("write", errno.ENOSPC, times=0, after_bytes=1 << 20))   # a disk that fills up
    run(SCRIPT, folder, fail=Fault("any", errno.ENODEV, first=20, times=0))   # a mount that vanishes
    run(SCRIPT, folder, kill_at=7, when="half")                               # in the midst of the seventh operation

Kinds of operations are listed at the head of shim.c. Reads through a memory map are not seen.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .control import CHANGES, KINDS, CompilerMissing, Control, Fault, Operation, library, read_log

__all__ = [
    "CHANGES",
    "KINDS",
    "CompilerMissing",
    "Control",
    "Fault",
    "Operation",
    "Outcome",
    "library",
    "mark",
    "missing",
    "read_log",
    "run",
]

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a process ended: its operations on the folder, by kind too, and in full where a log was asked for."""

    operations: int
    returncode: int
    stdout: str
    stderr: str = ""
    killed: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    log: tuple[Operation, ...] = ()


def missing() -> str:
    """Why there can be no faults on this machine; "" where there can."""
    if not sys.platform.startswith("linux") or platform.libc_ver()[0] != "glibc":
        return "faults are put in by LD_PRELOAD, on Linux with glibc"
    try:
        library()
    except CompilerMissing as error:
        return str(error)
    return ""


def run(
    script: str | Path,
    folder: str | os.PathLike[str],
    *arguments: object,
    log: bool = False,
    limit: float = 120.0,
    env: Mapping[str, str] | None = None,
    command: list[str] | None = None,
    **faults: object,
) -> Outcome:
    """Run a script (its text, or the path of its file) in a process of its own, with faults in `folder`.

    `faults` are the keywords of `Control.order`: kill_at, when, whom, fail, short_write, short_read, delay_us.
    `command` starts something else instead, torchrun say. All processes that it started are killed after `limit`
    seconds, which is a TimeoutError with the output.
    """
    code = [str(script)] if isinstance(script, Path) else ["-c", script]
    with tempfile.TemporaryDirectory(prefix="faults-") as scratch:
        control, place = Control(Path(scratch, "control")), Path(scratch, "log")
        control.order(folder, log=place if log else None, **faults)
        control.arm()
        process = subprocess.Popen(
            [*(command or [sys.executable, *code]), *map(str, arguments)],
            cwd=ROOT,
            env={**os.environ, **control.environment(), **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with process:
            try:
                stdout, stderr = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                stdout, stderr = process.communicate()
                raise TimeoutError(f"still there after {limit:g} s:\n{stdout[-4000:]}\n{stderr[-4000:]}") from None
        control.disarm()
        control.check()
        return Outcome(
            control.page.operations,
            process.returncode,
            stdout,
            stderr,
            bool(control.page.killed),
            control.counts(),
            tuple(read_log(place)) if log else (),
        )


def mark(text: str) -> None:
    """Leave a line in the log, between the operations of a script; nothing where the shim is not loaded."""
    try:
        call = ctypes.CDLL(None).unmoor_mark
    except AttributeError:
        return
    call(text.encode())
