"""Several threads, one list of jobs, one ring of bounded buffers each, one meter.

Knows nothing of what the jobs do, nor of copies between buffers and devices that go on beside them.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Final, Generic, TypeVar

from .sinks import Buffers, Ring

__all__ = ["Meter", "ring_of", "run", "run_with_ring", "share"]

Job = TypeVar("Job")
_SMALLEST: Final = 64


class _OneBuffer:
    """The ring of a thread where no device is concerned."""

    slots: Final = 1

    def __init__(self, nbytes: int) -> None:
        self._buffer = memoryview(mmap.mmap(-1, nbytes))

    def take(self) -> memoryview:
        return self._buffer

    def settle(self, buffer: memoryview) -> None:
        """Nothing: what is fetched is there."""

    def close(self) -> None:
        """Nothing: what was put has arrived."""


def share(buffer_bytes: int, threads: int, buffers: Buffers | None = None) -> int:
    """The bytes of each buffer of `threads` threads, when all together may use `buffer_bytes`.

    A multiple of 64, so that pieces of a record begin between two numbers; where a thread has several buffers a power
    of two, which is what pinned memory comes in.
    """
    if buffers is None:
        return max(_SMALLEST, buffer_bytes // max(1, threads) // _SMALLEST * _SMALLEST)
    each = max(_SMALLEST, buffer_bytes // (max(1, threads) * buffers.slots))
    return 1 << each.bit_length() - 1


def ring_of(buffers: Buffers | None, nbytes: int) -> Ring:
    """The ring of the calling thread: of `buffers`, or one buffer of the host. The caller closes it."""
    return _OneBuffer(nbytes) if buffers is None else buffers.ring(nbytes)


def run(
    jobs: Sequence[Job],
    work: Callable[[Job, memoryview], None],
    *,
    threads: int,
    buffer_bytes: int,
    buffers: Buffers | None = None,
) -> None:
    """Call `work(job, buffer)` for every job, taken in order by `threads` threads; in the calling thread for one.

    The first error ends all threads after the job they are at, and is raised. So does an interrupt of the caller.
    Without `buffers` each thread has one, of the host. Copies out of buffers have ended when this returns or raises.
    """
    how = {"threads": threads, "buffer_bytes": buffer_bytes}
    run_with_ring(jobs, lambda job, ring: work(job, ring.take()), buffers=buffers, **how)


def run_with_ring(
    jobs: Sequence[Job],
    work: Callable[[Job, Ring], None],
    *,
    threads: int,
    buffer_bytes: int,
    buffers: Buffers | None = None,
) -> None:
    """As `run`, calling `work(job, ring)`: it takes as many buffers as it wants from its thread's ring."""
    at_work = max(1, min(threads, len(jobs)))
    nbytes = share(
        buffer_bytes, at_work if buffers is None else threads, buffers
    )  # pinned memory is not had for asking
    crew = _Crew(jobs, work, partial(ring_of, buffers, nbytes))
    if at_work == 1:
        crew.serve()
    else:
        crew.serve_with(at_work)
    if crew.error is not None:
        raise crew.error


class Meter:
    """Adds up work done by several threads and passes it on, one call at a time."""

    def __init__(self, progress: Callable[[int], None] | None) -> None:
        self.total = 0
        self._progress, self._lock = progress, threading.Lock()

    def advance(self, nbytes: int) -> None:
        """Count `nbytes` more, and tell whoever listens."""
        if nbytes > 0:
            with self._lock:
                self.total += nbytes
                if self._progress is not None:
                    self._progress(nbytes)


class _Crew(Generic[Job]):
    def __init__(self, jobs: Sequence[Job], work: Callable[[Job, Ring], None], ring: Callable[[], Ring]) -> None:
        self.jobs = iter(jobs)
        self.work, self.ring = work, ring
        self.lock = threading.Lock()
        self.error: BaseException | None = None

    def take(self) -> Job | None:
        with self.lock:
            return None if self.error else next(self.jobs, None)

    def stop(self, error: BaseException) -> None:
        with self.lock:
            self.error = self.error or error

    def serve(self) -> None:
        try:
            with closing(self.ring()) as ring:
                while (job := self.take()) is not None:
                    self.work(job, ring)
        except BaseException as error:  # noqa: BLE001 - raised again by run(), in the caller's thread
            self.stop(error)

    def serve_with(self, threads: int) -> None:
        workers = [threading.Thread(target=self.serve, name=f"unmoor-{i}", daemon=True) for i in range(threads)]
        started = []
        try:
            for worker in workers:
                worker.start()
                started.append(worker)
            for worker in started:
                worker.join()
        except BaseException as error:  # noqa: BLE001 - an interrupt: the threads must be still before it is raised
            self.stop(error)
            for worker in started:
                worker.join()
