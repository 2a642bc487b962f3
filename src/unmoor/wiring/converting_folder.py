"""convert to a folder of torch.distributed.checkpoint: boxes read from the source -> one shard file -> published."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from unmoor import places
from unmoor.distributed.saving import Writer
from unmoor.distributed.stored_boxes import BOX_BYTES, save_stored, share_stored
from unmoor.errors import UsageError
from unmoor.execute.folder_commit import staged
from unmoor.plan.kept_in_folder import not_kept
from unmoor.values.frames import FrameError
from unmoor.values.nodes import kind_of
from unmoor.values.report import Receipt

from .converting_meter import Meter
from .saving import head, writer
from .saving_folder import Completion, is_own, is_whole

if TYPE_CHECKING:
    from unmoor.distributed.stored_sources import Sources
    from unmoor.live.content import Content
    from unmoor.plan.taking import Taken

__all__ = ["write_folder"]


def write_folder(target: str, content: Content, taken: Taken, sources: Sources, meter: Meter) -> Receipt:
    """Write the tree to the folder `target`, whole and durable. Raises UsageError for what no folder can hold."""
    target = target.rstrip("/" + os.sep) or target
    if not isinstance(content.tree, dict):
        raise UsageError(
            f"{target} was not written: a folder holds named entries, and the tree is {kind_of(content.tree)}",
            remedy="Convert it to a .pt file.",
            path=target,
        )
    try:
        share, summed = share_stored(content.tree, sources)
    except (FrameError, RecursionError) as fault:
        why = str(fault) if isinstance(fault, FrameError) else "it is nested too deeply"
        raise UsageError(
            f"{target} was not written: a folder cannot keep the tree as it is: {why[:200]}",
            remedy="Convert it to a .pt file, or take a part of it: only=...",
            path=target,
        ) from None
    sources.check_ahead(summed)
    manifest = _manifest(content, taken.manifest, share.frame)
    promise = {entry.keys: (entry.shape, entry.dtype) for entry in taken.tensors}
    needed = sum(entry.nbytes for entry in taken.tensors)
    meter.total(needed)
    nbytes = needed
    with staged(target, needed, own=is_own, whole=is_whole) as staging:
        complete = Completion(staging, target, manifest, promise)
        folder = staging.beside(target)
        save_stored(share, Writer(folder, path=target, share=share, complete=complete, progress=meter.progress))
    with suppress(OSError):
        nbytes = places.tree_bytes(target)
    return Receipt(
        target, nbytes, 0.0, {}, converted=(*content.converted, *not_kept(taken.tensors, box_bytes=BOX_BYTES))
    )


def _manifest(content: Content, own: Mapping[str, Any] | None, frame: Any) -> dict[str, Any]:
    common = {**head(content), "world_size": 1, "roles": {}, **(own or {})}
    return {**common, **writer(), "numpy": [list(keys) for keys in content.arrays], "frame": frame}
