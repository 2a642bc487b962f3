"""save and snapshot: what the ranks of a group agree on before any of them writes or copies."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from unmoor.distributed.meeting import Meeting, meet
from unmoor.errors import UsageError
from unmoor.filing import path_text
from unmoor.live.content import Content
from unmoor.live.labels import objects_text
from unmoor.live.snapshots import Snapshot, take
from unmoor.live.staging import owner_of
from unmoor.values.pausing import collector_paused
from unmoor.values.report import Receipt
from unmoor.values.text import count, key_text

from .checking import check_buffer
from .pending import Pending, finish_earlier, skipped
from .saving import write_content

__all__ = ["save_path", "take_snapshot"]


@collector_paused()  # all that is made for a save is let go at its end
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

    With `background` the receipt comes later. A save that is still in the background is waited for first, or makes this
    one an error, or none: on all ranks alike.
    """
    with meet("save", group, timeout) as meeting:
        if background == "skip":
            busy = _busy(meeting, path_text(path))
            if busy:
                return skipped(path_text(path), busy)

        def begin() -> tuple[dict[str, str], Content]:
            check_buffer(buffer_bytes)
            finish_earlier("wait" if background == "skip" else background, f"the save of {path_text(path)}")
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


def _busy(meeting: Meeting, path: str) -> str:
    """The path of the save that some rank still writes, the first such rank's; "" where none does."""

    def look() -> tuple[dict[str, str], str]:
        return {"path": path, "background": "skip"}, finish_earlier("skip", f"the save of {path}")

    found = meeting.gather(meeting.begin(look).encode(errors="surrogateescape"))
    return next((busy.decode(errors="surrogateescape") for busy in found if busy), "")


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
