"""torch.distributed.checkpoint set to work, at once or in the background, and its failures as our errors."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch import distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from unmoor.errors import RankError, SaveError, UnmoorError, UsageError
from unmoor.live.snapshots import staged
from unmoor.live.staging import Loan
from unmoor.values.text import count

from .planners import SavePlanner
from .saving import Share, Writer

__all__ = ["Job", "failure_of", "own_failure", "stage", "write", "write_behind", "written_bytes"]


_SMALL: Final = 32 << 20
"""Bytes up to which a rank's part is written before it could be in anyone's way."""


@dataclass(frozen=True, slots=True)
class Job:
    """One rank's part of a save of `share` into the hidden folder `folder`, by all ranks of `group`.

    `path` is where it will be; `complete` is called on the group's rank 0 once all ranks have written. `yields` tells
    that a thread of its own writes, which lets the run go first.
    """

    share: Share
    folder: str
    path: str
    group: Any
    complete: Callable[[str], None]
    progress: Callable[[int], None] | None = None
    yields: bool = False

    def writer(self) -> Writer:
        """Torch's writer for it."""
        told: dict[str, Any] = {"complete": self.complete, "progress": self.progress, "yields": self.yields}
        return Writer(self.folder, path=self.path, share=self.share, **told)


def write(job: Job) -> Any:
    """Write with all ranks of the group; the folder's metadata. Raises what `failure_of` explains."""
    return save(
        job.share.values,
        storage_writer=job.writer(),
        planner=SavePlanner(job.share.paths),
        process_group=_on_cpu(job.group),
    )


def stage(job: Job, loan: Loan | None) -> Job:
    """The job with copies of all that this rank writes, in the memory of `loan` (None: they are copies already).

    Called by all ranks of the group, whose writes then talk through a group of their own: the run's collectives go on
    meanwhile. Raises UsageError where this build of torch has no gloo.
    """
    apart = _apart(job.group)
    share = job.share if loan is None else replace(job.share, values=staged(job.share.values, loan))
    return replace(job, share=share, group=apart, yields=share.nbytes > _SMALL)


def write_behind(job: Job) -> Future[Any]:
    """Write what `stage` gave in the background, with all ranks of the group; in the end the folder's metadata."""
    future: Any = async_save(
        job.share.values,
        storage_writer=job.writer(),
        planner=SavePlanner(job.share.paths),
        process_group=job.group,
    )
    done: Future[Any] = getattr(future, "upload_completion", future)
    return done


def written_bytes(metadata: Any) -> int:
    """The bytes of all shard files that the metadata of a folder tells of."""
    ends: dict[str, int] = {}
    for place in metadata.storage_data.values():
        ends[place.relative_path] = max(ends.get(place.relative_path, 0), place.offset + place.length)
    return sum(ends.values())


Told = Callable[[OSError], UnmoorError]
"""Says what a refusal of the system means."""


def own_failure(error: BaseException, path: str, rank: int, told: Told) -> BaseException | None:
    """What this rank itself failed with, of an error of the engine; None where only others did."""
    if isinstance(error, CheckpointException):
        found = error.failures.get(rank)
        return None if found is None else _said(found[0], told)
    if not dist.is_initialized():
        return RankError(
            f"{path} was not saved: the process group was destroyed while it was being written",
            remedy="Wait for a save in the background first: pending.wait().",
            path=path,
        )
    if isinstance(error, UnmoorError | OSError) or not isinstance(error, RuntimeError):
        return _said(error, told)
    return RankError(
        f"{path} was not saved: the ranks lost each other while they wrote",
        details=[f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"],
        path=path,
    )


def failure_of(error: BaseException, path: str, rank: int, told: Told) -> BaseException:
    """What a rank raises for an error of the engine: its own, or one with a line for each rank that failed."""
    own = own_failure(error, path, rank, told)
    others = error.failures if own is None and isinstance(error, CheckpointException) else {}
    causes = {rank: own} if own is not None else {number: _said(found[0], told) for number, found in others.items()}
    if own is not None and (isinstance(own, UnmoorError) or not isinstance(own, Exception)):
        return own
    remedies = [cause.remedy for cause in causes.values() if isinstance(cause, UnmoorError) and cause.remedy]
    made = SaveError(
        f"{path} was not saved: {count(len(causes), 'rank')} failed",
        details=[f"rank {number}: {_line(cause, path)}" for number, cause in sorted(causes.items())],
        remedy=remedies[0] if remedies else "",
        path=path,
    )
    made.ranks = tuple(sorted(causes))
    made.__cause__ = own
    return made


def _said(error: BaseException, told: Told) -> BaseException:
    return told(error) if isinstance(error, OSError) and not isinstance(error, UnmoorError) else error


_LINE: Final = 400


def _line(cause: BaseException, path: str) -> str:
    if isinstance(cause, UnmoorError):
        text = "; ".join([cause.headline.removeprefix(f"{path} was not saved: "), *cause.details])
    else:
        text = f"{type(cause).__name__}: {' '.join(str(cause).split())}"
    return text if len(text) <= _LINE else text[: _LINE - 3] + "..."


def _on_cpu(group: Any) -> Any:
    """The group, where values on the CPU can go through it; else one beside it."""
    return group if torch.device("cpu") in group._device_types else _apart(group)


_beside: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""Group -> the group of the same ranks through which writes in the background talk."""


def _apart(group: Any) -> Any:
    """A group of the same ranks over gloo, for what must not meet the run's own collectives; all ranks make it once."""
    if group not in _beside:
        if not dist.is_gloo_available():
            raise UsageError(
                "a save of several ranks that the run's own process group cannot carry needs the backend gloo, which "
                "this build of torch lacks",
                remedy='Save with background=False, or initialise with init_process_group("cpu:mpi,...").',
            )
        ranks = dist.get_process_group_ranks(group)
        _beside[group] = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
    return _beside[group]
