"""Checks ahead of the work: of an argument, and of all data where verify="first".

Then all that a plan reads is held against its checksums before anything is touched. Of several ranks that see one
checkpoint each reads its share by bytes, of all that any of them needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from unmoor.errors import CorruptFile, UsageError
from unmoor.plan.policy import CHOICES
from unmoor.urls import is_url
from unmoor.values.catalog import Catalog
from unmoor.values.nodes import Storage
from unmoor.values.plan import Plan

from .identity import place

if TYPE_CHECKING:  # a save checks its arguments, and reads nothing
    from unmoor.distributed.meeting import Meeting
    from unmoor.execute.reading import OpenSpan

__all__ = ["check_all", "check_buffer", "check_verify", "needed_storages", "refuse_overlap", "share_of"]

Storages = Mapping[str, tuple[Storage, list[str]]]
"""Key of a storage -> it, and the paths of the tensors on it."""


def check_buffer(buffer_bytes: Any) -> None:
    """Refuse what is no number of bytes."""
    if not isinstance(buffer_bytes, int) or isinstance(buffer_bytes, bool) or buffer_bytes < 1:
        raise UsageError(
            f"buffer_bytes={buffer_bytes!r} is no number of bytes", remedy="Pass a whole number, 1 or more."
        )


def check_verify(verify: Any) -> None:
    """Refuse what is none of the ways to check data."""
    if verify not in CHOICES["verify"]:
        raise UsageError(f"verify={verify!r} is none of {', '.join(map(repr, CHOICES['verify']))}")


def refuse_overlap(source: str, target: str, files: Iterable[str]) -> None:
    """Raise UsageError where writing `target` would replace what is read: the source, `files` of it, what holds it."""
    if is_url(source) or is_url(target):
        _refuse_overlap_behind(source, target, files)
        return
    if not os.path.exists(target):
        return
    one, other = os.path.realpath(source), os.path.realpath(target)
    if _is_one(target, source):
        what = "the source itself"
    elif other.startswith(os.path.join(one, "")) or any(map(partial(_is_one, target), files)):
        what = f"a part of the source {source}, and would be replaced"
    elif one.startswith(os.path.join(other, "")):
        what = f"the folder in which the source {source} lies, and would be replaced"
    else:
        return
    raise UsageError(f"{target} is {what}", remedy="Write to another path, then move what was written.", path=target)


def _refuse_overlap_behind(source: str, target: str, files: Iterable[str]) -> None:
    """The same where either is behind a URL: two names of one object are not seen through."""
    one, other = source.rstrip("/"), target.rstrip("/")
    if one == other or other in set(files) or other.startswith(f"{one}/") or one.startswith(f"{other}/"):
        raise UsageError(
            f"{target} is the source {source}, a part of it or the folder in which it lies, and would be replaced",
            remedy="Write to another URL, then move what was written.",
            path=target,
        )


def _is_one(target: str, file: str) -> bool:
    return os.path.exists(file) and os.path.samefile(file, target)


def needed_storages(plan: Plan) -> Storages:
    """All storages that a plan reads."""
    found: dict[str, tuple[Storage, list[str]]] = {}
    for step in (*plan.copies(), *(copy for pair in plan.twins for copy in pair)):
        for storage in step.node.storage.sources() if step.node.storage is not None else ():
            found.setdefault(storage.key, (storage, []))[1].append(step.path)
    return found


def share_of(meeting: Meeting, catalog: Catalog, needed: Storages) -> Storages:
    """Of the storages that any rank needs, those that this rank is to read; all ranks see the same catalog.

    All that it needs itself, where ranks read copies on disks of their own.
    """
    if meeting.size == 1:
        return needed
    known = _storages(catalog)
    keys = sorted(known)
    said = meeting.gather(place(catalog.path).encode() + b":" + bytes(key in needed for key in keys))
    places, marks = zip(*(one.split(b":", 1) for one in said), strict=True)
    if len(set(places)) > 1:
        return needed
    wanted = [key for key, *by_rank in zip(keys, *marks, strict=True) if any(by_rank)]
    total = sum(known[key][0].nbytes for key in wanted)
    share = {key: needed[key] for key in needed.keys() - known.keys()}
    before = 0
    for key in wanted:
        middle = before + known[key][0].nbytes // 2
        before += known[key][0].nbytes
        if middle * meeting.size // max(total, 1) == meeting.rank:
            share[key] = known[key]
    return share


def _storages(catalog: Catalog) -> Storages:
    found: dict[str, tuple[Storage, list[str]]] = {}
    for entry in catalog.tensors:
        storage = entry.node.storage if entry.node is not None else None
        for source in storage.sources() if storage is not None else ():
            found.setdefault(source.key, (source, []))[1].append(entry.path)
    return found


def check_all(
    storages: Storages,
    path: str,
    *,
    open_span: OpenSpan,
    buffer_bytes: int,
    threads: int,
    progress: Callable[[int], None] | None,
) -> None:
    """Raise CorruptFile naming every damaged tensor on these storages. Changes nothing."""
    from unmoor.execute.verify import check, corrupt

    faults = check(
        storages.values(), open_span=open_span, buffer_bytes=buffer_bytes, threads=threads, progress=progress
    )
    if faults:
        error = corrupt(faults, path)
        details = (*error.details, "nothing was overwritten")
        raise CorruptFile(error.headline, details=details, remedy=error.remedy, path=path)
