"""save and snapshot: what the ranks of a group agree on before any of them writes or copies."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from unmoor.distributed.meeting import meet
from unmoor.errors import UsageError
from unmoor.filing import path_text
from unmoor.live.content import Content
from unmoor.live.labels import objects_text
from unmoor.live.snapshots import Snapshot, take
from unmoor.live.staging import owner_of
from unmoor.values.report import Receipt
from unmoor.values.text import count, key_text

from .checking import check_buffer
from .pending import Pending, finish_earlier
from .saving import write_content

__all__ = ["save_path", "take_snapshot"]


def save_path(
    path: str | os.PathLike[str],
    roles: Mapping[str, Any],
    collect: Callable[[], Content],
    *,
    group: Any,
    timeout: Any,
    background: bool | str,
    buffer_bytes: int,
    threads: int,
    progress: Callable[[int], None] | None,
) -> Receipt | Pending:
    """Write what `collect` gives, together with the other ranks of `group`; `roles` are the objects it is made of.

    With `background` the receipt comes later. A save that is still in the background is waited for first.
    """
    with meet("save", group, timeout) as meeting:

        def begin() -> tuple[dict[str, str], Content]:
            check_buffer(buffer_bytes)
            finish_earlier(background, f"the save of {path_text(path)}")
            facts = {"path": path_text(path), "objects": objects_text(roles), "background": str(bool(background))}
            return facts, collect()

        content = meeting.begin(begin)
        if meeting.size == 1:
            _refuse_parts(content, path_text(path))
        how: dict[str, Any] = {"buffer_bytes": buffer_bytes, "threads": threads, "progress": progress}
        if background:
            from .saving_behind import save_behind

            return save_behind(meeting, path_text(path), content, owner=owner_of(roles), timeout=timeout, **how)
        if meeting.size == 1:
            return write_content(path, content, **how)
        from .saving_world import save_world

        return save_world(meeting, path, content, **how)


def _refuse_parts(content: Content, path: str) -> None:
    """Refuse tensors of which other ranks hold parts, where this process saves alone."""
    if content.held:
        first = next(iter(content.held))
        raise UsageError(
            f"{path} was not saved: other ranks hold parts of {count(len(content.held), 'tensor')}, "
            f"{key_text(first)} first, and this process saves alone",
            remedy='Call save on all ranks, with group="world" or the group over which they are spread.',
            path=path,
        )


def take_snapshot(roles: Mapping[str, Any], collect: Callable[[], Content], *, group: Any, timeout: Any) -> Snapshot:
    """Copy what `collect` gives, once all ranks of `group` are to copy the same objects."""
    with meet("snapshot", group, timeout) as meeting:
        content = meeting.begin(lambda: ({"objects": objects_text(roles)}, collect()))
        with meeting.step("copy"):
            return take(content)
