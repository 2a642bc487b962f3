"""A draft written by a process of its own: training keeps the interpreter's lock, and the processor's time.

A thread would hold that lock for every tensor that it writes and describes, and each step of the run would wait for it
many times. The process shares the memory that holds the copies, starts without torch, yields to whatever else wants to
run, and ends with the run. Where none can be started, the calling thread writes.
"""

from __future__ import annotations

import builtins
import json
import marshal
import os
import select
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any, Final

import unmoor
from unmoor import errors
from unmoor.errors import SaveError, UnmoorError

from .writing import Draft, write_draft

__all__ = ["LENGTH", "READY", "Shared", "write_apart"]

LENGTH: Final = Struct("<Q")
"""Before each message: its bytes."""
READY: Final = b"unmoor: ready\n"
"""What the process says first. Anything else, as of what is loaded before it, and it is not used."""

_LOOK: Final = 1000
"""Milliseconds between two looks whether the process is still there."""

_STANDARD: Final = (0, 1, 2)
"""Files that are a process's input, output and errors, whatever they are here: a daemon may have closed its own."""

_START: Final = (
    "import sys; sys.path += {path!a}; sys.dont_write_bytecode, sys.pycache_prefix = {bytecode!a}; "
    "from unmoor.wiring.writing_child import main; main({parent}, {file})"
)
"""Python's own modules are found first, as they are in the run."""


@dataclass(frozen=True, slots=True)
class Shared:
    """Where a draft's storages lie for another process: a file in memory, and where each of them begins in it."""

    handle: int | None
    starts: Sequence[int]


def write_apart(
    draft: Draft,
    shared: Shared,
    *,
    buffer_bytes: int,
    threads: int,
    progress: Callable[[int], None] | None,
) -> int:
    """Write a draft as `write_draft` does, in a process of its own if there can be one; the size of the file.

    Raises what `write_draft` raises, and SaveError if the process was ended from outside.
    """
    how: dict[str, Any] = {"buffer_bytes": buffer_bytes, "threads": threads}
    order = _order(draft, shared, how, told=progress is not None)
    process = None if order is None or shared.handle is None else _started(shared.handle)
    if process is None or order is None:
        return write_draft(draft, **how, progress=progress)
    with process:
        writer = _Writer(process, draft.path)
        try:
            if writer.begins():
                return writer.carry_out(order, progress)
        finally:
            writer.end()
    return write_draft(draft, **how, progress=progress)


def _order(draft: Draft, shared: Shared, how: Mapping[str, Any], *, told: bool) -> bytes | None:
    """What the process has to know; None where keys of the tree are of a kind that cannot be handed over."""
    storages = [(key, start, size) for (key, size, _), start in zip(draft.storages, shared.starts, strict=True)]
    plain = {
        "path": draft.path,
        "pickled": draft.pickled,
        "storages": storages,
        "manifest": json.dumps(dict(draft.manifest)),  # as it will be: marshal takes some numbers for bytes
        "promise": dict(draft.promise),
        **how,
        "told": told,
    }
    try:
        return marshal.dumps(plain)
    except ValueError:
        return None


def _started(handle: int) -> subprocess.Popen[bytes] | None:
    """The process, which waits for its order; None where none can be started here."""
    name = os.path.basename(sys.executable or "")
    if handle in _STANDARD:
        return None
    if not sys.platform.startswith("linux") or getattr(sys, "frozen", False) or not name.startswith(("python", "pypy")):
        return None
    path = [str(Path(unmoor.__file__).resolve().parents[1]), *(entry for entry in sys.path if isinstance(entry, str))]
    bytecode = (sys.dont_write_bytecode, sys.pycache_prefix)
    code = _START.format(path=path, bytecode=bytecode, parent=os.getpid(), file=handle)
    try:
        return subprocess.Popen(  # noqa: S603 - this very interpreter, on this very package
            [sys.executable, "-I", "-S", "-X", f"utf8={sys.flags.utf8_mode}", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=(handle,),
        )
    except OSError:
        return None


class _Writer:
    """The other end of the process: messages to it and from it."""

    def __init__(self, process: subprocess.Popen[bytes], path: str) -> None:
        self._process, self._path = process, path
        self._hidden = ""

    def begins(self) -> bool:
        """Whether it came up; it is ended if not."""
        if self._read(len(READY)) == READY:
            return True
        self._process.kill()
        return False

    def carry_out(self, order: bytes, progress: Callable[[int], None] | None) -> int:
        """Have it write; the size of the file."""
        self._send(order)
        stopped: BaseException | None = None
        while (message := self._received()) is not None:
            kind, *rest = message
            if kind == "begun":
                self._hidden = rest[0]
            elif kind == "progress":
                stopped = _called(progress, rest[0])
                self._send(marshal.dumps(_reply(stopped)))
            elif kind == "done":
                return int(rest[0])
            elif stopped is not None and not _of_system(stopped):
                raise stopped
            else:
                raise _made(rest[0], self._path) from stopped
        raise SaveError(
            f"{self._path} was not saved: {self._end_of_process()}",
            details=["the checkpoint that was there before is untouched"] if os.path.exists(self._path) else [],
            remedy="Something outside ended it: the machine may be out of memory. Save again.",
            path=self._path,
        )

    def end(self) -> None:
        """See the process end, and clear away what it could not."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self._process.wait()
        if self._hidden:  # how it ended is not known where somebody else has waited for it
            with suppress(OSError):
                os.unlink(self._hidden)

    def _end_of_process(self) -> str:
        code = self._process.wait()
        how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"the process that wrote it {how}"

    def _send(self, data: bytes) -> None:
        pipe = self._process.stdin
        if pipe is not None:
            with suppress(BrokenPipeError):  # that it is gone is found where its answer is awaited
                pipe.write(LENGTH.pack(len(data)))
                pipe.write(data)
                pipe.flush()

    def _received(self) -> tuple[Any, ...] | None:
        """Its next message; None where it has ended."""
        head = self._read(LENGTH.size)
        data = None if head is None else self._read(LENGTH.unpack(head)[0])
        message: tuple[Any, ...] | None = None if data is None else marshal.loads(data)  # noqa: S302 - our own process
        return message

    def _read(self, nbytes: int) -> bytes | None:
        pipe = self._process.stdout
        handle = -1 if pipe is None else pipe.fileno()
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        found = b""
        while len(found) < nbytes:
            # Its end is looked for as well: a process that the run forked meanwhile may hold the pipe open.
            if not poll.poll(_LOOK) and self._process.poll() is None:
                continue
            if not poll.poll(0):
                return None
            piece = os.read(handle, nbytes - len(found))
            if not piece:
                return None
            found += piece
        return found


def _called(progress: Callable[[int], None] | None, nbytes: int) -> BaseException | None:
    """What the caller's progress raises."""
    try:
        if progress is not None:
            progress(nbytes)
    except BaseException as error:  # noqa: BLE001 - raised again when the process has cleared away its file
        return error
    return None


def _of_system(error: BaseException) -> bool:
    return isinstance(error, OSError) and not isinstance(error, UnmoorError)


def _reply(error: BaseException | None) -> tuple[Any, ...]:
    if error is None:
        return ("on",)
    if isinstance(error, OSError) and _of_system(error):
        return ("failed", str(error)) if error.errno is None else ("failed", error.errno, str(error.strerror))
    return ("stop",)


def _made(row: Mapping[str, Any], path: str) -> BaseException:
    """An error as it was in the process."""
    kind = getattr(errors, row["class"], None)
    if kind is not None:
        own = {} if row["errno"] is None else {"errno": row["errno"]}
        error: BaseException = kind(
            row["headline"], details=row["details"], remedy=row["remedy"], path=row["path"], **own
        )
        return error
    found = getattr(builtins, row["class"], None)
    if isinstance(found, type) and issubclass(found, Exception):
        with suppress(TypeError):
            return found(*row["args"])
    return SaveError(f"{path} was not saved: {row['class']}: {row['headline']}", path=path)
