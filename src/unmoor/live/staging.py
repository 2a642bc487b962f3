"""Memory for the copies from which a save in the background writes: kept, and filled again by the next.

It belongs to a live object of the run, its owner: once that is gone, so is the memory, and nothing else keeps it. While
a save writes from it, no other save gets it. Where the system has files in memory it is one, so that another process
can write from it without a copy.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

import torch

from unmoor.errors import SaveError
from unmoor.values.text import format_bytes

from .pickling import StorageBlob
from .rings import bring
from .survey import members

__all__ = ["Arena", "Loan", "Staging", "apart", "lend", "owner_of"]

_ALIGN: Final = 64
_LARGE: Final = 256 << 10
"""Bytes from which on torch copies with all its threads."""


class Arena:
    """Memory that grows to what its largest use takes. `handle` is its file in memory, None where it is none.

    What is not `shared` with another process has huge pages instead, where the system has them.
    """

    def __init__(self, *, shared: bool) -> None:
        self.process, self.shared = os.getpid(), shared
        self.handle: int | None = None
        self.nbytes = 0
        self._memory: mmap.mmap | None = None
        with suppress(AttributeError, OSError):
            self.handle = os.memfd_create("unmoor", os.MFD_CLOEXEC) if shared else None

    def room(self, nbytes: int) -> None:
        """Make it `nbytes` long, or longer. What was taken from it before must be gone."""
        if nbytes <= self.nbytes:
            return
        nbytes = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._memory, self.nbytes = None, 0
        try:
            self._memory = self._mapped(nbytes)
        except OSError as error:
            raise SaveError(
                f"the state was not copied: that takes {format_bytes(nbytes)}, and the system says: {error.strerror}",
                remedy="Save with background=False, which copies nothing.",
                errno=error.errno,
            ) from error
        self.nbytes = nbytes

    def view(self) -> memoryview:
        """All of it."""
        return memoryview(b"") if self._memory is None else memoryview(self._memory)

    def _mapped(self, nbytes: int) -> mmap.mmap:
        if self.handle is not None:
            with suppress(OSError):  # what limits files limits this one
                os.ftruncate(self.handle, nbytes)
                return mmap.mmap(self.handle, nbytes)
            os.close(self.handle)
            self.handle = None
        private = getattr(mmap, "MAP_PRIVATE", None)
        if private is None:
            return mmap.mmap(-1, nbytes)
        made = mmap.mmap(-1, nbytes, flags=private | mmap.MAP_ANONYMOUS)  # shared memory has no huge pages
        with suppress(AttributeError, OSError):
            made.madvise(mmap.MADV_HUGEPAGE)
        return made

    def __del__(self) -> None:
        if self.handle is not None:
            os.close(self.handle)


@dataclass(frozen=True, slots=True)
class Staging:
    """Copies of storages: the memory in which they lie, its file if it is one, and where each begins in it."""

    memory: memoryview
    handle: int | None
    starts: Sequence[int]


class Loan:
    """An arena that is one save's until `end`. Whatever was taken from it is of no use then."""

    def __init__(self, arena: Arena, owner: ref[Any] | None) -> None:
        self.arena: Arena | None = arena
        self._owner = owner

    def stage(self, blobs: Sequence[StorageBlob]) -> Staging:
        """Copy storages as they are now. What devices have been given to do before is done before."""
        arena = self.arena or Arena(shared=False)
        starts = list(accumulate((-(-blob.nbytes // _ALIGN) * _ALIGN for blob in blobs), initial=0))
        arena.room(starts.pop())
        memory = arena.view()
        _copy([row for row in zip(blobs, starts, strict=True) if row[0].nbytes], memory)
        return Staging(memory, arena.handle, starts)

    def end(self) -> None:
        """Keep the memory for the owner's next save; let go of it if there is no owner any more."""
        arena, self.arena = self.arena, None
        owner = None if self._owner is None else self._owner()
        if owner is not None and arena is not None:
            with _lock:
                _kept[owner] = arena


def lend(owner: Any, *, shared: bool = False) -> Loan:
    """Memory for one save: what `owner`'s last save has left, or new; new for None, and gone after that save.

    `shared` tells that another process is to write from it, if there can be one.
    """
    if owner is None:
        return Loan(Arena(shared=shared), None)
    with _lock:
        arena = _kept.pop(owner, None)
    if arena is None or arena.process != os.getpid() or (shared and not arena.shared):
        arena = Arena(shared=shared)  # a forked process would share that of its parent
    return Loan(arena, ref(owner))


def apart() -> Loan:
    """Memory of its own, for what keeps it."""
    return Loan(Arena(shared=False), None)


_BY_IDENTITY: Final[Any] = object.__hash__


def owner_of(roles: Mapping[str, Any]) -> Any:
    """The first live object of a run that can own memory; None where there is none.

    What is equal to another object, or may be to another later, would not find its memory again.
    """
    for role, value in roles.items():
        for _, _, item in members(role, value):
            with suppress(TypeError):
                ref(item)
                if type(item).__hash__ is _BY_IDENTITY:
                    return item
    return None


_kept: WeakKeyDictionary[Any, Arena] = WeakKeyDictionary()
_lock: Final = threading.Lock()


def _copy(rows: list[tuple[StorageBlob, int]], view: memoryview) -> None:
    memory = torch.frombuffer(view, dtype=torch.uint8) if view else torch.empty(0, dtype=torch.uint8, device="cpu")
    of_devices = []
    for blob, start in rows:
        data = blob.direct(0, blob.nbytes)
        if data is None:
            of_devices.append((view[start : start + blob.nbytes], blob.values))
        elif blob.nbytes < _LARGE:
            view[start : start + blob.nbytes] = data
        else:
            memory[start : start + blob.nbytes].copy_(torch.frombuffer(data, dtype=torch.uint8))
    bring(of_devices)
