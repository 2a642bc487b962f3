"""From what a format reader found to a Catalog: entries, parts, findings, and the faults that make a file corrupt.

Knows no format: it gets an inert tree, its storages and what is wrong with them, and holds every tensor against them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

from unmoor.filing import Reader
from unmoor.values.catalog import Catalog, Part, TensorEntry
from unmoor.values.dtypes import DTYPES, nbytes_of
from unmoor.values.finding import Finding
from unmoor.values.nodes import Storage
from unmoor.values.text import count, format_bytes

from .dangers import dangerous_calls, find_dangers, find_foreign
from .dialects import dialect_of
from .entries import Entries
from .known import with_object_roles
from .local_shards import SHARD_CLASSES
from .reading import Reading, Scanner
from .rebuild import CONSTANTS, HINTS, RULES, STORAGES
from .recorded import with_recorded_roles
from .walk import Found, Walked, visits, walk

__all__ = ["Contents", "assemble"]

_KNOWN: Final = frozenset(RULES) | frozenset(CONSTANTS) | STORAGES | HINTS | SHARD_CLASSES
_LARGE: Final = 4096


@dataclass(frozen=True, slots=True)
class Contents:
    """What a format reader hands over. `faults` says by storage key why its data cannot be had.

    `structure` counts the bytes that describe the tree: what a walk over it may cost follows from them.
    """

    format: str
    tree: Any
    readings: Sequence[Reading]
    structure: int
    storages: Mapping[str, Storage]
    faults: Mapping[str, str] = field(default_factory=dict)
    findings: Sequence[Finding] = ()
    manifest: Mapping[str, Any] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    entries: Mapping[str, tuple[tuple[str | int, ...], Any]] = field(default_factory=dict)


def assemble(reader: Reader, contents: Contents) -> Catalog:
    """The Catalog of one file. Raises CorruptFile naming every tensor whose data is absent or out of bounds."""
    calls = dangerous_calls(call for reading in contents.readings for call in reading.calls)
    made = Entries(reader.path, contents.faults)
    budget, wanted = visits(contents.structure), {id(call) for call in calls}
    walked = walk(contents.tree, budget=budget, wanted=wanted, path=reader.path, make=made.make)
    entries = made.checked(walked.tensors)
    names = tuple(dict.fromkeys(name for reading in contents.readings for name in reading.globals))
    findings = [
        *find_dangers(names, calls, walked.places, Scanner(reader.path)),
        *contents.findings,
        *_findings(contents, walked, entries),
        *find_foreign(names, _KNOWN),
    ]
    known = with_object_roles(contents.tree, names, [_part(found, entries) for found in walked.parts], entries)
    parts, recorded = with_recorded_roles(*known, contents.manifest)
    return Catalog(
        path=reader.path,
        format=contents.format,
        dialect=dialect_of(contents.tree, contents.manifest),
        size=reader.size,
        tensors=recorded,
        parts=parts,
        globals=names,
        findings=tuple(findings),
        storages=tuple(contents.storages.values()),
        tree=contents.tree,
        manifest=contents.manifest,
        facts=contents.facts,
        entries=contents.entries,
    )


def _part(found: Found, entries: Sequence[TensorEntry]) -> Part:
    inside = entries[found.start : found.stop]
    devices = dict(Counter(map(attrgetter("device"), inside)))
    nbytes = sum(map(attrgetter("nbytes"), inside))
    return Part(found.role, found.kind, found.keys, len(inside), nbytes, devices, found.detail, found.node)


def _findings(contents: Contents, walked: Walked, entries: Sequence[TensorEntry]) -> list[Finding]:
    findings = [*_large_storages(entries), *_without_data(entries)]
    notes: dict[tuple[str, str], int] = {}
    for reading in contents.readings:
        for note, times in reading.notes.items():
            notes[note] = notes.get(note, 0) + times
    findings += [Finding(code, "info", "", f"{what} ({times:,} times)") for (code, what), times in notes.items()]
    if not walked.complete:
        findings.append(
            Finding("walk-cut", "warning", "", "values refer to each other so often that not every path is listed")
        )
    return findings


def _without_data(entries: Iterable[TensorEntry]) -> list[Finding]:
    empty = [entry for entry in entries if entry.span is None and entry.device == "meta"]
    if not empty:
        return []
    message = f"{count(len(empty), 'tensor')} on the meta device: no data was saved"
    return [Finding("no-data", "warning", empty[0].path, message, "save after the module has been materialised")]


def _large_storages(entries: Sequence[TensorEntry]) -> list[Finding]:
    """Views that drag a storage into the file of which they use less than half."""
    windows: dict[str, tuple[Storage, list[TensorEntry]]] = {}
    for entry in entries:
        storage = entry.node.storage if entry.node is not None else None
        if storage is not None and storage.nbytes >= _LARGE and entry.nbytes * 2 <= storage.nbytes:
            windows.setdefault(entry.storage, (storage, []))[1].append(entry)
    if not windows:
        return []
    filled = {e.storage for e in entries if e.storage in windows and e.nbytes * 2 > windows[e.storage][0].nbytes}
    findings = []
    for key, (storage, group) in windows.items():
        used = _used(group)
        if key not in filled and used * 2 <= storage.nbytes:
            findings.append(_large(storage, group, used))
    return findings


def _large(storage: Storage, group: Sequence[TensorEntry], used: int) -> Finding:
    itemsize = DTYPES[group[0].dtype].itemsize
    first = group[0].path or "the tensor"
    who = f"{first} and {len(group) - 1} more use" if len(group) > 1 else f"{first} uses"
    message = (
        f"{who} {used // itemsize:,} of {storage.nbytes // itemsize:,} elements "
        f"({format_bytes(used)} of {format_bytes(storage.nbytes)})"
    )
    return Finding("large-storage", "info", "", message, "save a clone() of the view to keep the file small")


def _used(group: Sequence[TensorEntry]) -> int:
    """Bytes of a storage that lie within the windows of `group`, each byte counted once."""
    ranges = []
    for entry in group:
        if entry.nbytes:
            last = sum((n - 1) * step for n, step in zip(entry.shape, entry.stride, strict=True))
            ranges.append((nbytes_of(entry.dtype, entry.offset), nbytes_of(entry.dtype, entry.offset + last + 1)))
    used = reached = 0
    for start, stop in sorted(ranges):
        used += max(0, stop - max(start, reached))
        reached = max(reached, stop)
    return used
