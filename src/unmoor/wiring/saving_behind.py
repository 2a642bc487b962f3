"""save in the background: the state as it is now is copied to the CPU, and written from there while the run goes on.

State that is spread over ranks goes through the engine's own way of doing that. Everything else is written by a thread
that does what save does; ranks then meet on a channel of their own.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from unmoor.distributed.comparing import compare
from unmoor.distributed.engine import stage, write_behind
from unmoor.distributed.meeting import Meeting, meet
from unmoor.live.content import Content
from unmoor.live.snapshots import take
from unmoor.values.report import Receipt

from .pending import Pending, adopt, run_behind
from .saving import write_content
from .saving_sharded import finished, prepare_sharded
from .saving_world import save_world

__all__ = ["save_behind"]


def save_behind(meeting: Meeting, path: str, content: Content, *, timeout: float, **how: Any) -> Pending:
    """Copy `content` and begin to write it to `path`; returns once it is copied on all ranks of the meeting.

    Raises what makes a save impossible and can be known before it is written.
    """
    if meeting.size > 1 and any(map(bool, map(int, meeting.gather(b"1" if content.held else b"0")))):
        return _sharded(meeting, path, content, how["progress"])
    with meeting.step("copy"):
        kept = content if content.copied else take(content).content
    if meeting.size == 1:
        return run_behind(path, partial(write_content, path, kept, **how))
    return run_behind(path, partial(_together, meeting.group, timeout, path, kept, how))


def _together(group: Any, timeout: float, path: str, content: Content, how: Any) -> Receipt:
    """What the thread of each rank does."""
    with meet("save", group, timeout, channel="background") as meeting:
        meeting.agree({"path": path})
        return save_world(meeting, path, content, **how)


def _sharded(meeting: Meeting, path: str, content: Content, progress: Any) -> Pending:
    prepared = prepare_sharded(meeting, path, content, compare(meeting, content, path), progress=progress)
    try:
        with meeting.step("copy"):
            job = stage(prepared.job, copied=content.copied)
    except BaseException:
        prepared.discard()
        raise
    left = replace(prepared, job=job)
    return adopt(job.path, write_behind(job), partial(finished, left), left.failed)
