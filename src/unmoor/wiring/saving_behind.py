"""save in the background: the state as it is now is copied to the CPU, and written from there while the run goes on.

One process pickles its state at the call, copies the storages, and has a process of its own write the file. State that
is spread over ranks goes through the engine's own way of doing that. Everything else is written by a thread that does
what save does; ranks then meet on a channel of their own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from unmoor.distributed.comparing import compare
from unmoor.distributed.engine import stage, write_behind
from unmoor.distributed.meeting import Meeting, meet
from unmoor.execute.staged import Staged
from unmoor.execute.yielding import step_back
from unmoor.live.content import Content
from unmoor.live.snapshots import take
from unmoor.live.staging import Loan, Staging, lend
from unmoor.report.restore import receipt_text
from unmoor.urls import is_url
from unmoor.values.report import Receipt

from .pending import Pending, adopt, run_behind
from .saving import draft_of, receipt_of, write_content
from .saving_flat import SUFFIX
from .saving_sharded import finished, prepare_sharded
from .saving_world import save_world
from .writing import Draft, write_draft
from .writing_apart import Shared, write_apart

__all__ = ["save_behind"]

_SMALL: Final = 32 << 20
"""Bytes up to which a save is over before it could be in anyone's way."""
_FEW: Final = 256
"""Storages up to which it holds the interpreter's lock for some milliseconds only."""


def save_behind(meeting: Meeting, path: str, content: Content, *, owner: Any, timeout: float, **how: Any) -> Pending:
    """Copy `content` and begin to write it to `path`; returns once it is copied on all ranks of the meeting.

    `owner` is the live object to which the memory of the copies belongs, None for that of this save alone. Raises what
    makes a save impossible and can be known before it is written.
    """
    said, path = path, _from_here(path)
    if meeting.size == 1 and not content.copied and not path.lower().endswith(SUFFIX):
        return _alone(path, content, lend(owner, shared=True), how)
    loan = lend(owner)
    if meeting.size > 1 and any(map(bool, map(int, meeting.gather(b"1" if content.held else b"0")))):
        return _sharded(meeting, path, content, loan, how["progress"])
    nbytes = sum(total for _, total in content.counts().values())
    with meeting.step("copy"):
        kept = content if content.copied else take(content, loan).content
    if meeting.size == 1:
        work = partial(write_content, path, kept, **how)
    else:
        work = partial(_together, meeting.group, timeout, said, path, kept, how)
    return run_behind(path, partial(_then_end, loan, nbytes, work))


def _then_end(loan: Loan, nbytes: int, work: Callable[[], Receipt]) -> Receipt:
    try:
        if nbytes > _SMALL:
            step_back()
        return work()
    finally:
        loan.end()


def _alone(path: str, content: Content, loan: Loan, how: dict[str, Any]) -> Pending:
    """Everything that has to do with live objects is done when this returns."""
    begin = time.perf_counter()
    draft, blobs = draft_of(path, content)
    staging = loan.stage(list(blobs.values()))
    sizes = [(key, blob.nbytes) for key, blob in blobs.items()]
    rows = zip(sizes, staging.starts, strict=True)
    copies = [(key, nbytes, Staged(staging.memory, start, nbytes)) for (key, nbytes), start in rows]
    work = partial(_write, replace(draft, storages=copies), staging, loan, **how)
    said = receipt_of(path, content, 0, 0.0)

    def receipt() -> Receipt:
        made = replace(said, nbytes=work(), seconds=time.perf_counter() - begin)
        return replace(made, text=receipt_text(made))

    return run_behind(path, receipt)


def _write(draft: Draft, staging: Staging, loan: Loan, **how: Any) -> int:
    """What the thread does: what is small itself, in less time than a process takes to start."""
    try:
        if is_url(draft.path):  # credentials and what is open stay in this process; the network is what takes the time
            step_back()
            return write_draft(draft, **how)
        if len(draft.storages) <= _FEW and sum(nbytes for _, nbytes, _ in draft.storages) <= _SMALL:
            return write_draft(draft, **how)
        step_back()
        return write_apart(draft, Shared(staging.handle, staging.starts), **how)
    finally:
        with suppress(BufferError):
            staging.memory.release()
        loan.end()


def _from_here(path: str) -> str:
    """A path that means the same wherever the run goes meanwhile; as it is where the folder it begins at is gone."""
    with suppress(OSError):
        return os.path.join(os.getcwd(), path) if path and not is_url(path) else path
    return path


def _together(group: Any, timeout: float, said: str, path: str, content: Content, how: Any) -> Receipt:
    """What the thread of each rank does. The path as it was given is the same on all, where it begins need not be."""
    with meet("save", group, timeout, channel="background") as meeting:
        meeting.agree({"path": said})
        return save_world(meeting, path, content, **how)


def _sharded(meeting: Meeting, path: str, content: Content, loan: Loan, progress: Any) -> Pending:
    prepared = prepare_sharded(meeting, path, content, compare(meeting, content, path), progress=progress)
    try:
        with meeting.step("copy"):
            job = stage(prepared.job, None if content.copied else loan)
        writing = write_behind(job)
    except BaseException:
        prepared.discard()
        raise
    left = replace(prepared, job=job)
    writing.add_done_callback(lambda _: loan.end())
    return adopt(job.path, writing, partial(finished, left), left.failed)
