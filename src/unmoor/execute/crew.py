"""Several threads, one list of jobs, one bounded buffer each, one meter.

Knows nothing of what the jobs do.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

__all__ = ["Meter", "run", "share"]

Job = TypeVar("Job")
_SMALLEST: Final = 64


def share(buffer_bytes: int, threads: int) -> int:
    """The bytes of buffer that each of `threads` threads gets when all together may use `buffer_bytes`.

    A multiple of 64, so that pieces of a record begin between two numbers.
    """
    return max(_SMALLEST, buffer_bytes // max(1, threads) // _SMALLEST * _SMALLEST)


def run(jobs: Sequence[Job], work: Callable[[Job, memoryview], None], *, threads: int, buffer_bytes: int) -> None:
    """Call `work(job, buffer)` for every job, taken in order by `threads` threads; in the calling thread for one.

    The first error ends all threads after the job they are at, and is raised. So does an interrupt of the caller.
    """
    threads = max(1, min(threads, len(jobs)))
    crew = _Crew(jobs, work, share(buffer_bytes, threads))
    if threads == 1:
        crew.serve()
    else:
        crew.serve_with(threads)
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
    def __init__(self, jobs: Sequence[Job], work: Callable[[Job, memoryview], None], buffer_bytes: int) -> None:
        self.jobs = iter(jobs)
        self.work, self.buffer_bytes = work, buffer_bytes
        self.lock = threading.Lock()
        self.error: BaseException | None = None

    def take(self) -> Job | None:
        with self.lock:
            return None if self.error else next(self.jobs, None)

    def stop(self, error: BaseException) -> None:
        with self.lock:
            self.error = self.error or error

    def serve(self) -> None:
        buffer = memoryview(mmap.mmap(-1, self.buffer_bytes))
        try:
            while (job := self.take()) is not None:
                self.work(job, buffer)
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
