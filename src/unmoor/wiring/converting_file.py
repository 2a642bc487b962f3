"""convert to a torch file: inert tree -> pickle -> records read from the source -> described -> published."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from unmoor.describe import describe_file
from unmoor.errors import SaveError
from unmoor.execute.archive import Record, torch_records, torch_trailer, write_archive
from unmoor.execute.commit import publish
from unmoor.live.stored import Extent, pickle_stored
from unmoor.values.report import Receipt
from unmoor.values.text import format_shape

from .converting_meter import Meter
from .saving import head, writer
from .writing import MANIFEST, archive_name, storage_spans

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unmoor.distributed.stored_sources import Sources
    from unmoor.live.content import Content
    from unmoor.plan.taking import Taken
    from unmoor.values.catalog import TensorEntry

__all__ = ["hold_against", "write_torch"]

Crcs = Mapping[str, tuple[int, int, int]]


def write_torch(target: str, content: Content, taken: Taken, sources: Sources, meter: Meter) -> Receipt:
    """Write the tree to `target` as a standard torch zip, whole and durable."""
    pickled, held = pickle_stored(content.tree, content.stored.values())
    extents = {key: part for key, part in held.items() if isinstance(part, Extent)}
    summed = {key: extent for key, extent in extents.items() if sources.sums_storage(extent)}
    sources.check_ahead({sources.read_key(extent.storage) for extent in summed.values()})
    blobs = [
        (key, part.nbytes, sources.of_storage(part) if isinstance(part, Extent) else part) for key, part in held.items()
    ]
    records = torch_records(pickled, blobs)

    def check(temporary: str) -> None:
        hold_against(describe_file(temporary).tensors, taken.tensors, target)

    def finish(crcs: Crcs) -> Sequence[Record]:
        sources.hold((extent.storage, crcs[f"data/{key}"][2]) for key, extent in summed.items())
        return [*torch_trailer(crcs), _manifest(content, crcs, taken.manifest)]

    needed = sum(record.nbytes for record in records)
    meter.total(needed)
    with publish(target, needed=needed, durability="disk", check=check) as temporary:
        written = write_archive(
            temporary,
            records,
            name=archive_name(target),
            finish=finish,
            threads=sources.threads,
            buffer_bytes=sources.buffer_bytes,
            progress=meter.progress,
        )
    return Receipt(target, written.nbytes, 0.0, {}, converted=tuple(content.converted))


def _manifest(content: Content, crcs: Crcs, own: Mapping[str, Any] | None) -> Record:
    """What the source's own manifest says of roles and ranks, and where things lie now."""
    common = {**head(content), "world_size": 1, "roles": {}, **(own or {})}
    arrays = [list(keys) for keys in content.arrays]
    told = {**common, **writer(), "numpy": arrays, "storages": storage_spans(crcs)}
    text = json.dumps(told, separators=(",", ":"))
    return Record(MANIFEST, len(text.encode()), text.encode())


def hold_against(found: Sequence[TensorEntry], meant: Sequence[TensorEntry], path: str) -> None:
    """Every tensor that was to be written must be described as it was; the reader is the writer's checker."""
    described = {entry.keys: (entry.shape, entry.dtype) for entry in found}
    faults = [
        f"{entry.path}: meant {_words(entry.shape, entry.dtype)}, found {_found(described.get(entry.keys))}"
        for entry in meant
        if described.get(entry.keys) != (entry.shape, entry.dtype)
    ]
    if faults:
        raise SaveError(
            f"what was written for {path} does not read back as it was meant; what was there before is intact",
            details=faults[:10],
            remedy="This is a defect of unmoor: please report it with the tensor's class and layout.",
            path=path,
        )


def _words(shape: tuple[int, ...], dtype: str) -> str:
    return f"{format_shape(shape)} {dtype}"


def _found(entry: tuple[tuple[int, ...], str] | None) -> str:
    return "nothing" if entry is None else _words(*entry)
