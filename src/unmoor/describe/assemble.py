"""From what a format reader found to a Catalog: entries, parts, findings, and the faults that make a file corrupt.

Knows no format: it gets an inert tree, its storages and what is wrong with them, and holds every tensor against them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Final

from unmoor.errors import CorruptFile
from unmoor.filing import Reader
from unmoor.values.catalog import Catalog, Part, TensorEntry
from unmoor.values.dtypes import DTYPES, nbytes_of
from unmoor.values.finding import Finding
from unmoor.values.nodes import Storage, TensorNode
from unmoor.values.text import count, format_bytes, format_shape

from .dangers import dangerous_calls, find_dangers, find_foreign
from .dialects import dialect_of
from .known import with_object_roles
from .local_shards import SHARD_CLASSES
from .reading import Reading, Scanner
from .rebuild import CONSTANTS, HINTS, RULES, STORAGES
from .recorded import with_recorded_roles
from .walk import Found, Seen, Walked, walk

__all__ = ["Contents", "assemble"]

_KNOWN: Final = frozenset(RULES) | frozenset(CONSTANTS) | STORAGES | HINTS | SHARD_CLASSES
_SHOWN: Final = 12
_SHARED: Final = 8
_LARGE: Final = 4096
_MOST_WINDOWS: Final = 4096
_MIN_VISITS: Final = 100_000
_MAX_VISITS: Final = 20_000_000


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
    budget = min(_MIN_VISITS + contents.structure, _MAX_VISITS)
    walked = walk(contents.tree, budget=budget, wanted={id(call) for call in calls}, path=reader.path)
    entries = _entries(reader.path, walked.tensors, contents.faults)
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


def _entries(path: str, tensors: Iterable[Seen], faults: Mapping[str, str]) -> list[TensorEntry]:
    """The tensors as entries, each held against its storage. Raises CorruptFile naming all that do not fit."""
    entries: list[TensorEntry] = []
    sizes: dict[tuple[Any, ...], tuple[int, int]] = {}
    first: dict[str, str] = {}
    twins: dict[str, list[str]] = {}
    bad, whole = [], 0
    for seen in tensors:
        name, keys, role, node, layout = seen
        if type(node) is not TensorNode:
            entries.append(_composite(seen))
            continue
        whole += 1
        storage, shape, stride, offset, dtype = node.storage, node.shape, node.stride, node.offset, node.dtype
        window = (shape, stride, offset, dtype)
        known = sizes.get(window)
        if known is None:
            known = sizes[window] = (_needed(node), nbytes_of(dtype, node.numel))
            if len(sizes) > _MOST_WINDOWS:
                sizes.clear()
        needed, nbytes = known
        key, span, held = (storage.key, storage.span, storage.nbytes) if storage is not None else ("", None, needed)
        if not 0 <= needed <= held or key in faults or (storage is not None and storage.chunks):
            why = faults.get(key, "") or _misfit(node, storage) or _broken_chunk(storage, faults)
            if why:
                bad.append(f"{name or 'the tensor'}: {why}")
        if storage is not None and first.setdefault(key, name) is not name:
            twins.setdefault(key, [first[key]]).append(name)
        entries.append(TensorEntry(name, role, shape, dtype, stride, node.device, nbytes, key, span,
                                   offset, layout, node.parameter, (), keys, node))  # fmt: skip
    if bad:
        raise _corrupt(path, bad, whole)
    return [_shared(entry, twins) for entry in entries] if twins else entries


def _shared(entry: TensorEntry, twins: Mapping[str, Sequence[str]]) -> TensorEntry:
    """An entry with the paths of the others on its storage."""
    others = twins.get(entry.storage, ())[: _SHARED + 1] if entry.node is not None else ()
    shared = tuple([other for other in others if other != entry.path][:_SHARED])
    return replace(entry, shared=shared) if shared else entry


def _corrupt(path: str, bad: Sequence[str], whole: int) -> CorruptFile:
    more = [f"and {count(len(bad) - _SHOWN, 'tensor')} more"] if len(bad) > _SHOWN else []
    others = whole - len(bad)
    rest = [f"the other {others:,} tensors are whole"] if others > 1 else ["the other tensor is whole"][:others]
    return CorruptFile(
        f"{path}: the data of {count(len(bad), 'tensor')} cannot be had",
        details=[*bad[:_SHOWN], *more, *rest],
        remedy="The file was cut short or altered. Copy it again, or use the checkpoint before it.",
        path=path,
    )


def _broken_chunk(storage: Storage | None, faults: Mapping[str, str]) -> str:
    """Why a chunk of a tensor cannot be had; "" where all can. A chunk must not stand for more than it holds."""
    for chunk in storage.chunks if storage is not None else ():
        node, source = chunk.node, chunk.node.storage
        why = faults.get(source.key, "") if source is not None else "it has no data"
        why = why or _misfit(node, source)
        if not why and source is not None and nbytes_of(node.dtype, node.numel) > source.nbytes:
            why = f"it repeats the elements of a storage of {source.nbytes:,} bytes"
        if why:
            return f"its chunk at {chunk.start}: {why}"
    return ""


def _needed(node: TensorNode) -> int:
    """The bytes of a storage that a window reaches over, from its first on; -1 where one of its numbers is negative."""
    last, low, empty = node.offset, node.offset, False
    for size, step in zip(node.shape, node.stride, strict=True):
        low = min(low, size, step)
        empty = empty or size == 0
        last += (size - 1) * step
    return -1 if low < 0 else 0 if empty else nbytes_of(node.dtype, last + 1)


def _misfit(node: TensorNode, storage: Storage | None) -> str:
    """Why a tensor cannot be a window into its storage; "" where it can."""
    needed = _needed(node)
    if needed < 0:
        return f"shape {node.shape}, stride {node.stride}, offset {node.offset}: a number is negative"
    if storage is None or needed <= storage.nbytes:
        return ""
    return (
        f"{format_shape(node.shape)} {node.dtype} from element {node.offset:,} needs {needed:,} bytes, "
        f"its storage {storage.key} has {storage.nbytes:,}"
    )


def _composite(seen: Seen) -> TensorEntry:
    """A tensor without strided parts: its bytes are not in the file as such."""
    node: Any = seen.node
    numel = 1
    for size in node.shape:
        numel *= size
    device = str(node.detail.get("device", "cpu"))
    nbytes = nbytes_of(node.dtype, numel)
    return TensorEntry(seen.path, seen.role, node.shape, node.dtype, (), device, nbytes, "", None,
                       layout=seen.layout, parameter=node.parameter, keys=seen.keys)  # fmt: skip


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
