"""verify="first": all data of a plan is read and held against its checksums before anything is touched."""

from __future__ import annotations

from collections.abc import Callable

from unmoor.errors import CorruptFile
from unmoor.execute.reading import OpenSpan
from unmoor.execute.verify import check, corrupt
from unmoor.values.nodes import Storage
from unmoor.values.plan import Plan

__all__ = ["check_all"]


def check_all(
    plan: Plan,
    *,
    open_span: OpenSpan,
    buffer_bytes: int,
    threads: int,
    progress: Callable[[int], None] | None,
) -> None:
    """Raise CorruptFile naming every damaged tensor that the plan would read. Changes nothing."""
    storages: dict[str, tuple[Storage, list[str]]] = {}
    for step in (*plan.copies(), *(copy for pair in plan.twins for copy in pair)):
        for storage in step.node.storage.sources() if step.node.storage is not None else ():
            storages.setdefault(storage.key, (storage, []))[1].append(step.path)
    faults = check(
        storages.values(), open_span=open_span, buffer_bytes=buffer_bytes, threads=threads, progress=progress
    )
    if faults:
        error = corrupt(faults, plan.path)
        details = (*error.details, "nothing was overwritten")
        raise CorruptFile(error.headline, details=details, remedy=error.remedy, path=plan.path)
