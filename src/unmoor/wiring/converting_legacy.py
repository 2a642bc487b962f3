"""convert to a legacy stream: inert tree -> pickles -> storages read from the source, one by one -> published."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unmoor.describe import describe_file
from unmoor.execute.commit import publish
from unmoor.execute.flat_file import write_flat
from unmoor.execute.legacy_file import StoredData, legacy_head, legacy_parts
from unmoor.live.stored import Extent, pickle_legacy
from unmoor.values.dtypes import DTYPES
from unmoor.values.finding import Finding
from unmoor.values.report import Receipt

from .converting_file import hold_against
from .converting_meter import Meter

if TYPE_CHECKING:
    from unmoor.distributed.stored_sources import Sources
    from unmoor.live.content import Content
    from unmoor.plan.taken import Taken

__all__ = ["write_legacy"]


def write_legacy(target: str, content: Content, taken: Taken, sources: Sources, meter: Meter) -> Receipt:
    """Write the tree to `target` as torch wrote files before 1.6, whole and durable."""
    pickled, held = pickle_legacy(content.tree, content.stored.values())
    extents = [part for _, _, part in held if isinstance(part, Extent)]
    sources.check_ahead({sources.read_key(each.storage) for each in extents if sources.sums_storage(each)})
    storages = [
        StoredData(key, numel, part.nbytes, sources.of_storage_in_order(part) if isinstance(part, Extent) else part)
        for key, numel, part in held
    ]
    head, parts = legacy_head(pickled, storages), legacy_parts(storages)
    needed = sum(nbytes for nbytes, _ in parts)
    meter.total(needed)

    def check(temporary: str) -> None:
        hold_against(describe_file(temporary).tensors, taken.tensors, target)

    with publish(target, needed=len(head) + needed, durability="disk", check=check) as temporary:
        nbytes = write_flat(temporary, head, parts, buffer_bytes=sources.buffer_bytes, progress=meter.progress)
    return Receipt(target, nbytes, 0.0, {}, converted=tuple(content.converted), findings=(_BARE, *_newer(taken)))


def _newer(taken: Taken) -> Iterator[Finding]:
    """What the readers for whom such streams are written cannot read."""
    dtypes = sorted({entry.dtype for entry in taken.tensors if not DTYPES[entry.dtype].storage})
    if dtypes:
        message = f"torch before 2.1 has no storages of {', '.join(dtypes)}, and cannot read those tensors"
        yield Finding("newer-dtype", "warning", "", message, 'cast them: dtype="float32"')


_BARE = Finding(
    "no-manifest",
    "info",
    "",
    "a legacy stream has no place for checksums, roles and names: damage to it cannot be seen",
    "keep the source, or write a zip for every reader of torch 1.6 or later",
)
