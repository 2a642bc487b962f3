"""Where a run goes on: the newest of its checkpoints that holds, or the one that its caller names.

The first rank chooses the order in which they are tried; all ranks restore together, and all go to the next where one
cannot read its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from unmoor.describe.glance import glance_file
from unmoor.errors import CorruptFile, FileError, MachineError, NotACheckpoint, RankError, UnmoorError, UsageError
from unmoor.places import exists, is_folder, name_of
from unmoor.urls import is_url
from unmoor.values.progress import RUN, number, progress, step_in
from unmoor.values.report import Report

from .listing import listed
from .run_council import Council
from .run_diary import Diary
from .run_folder import HALF, RunFolder, told

__all__ = ["OTHERWISE", "Resumed", "check_otherwise", "resume_run"]

OTHERWISE: Final = ("fresh", "error")
_GOOD, _BROKEN, _STOP = "good", "broken", "stop"


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where a run goes on: `step` steps are done. `known` tells that the checkpoint itself says so.

    `path` is what was restored, "" for nothing; `record` what the run had noted in it; `origin` the path that the
    caller named when the run began from there.
    """

    step: int = 0
    known: bool = False
    path: str = ""
    report: Report | None = None
    record: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""


@dataclass(frozen=True, slots=True)
class _Choice:
    """What is tried, in this order. `named`: it is the one file that the caller named; `begins`: or what stands there.

    Then the run has to begin from it, and not from nothing.
    """

    paths: Sequence[str]
    origin: str
    named: bool
    begins: bool


def resume_run(
    folder: RunFolder,
    council: Council,
    diary: Diary,
    restore: Callable[[str], Report],
    *,
    source: str | None,
    otherwise: str,
) -> Resumed:
    """Restore the newest checkpoint that holds, and say where the run goes on."""
    choice = _Choice(**council.first("choose", lambda: _choose(folder, diary, source)))
    failures: list[tuple[str, Exception]] = []
    for path in choice.paths:
        try:
            report = _together(council, path, restore)
        except (FileError, MachineError, OSError) as error:
            if not _may_go_on(error) or choice.named:
                raise
            failures.append((path, error))
            if council.rank == 0 and isinstance(error, FileError):
                folder.doubt(path)
            diary.note("passed", f"passed over {name_of(path)}: {_line(error)}", path=path, warn=True)
            continue
        return _resumed(path, _with_passed(report, failures), choice, diary)
    if failures:
        _refuse_fresh(folder.path, failures, "error" if choice.begins else otherwise)
    elif otherwise == "error":
        raise NotACheckpoint(f"{folder.path} holds no checkpoint of a run to resume from", path=folder.path)
    _tell_fresh(folder, diary, failures)
    return Resumed()


def _choose(folder: RunFolder, diary: Diary, source: str | None) -> dict[str, Any]:
    own = folder.candidates()
    origin = _record(own[0].path).get("origin", "") if own else ""
    place = source or "" if source is None or is_url(source) else os.path.abspath(source)
    if source is None or (own and place == origin):
        _tell_broken(folder, diary)
        after = [] if source is None or not exists(source) else _sources(source)
        paths = [*(row.path for row in own), *after]
        return {"paths": paths, "origin": origin, "named": False, "begins": source is not None}
    inside = _sources(source)
    return {"paths": inside, "origin": place, "named": inside == [source], "begins": True}


def _sources(source: str) -> list[str]:
    """What a path stands for: the newest of a run whose folder it is, and what else is there of it; or itself."""
    rows = [row for row in listed(source) if row.number > 0] if is_folder(source) else []
    return [row.path for row in rows if row.complete and HALF not in row.name] or [source]


def _record(path: str) -> Mapping[str, Any]:
    """What a run noted in one of its checkpoints."""
    try:
        found = glance_file(path).values.get(RUN)
    except (UnmoorError, OSError):
        return {}
    return found if isinstance(found, Mapping) else {}


def _together(council: Council, path: str, restore: Callable[[str], Report]) -> Report:
    """Restore on all ranks, and fail on all alike: where one cannot read what is there, none goes on from it."""
    error: Exception | None = None
    report = None
    try:
        report = restore(path)
    except Exception as caught:
        if council.size == 1:
            raise
        error = caught
    mine = _GOOD if error is None else _BROKEN if _may_go_on(error) else _STOP
    outcomes = council.all("resume", mine)
    if error is not None and (mine == _STOP or _STOP not in outcomes):
        raise error
    if _STOP in outcomes or report is None:
        raise RankError(f"{path} was not restored: rank {outcomes.index(_STOP)} met an error of its own", path=path)
    if _BROKEN in outcomes:
        raise CorruptFile(f"{path} could not be read on rank {outcomes.index(_BROKEN)}", path=path)
    return report


def _may_go_on(error: Exception) -> bool:
    """Whether an older checkpoint may be better: the file is at fault, or the disk that it lies on."""
    return isinstance(error, FileError | OSError) or (
        isinstance(error, MachineError) and isinstance(error.__cause__, OSError)
    )


def _resumed(path: str, report: Report, choice: _Choice, diary: Diary) -> Resumed:
    found = report.extra.get(RUN)
    record = found if isinstance(found, Mapping) else {}
    step = number(record.get("step"))
    told_by = progress(report.extra) or step_in(name_of(path))
    known = step is not None or told_by is not None
    done = step if step is not None else told_by.step if told_by is not None else 0
    said = f"resumed from {name_of(path)} at step {done}"
    if not known:
        said += "; nothing in it tells how many steps were done, so they are counted from 0"
    elif step is None and told_by is not None and told_by.unit != "step":
        said = f"resumed from {name_of(path)} at {told_by.unit} {done}: it holds no number of steps"
    diary.step = done
    diary.note("resumed", said, path=path)
    return Resumed(done, known, path, report, record, choice.origin)


def _with_passed(report: Report, failures: Sequence[tuple[str, Exception]]) -> Report:
    lines = [f"  passed over {name_of(path)}: {_line(error)}" for path, error in failures]
    return replace(report, text="\n".join([report.text, *lines])) if lines else report


def _line(error: Exception) -> str:
    return error.headline if isinstance(error, UnmoorError) else f"{type(error).__name__}: {error}"


def _tell_broken(folder: RunFolder, diary: Diary) -> None:
    """Say what was passed over for being broken at a glance."""
    for row in folder.broken():
        diary.note("passed", f"passed over {row.name}: {row.why}", path=row.path, warn=True)


def _refuse_fresh(folder: str, failures: Sequence[tuple[str, Exception]], otherwise: str) -> None:
    """Raise where a run must not start anew though none of its checkpoints holds."""
    machine = [error for _, error in failures if not isinstance(error, FileError)]
    changed = [error for _, error in failures if getattr(error, "done", None)]
    if not machine and not changed and otherwise == "fresh":
        return
    lines = [f"{name_of(path)}: {_line(error)}" for path, error in failures]
    if changed:
        lines.append("live objects had begun to change: build them again before training on")
    remedy = "Nothing was deleted. See to the disk, pass another checkpoint as from_=, or start anew in another folder."
    kind: type[UnmoorError] = MachineError if machine else CorruptFile
    raise kind(f"no checkpoint in {folder} can be resumed from", details=lines, remedy=remedy, path=folder)


def _tell_fresh(folder: RunFolder, diary: Diary, failures: Sequence[tuple[str, Exception]]) -> None:
    lost = [*folder.broken(), *(path for path, _ in failures)]
    diary.step = 0
    if lost:
        said = f"none of the checkpoints in {folder.path} holds: the run starts at step 0, and they are left alone"
        diary.note("fresh", said, path=folder.path, warn=True)
    else:
        diary.note("fresh", f"{folder.path} holds no checkpoint of this run: it starts at step 0", path=folder.path)
    if folder.foreign:
        said = f"left alone, since no run of unmoor wrote them: {told(folder.foreign)}; resume(from_=...) takes one"
        diary.note("foreign", said, path=folder.path)


def check_otherwise(otherwise: Any) -> None:
    """Refuse what is none of the choices."""
    if otherwise not in OTHERWISE:
        raise UsageError(f"otherwise={otherwise!r} is none of {', '.join(map(repr, OTHERWISE))}")
