"""save of state that is spread over ranks: a hidden folder that all see -> written by all -> complete.

What ranks have to tell each other is told before anything is written; then torch.distributed.checkpoint carries it out,
at once or in the background.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from unmoor.distributed.comparing import Compared, hold_equal, live_sums
from unmoor.distributed.engine import Job, failure_of, own_failure, write, written_bytes
from unmoor.distributed.meeting import Meeting
from unmoor.distributed.replicas import Copies, copies_of, packed, refuse_unequal, unequal
from unmoor.distributed.saving import Share, share_of
from unmoor.errors import SaveError, UnmoorError, UsageError
from unmoor.execute.commit import real_path, refuse_full, save_error
from unmoor.execute.folder_commit import Staging, discard, sees, stage
from unmoor.live.content import Content
from unmoor.report.restore import receipt_text
from unmoor.values.ranks import RANKS
from unmoor.values.report import Receipt
from unmoor.values.text import listing

from .saving import head
from .saving_flat import SUFFIX
from .saving_folder import Completion, is_own, is_whole

__all__ = ["Prepared", "finished", "prepare_sharded", "write_sharded"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A save of several ranks of which nothing but the writing is left, as one of them sees it.

    `receipt` is what will be said of it but for bytes and time, `begin` when it began (time.perf_counter), `nbytes`
    what will be written, as far as this rank knows.
    """

    job: Job
    staging: Staging
    rank: int
    receipt: Receipt
    begin: float
    nbytes: int

    def own(self, error: BaseException) -> BaseException | None:
        """What this rank has to say of an error that ended it; None where others have."""
        return own_failure(error, self.job.path, self.rank, self._told)

    def failed(self, error: BaseException) -> BaseException:
        """Clear away what there is of it, on the rank that made it; what this rank raises for it."""
        self.discard()
        return failure_of(error, self.job.path, self.rank, self._told)

    def discard(self) -> None:
        """Clear away what there is of it, on the rank that made it."""
        if self.rank == 0:
            discard(self.staging, self.job.path)

    def _told(self, error: OSError) -> UnmoorError:
        return save_error(error, self.job.path, os.path.realpath(self.job.path), self.nbytes)


def write_sharded(
    meeting: Meeting,
    path: str,
    content: Content,
    compared: Compared,
    *,
    buffer_bytes: int,  # noqa: ARG001 - torch's writer has none of ours
    threads: int,  # noqa: ARG001
    progress: Callable[[int], None] | None,
) -> Receipt:
    """Write `content`, of which every rank of the meeting holds parts, as a folder at `path`, whole and durable.

    Raises SaveError on every rank, with a line for each cause, if any of them fails; what was at `path` is intact.
    """
    prepared = prepare_sharded(meeting, path, content, compared, progress=progress)
    try:
        metadata = write(prepared.job)
    except BaseException as error:
        prepared.discard()
        meeting.settle(prepared.own(error), "writing")
        raise
    meeting.settle(None, "writing")
    return finished(prepared, metadata)


def finished(prepared: Prepared, metadata: Any) -> Receipt:
    """The receipt of a folder that is in place."""
    receipt = replace(prepared.receipt, nbytes=written_bytes(metadata), seconds=time.perf_counter() - prepared.begin)
    return replace(receipt, text=receipt_text(receipt))


def prepare_sharded(
    meeting: Meeting, path: str, content: Content, compared: Compared, *, progress: Callable[[int], None] | None
) -> Prepared:
    """Everything up to the writing. Raises on every rank what makes it impossible, with nothing but that done."""
    begin = time.perf_counter()
    path = path.rstrip("/" + os.sep) or path
    if path.lower().endswith(SUFFIX):
        raise UsageError(
            f"{path} was not saved: {SUFFIX} holds whole tensors, and those of this run are spread over "
            f"{meeting.size} ranks",
            remedy="Save to a folder: leave the ending out. unmoor.convert(folder, "
            f'"model{SUFFIX}", only="model") makes such a file of it.',
            path=path,
        )
    if compared.strict:  # the same places on all ranks
        hold_equal(meeting, content, live_sums(meeting, content, compared.strict), path)
    share = share_of(content, compared.own.tree, meeting.rank)
    copies = copies_of(content, meeting.alive)
    shares = meeting.to_first(_told(share, copies, meeting.rank))
    first = None if shares is None else _first(path, content, compared, share, [json.loads(one) for one in shares])
    try:
        reply = _Reply(*json.loads(meeting.from_first(None if first is None else first.reply.to_bytes())))
        if reply.differ:
            refuse_unequal(meeting, copies, reply.differ, path)
        staging = _seen(meeting, path, Staging(*reply.staging))
    except BaseException:
        if first is not None and first.staging is not None:
            discard(first.staging, path)
        raise
    complete = _not_here if first is None or first.completion is None else first.completion
    nbytes = share.nbytes if first is None else first.nbytes
    job = Job(share, staging.beside(path), path, meeting.group, complete, progress)
    return Prepared(job, staging, meeting.rank, _receipt(path, content, meeting.size, reply.labels), begin, nbytes)


def _receipt(path: str, content: Content, size: int, labels: list[str]) -> Receipt:
    """What can be said before anything is written."""
    each = f"; each has its own {listing(labels, 8)}" if labels else ""
    return Receipt(
        path=path,
        nbytes=0,
        seconds=0.0,
        counts=content.counts(),
        converted=tuple(content.converted),
        findings=tuple(content.findings),
        notes=(("ranks", f"{size}{each}"),),
    )


@dataclass(frozen=True, slots=True)
class _Reply:
    """What rank 0 makes of all shares.

    `differ` are the marks of copies that are not the same; else `staging` is the name and token of the hidden folder.
    `labels` are the keys of the root under which ranks have leaves of their own.
    """

    differ: list[str]
    staging: list[str]
    labels: list[str]

    def to_bytes(self) -> bytes:
        """As it is sent."""
        return json.dumps([self.differ, self.staging, self.labels]).encode()


@dataclass(frozen=True, slots=True)
class _First:
    """What only rank 0 has: the folder it made, what it does at the end, all bytes that will be written, its reply."""

    staging: Staging | None
    completion: Completion | None
    nbytes: int
    reply: _Reply


def _first(path: str, content: Content, compared: Compared, share: Share, heard: list[dict[str, Any]]) -> _First:
    nbytes = sum(one["nbytes"] for one in heard)
    differ = unequal([bytes.fromhex(one["copies"]) for one in heard])
    if differ:
        return _First(None, None, nbytes, _Reply(differ, [], []))
    labels = list(dict.fromkeys(str(row[0]) for one in heard for row in (one["frame"] or [0, []])[1]))
    staging = _staged(path, nbytes)
    completion = _completion(staging, path, content, compared, share, heard)
    return _First(staging, completion, nbytes, _Reply([], [staging.name, staging.token], labels))


def _told(share: Share, copies: Copies, rank: int) -> bytes:
    """What rank 0 has to know of another rank's share, and of its own."""
    promise = share.promise.items() if rank else ()
    own = [[list(keys[2:]), list(shape), dtype] for keys, (shape, dtype) in promise if keys[0] == RANKS]
    frame = share.frame if rank else None
    told = {"nbytes": share.nbytes, "frame": frame, "own": own, "copies": packed(copies).hex()}
    return json.dumps(told).encode()


def _staged(path: str, nbytes: int) -> Staging:
    target = real_path(path)
    try:
        refuse_full(os.path.dirname(target), nbytes)
        return stage(path, own=is_own, whole=is_whole)
    except SaveError:
        raise
    except OSError as error:
        raise save_error(error, path, target, nbytes) from error


def _seen(meeting: Meeting, path: str, staging: Staging) -> Staging:
    """The hidden folder that rank 0 made, once every rank has seen it."""
    unseen = None
    if not sees(staging, path):
        folder = os.path.dirname(os.path.realpath(path))
        unseen = SaveError(
            f"{path} was not saved: this rank does not see the folder that rank 0 made beside it",
            details=[f"on {socket.gethostname()} that would be in {folder}"],
            remedy="All ranks have to save to one place that all of them see: a shared file system, an absolute path.",
            path=path,
        )
    meeting.settle(unseen, "looking for the folder that rank 0 made")
    return staging


def _completion(
    staging: Staging, path: str, content: Content, compared: Compared, share: Share, heard: list[dict[str, Any]]
) -> Completion:
    """What rank 0 does at the end: with the frames and promises of all ranks' own leaves in it."""
    own = {str(rank): one["frame"] for rank, one in enumerate(heard) if rank and one["frame"] is not None}
    kind, rows, *rest = share.frame
    frame = [kind, [*rows, [RANKS, ["dict", [[rank, found] for rank, found in own.items()]]]], *rest]
    manifest = {
        **head(content),
        "world_size": len(heard),
        "roles": content.roles,
        "numpy": [list(keys) for keys in (*content.arrays, *((RANKS, *keys) for keys in compared.arrays))],
        "ranks": compared.recorded,
        "frame": frame if own else share.frame,
    }
    promise = {
        **share.promise,
        **{
            (RANKS, str(rank), *keys): (tuple(shape), dtype)
            for rank, one in enumerate(heard)
            for keys, shape, dtype in one["own"]
        },
    }
    return Completion(staging, path, manifest, promise)


def _not_here(*_: Any) -> None:
    """Only rank 0 completes a save."""
