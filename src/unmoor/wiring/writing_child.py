"""The process that writes for `writing_apart.py`: takes one order on its input, and answers on its output."""

from __future__ import annotations

import ctypes
import json
import marshal
import mmap
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from unmoor.errors import UnmoorError
from unmoor.execute.staged import Staged

from .writing import Draft, write_draft
from .writing_apart import LENGTH, READY

__all__ = ["main"]

_PARENT_DEATH: Final = 1
"""prctl's PR_SET_PDEATHSIG."""


class _Stopped(BaseException):
    """The run wants it no more."""


def main(parent: int, file: int) -> None:
    """Write what process `parent` orders; the copies lie in the file `file`."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"):  # for the run, which decides
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    _end_with(parent)
    out = os.dup(1)
    os.dup2(2, 1)
    os.write(out, READY)
    order = _heard()
    try:
        nbytes = _carry_out(order, file, out)
    except BaseException as error:  # noqa: BLE001 - raised again by the run
        _say(out, ("failed", _row(error)))
    else:
        _say(out, ("done", nbytes))


def _end_with(parent: int) -> None:
    """Be ended when the thread that waits for this process is, however that ends."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def _carry_out(order: dict[str, Any], file: int, out: int) -> int:
    view = _memory(file)
    storages = [(key, nbytes, Staged(view, start, nbytes)) for key, start, nbytes in order["storages"]]
    draft = Draft(order["path"], order["pickled"], storages, json.loads(order["manifest"]), order["promise"])
    how = {"buffer_bytes": order["buffer_bytes"], "threads": order["threads"]}
    progress = _asking(out) if order["told"] else None
    return write_draft(draft, **how, progress=progress, begun=lambda hidden: _say(out, ("begun", hidden)))


def _memory(file: int) -> memoryview:
    nbytes = os.fstat(file).st_size
    return memoryview(mmap.mmap(file, nbytes, prot=mmap.PROT_READ) if nbytes else b"")


def _asking(out: int) -> Callable[[int], None]:
    """The run's progress: each call returns, or raises, once the run's own has."""

    def progress(nbytes: int) -> None:
        _say(out, ("progress", nbytes))
        kind, *rest = _heard()
        if kind == "failed":
            raise OSError(*rest)
        if kind == "stop":
            raise _Stopped

    return progress


def _say(out: int, message: tuple[Any, ...]) -> None:
    data = marshal.dumps(message)
    rest = memoryview(LENGTH.pack(len(data)) + data)
    while rest:
        rest = rest[os.write(out, rest) :]


def _heard() -> Any:
    """The next message of the run. Its end is the end of this process."""
    head = sys.stdin.buffer.read(LENGTH.size)
    data = sys.stdin.buffer.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else b""
    if not data:
        raise _Stopped
    return marshal.loads(data)  # noqa: S302 - the run's own


def _row(error: BaseException) -> dict[str, Any]:
    """An error in plain values."""
    if isinstance(error, UnmoorError):
        row = {"class": type(error).__name__, "headline": error.headline, "details": list(error.details)}
        return {**row, "remedy": error.remedy, "path": error.path, "errno": getattr(error, "errno", None)}
    args = [value for value in error.args if isinstance(value, int | str)]
    return {"class": type(error).__name__, "headline": " ".join(str(error).split()), "args": args}
