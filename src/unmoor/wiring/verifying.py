"""verify: path -> every record's checksum, the structure, the manifest's claims; all faults of it as one value."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from unmoor.describe import describe_path
from unmoor.describe.dcp import metadata_kept
from unmoor.describe.records import Held, Where, files_below, files_of, held_records, names_by_span, names_without
from unmoor.diagnose.manifest import manifest_findings
from unmoor.errors import CorruptFile, UnmoorError
from unmoor.execute.audit import Wrong, audit
from unmoor.filing import path_text
from unmoor.report.verification import verification_text
from unmoor.steady import current, one_reading, written_to
from unmoor.values.catalog import Catalog
from unmoor.values.nodes import Storage, deflated
from unmoor.values.pausing import collector_paused
from unmoor.values.verification import BadData, Unchecked, Verification

from .neighbours import newest_beside
from .spans import open_spans

__all__ = ["verify_path"]

_BARE: Final = {
    "safetensors": "safetensors: no checksums in this format",
    "legacy": "torch legacy stream: no checksums in this format",
    "tar": "torch tar: no checksums in this format",
    "zip": "records written without a checksum",
    "metadata": ".metadata: no checksum in this format, held against the items that it lists",
    "json": "JSON: no checksums in this format",
}
"""Kind of a file -> why no checksum vouches for what is in it."""

_QUICK: Final = 256 << 20
"""A checkpoint beside a damaged one is verified too where it has at most so many bytes."""

Names = Mapping[Where, Sequence[str]]


def verify_path(
    path: str | os.PathLike[str],
    *,
    buffer_bytes: int,
    threads: int,
    progress: Callable[[int], None] | None,
    look_beside: bool = True,
) -> Verification:
    """Hold everything that a checkpoint tells of itself against its bytes.

    Where it is damaged and `look_beside` says so, the newest one beside it is named.
    """
    made = _verified(path_text(path), buffer_bytes=buffer_bytes, threads=threads, progress=progress)
    if made.faults and look_beside:
        made = _with_newest(made, buffer_bytes=buffer_bytes, threads=threads)
    return replace(made, text=verification_text(made))


def _with_newest(made: Verification, *, buffer_bytes: int, threads: int) -> Verification:
    """With the newest checkpoint beside a damaged one: the newest that verifies, of those that are read quickly."""
    beside = newest_beside(made.path)
    for other, nbytes in beside:
        if nbytes > _QUICK:
            break
        try:
            if _verified(other, buffer_bytes=buffer_bytes, threads=threads, progress=None).ok:
                return replace(made, newest=other, newest_holds=True)
        except (UnmoorError, OSError):
            continue
    large = next((other for other, nbytes in beside if nbytes > _QUICK), "")
    return replace(made, newest=large)


@one_reading()
def _verified(text: str, *, buffer_bytes: int, threads: int, progress: Callable[[int], None] | None) -> Verification:
    begin = time.perf_counter()
    with metadata_kept(), collector_paused():
        catalog, broken = _described(text)
        root = catalog.path if catalog is not None else text
        held = held_records(root, files_of(catalog) if catalog is not None else files_below(root))
    names: Names = names_by_span(catalog) if catalog is not None else names_without(root, held.formats)
    with open_spans(root) as open_span:
        wrong = audit(held.records, open_span=open_span, buffer_bytes=buffer_bytes, threads=threads, progress=progress)
    broken = [*_changed(), *broken, *held.errors]
    faults = _once([*_structure(broken), *(_bad(one, names) for one in wrong)])
    summed = [record for record in held.records if record.crc32 is not None]
    bad = {(one.record.span.file, one.record.span.offset) for one in wrong}
    good = {(record.span.file, record.span.offset) for record in summed} - bad
    return Verification(
        path=text,
        format=catalog.format if catalog is not None else next(iter(held.formats.values()), ""),
        faults=tuple(faults),
        records=len(summed),
        tensors=len({name for where in good for name in names.get(where, ())}),
        nbytes=sum(record.span.nbytes for record in summed),
        seconds=time.perf_counter() - begin,
        unchecked=tuple(_unchecked(catalog, held)),
        findings=(*catalog.findings, *manifest_findings(catalog)) if catalog is not None else (),
    )


def _described(path: str) -> tuple[Catalog | None, list[CorruptFile]]:
    """The catalog of a checkpoint, or why it has none."""
    try:
        return describe_path(path), []
    except CorruptFile as error:
        return None, [error]


def _changed() -> list[CorruptFile]:
    """The files that were written to while they were verified: what else is wrong may come of that."""
    reading = current()
    return [written_to(path) for path in (reading.written_to() if reading is not None else ())]


def _structure(errors: Iterable[CorruptFile]) -> list[BadData]:
    return [BadData("structure", error.path, error.headline, details=error.details) for error in errors]


def _bad(wrong: Wrong, names: Names) -> BadData:
    record, span = wrong.record, wrong.record.span
    packed = deflated(span.file)
    start, end = (packed[1], packed[1] + packed[2]) if packed else (span.offset, span.end)
    kind, message = "checksum", "the bytes are not those that were saved"
    if wrong.read is None:
        kind, message = "unreadable", wrong.why
    tensors = tuple(dict.fromkeys(names.get((span.file, span.offset), ())))
    file = packed[0] if packed else span.file
    return BadData(kind, record.name, message, tensors, file, start, end, record.crc32, wrong.read)


def _once(faults: Iterable[BadData]) -> list[BadData]:
    """Each fault once: a record whose checksum does not hold may be why a file cannot be described."""
    made: list[BadData] = []
    summed: list[BadData] = []
    for fault in sorted(faults, key=lambda fault: fault.kind == "structure"):
        if fault.kind == "structure" and _is_told(fault, [*summed, *made]):
            continue
        made.append(fault)
        summed += [fault] if fault.kind != "structure" else []
    return made


def _is_told(fault: BadData, before: Sequence[BadData]) -> bool:
    """Whether a fault of structure says what one before it said: the same words, or records whose sums are wrong."""
    if any(other.message == fault.message for other in before):
        return True
    places = tuple(other.place.rpartition(": ")[2] for other in before if other.kind != "structure")
    causes = [text for text in (fault.message, *fault.details) if "CRC mismatch in " in text]
    return bool(places) and bool(causes) and all(text.endswith(places) for text in causes)


def _unchecked(catalog: Catalog | None, held: Held) -> list[Unchecked]:
    """What no checksum vouches for, by the format of the file that it lies in."""
    rows: dict[str, tuple[int, int]] = {}
    for kind, (tensors, nbytes) in _bare_data(catalog, held):
        before = rows.get(kind, (0, 0))
        rows[kind] = (before[0] + tensors, before[1] + nbytes)
    loose = [record for record in held.records if record.crc32 is None]
    if loose and "zip" not in rows:
        rows["zip"] = (0, sum(record.span.nbytes for record in loose))
    if "metadata" in held.formats.values() and (catalog is None or catalog.manifest is None):
        rows["metadata"] = (0, 0)
    if "json" in held.formats.values():
        rows["json"] = (0, 0)
    return [Unchecked(_BARE.get(kind, f"{kind}: no checksums"), *row) for kind, row in rows.items()]


def _bare_data(catalog: Catalog | None, held: Held) -> Iterable[tuple[str, tuple[int, int]]]:
    """Kind of file, tensors and bytes of each storage without a checksum."""
    counted: dict[str, int] = {}
    storages: dict[str, Storage] = {}
    for entry in catalog.tensors if catalog is not None else ():
        storage = entry.node.storage if entry.node is not None else None
        for source in storage.sources() if storage is not None else ():
            if source.span is not None and source.crc32 is None:
                storages[source.key] = source
                counted[source.key] = counted.get(source.key, 0) + 1
    for key, storage in storages.items():
        file = storage.span.file if storage.span is not None else ""
        yield held.formats.get(file, "zip"), (counted[key], storage.nbytes)
