"""What a file's own manifest claims, held against the tree that the file holds.

The pickle decides what is restored; a manifest that says otherwise was edited, or belongs to another save.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from unmoor.values.catalog import Catalog
from unmoor.values.finding import Finding
from unmoor.values.progress import VALUES, told
from unmoor.values.ranks import RANKS, ranks_recorded, saved_world
from unmoor.values.text import count, key_text, listing

__all__ = ["manifest_findings"]

_REMEDY: Final = "the file was altered after it was saved: use the checkpoint before it, or save it again"
_RETAGGED: Final = "device tags were rewritten after the save; nothing depends on it"


def manifest_findings(catalog: Catalog) -> list[Finding]:
    """Every claim of the manifest that the file itself contradicts: spans and checksums, roles, names, devices, ranks.

    Empty where the file has no manifest.
    """
    if catalog.manifest is None:
        return []
    made = [*_storages(catalog, catalog.manifest), *_roles(catalog, catalog.manifest)]
    made += _values(catalog, catalog.manifest)
    return [*made, *_arrays(catalog, catalog.manifest), *_ranks(catalog, catalog.manifest)]


def _storages(catalog: Catalog, manifest: Mapping[str, Any]) -> Iterator[Finding]:
    """Spans and checksums, which a single file's manifest lists."""
    claimed = manifest.get("storages")
    if not isinstance(claimed, Mapping):
        return
    paths: dict[str, str] = {}
    for entry in catalog.tensors:
        paths.setdefault(entry.storage, entry.path)
    held = {storage.key: storage for storage in catalog.storages}
    for key, storage in held.items():
        if storage.span is None or not storage.nbytes:
            continue
        due = [storage.span.offset, storage.span.nbytes, storage.crc32]
        row = claimed.get(key)
        if row is None:
            yield _error("manifest-span", paths.get(key, key), "the manifest does not list its storage")
        elif row != due and (not isinstance(row, list) or row[:2] != due[:2] or storage.crc32 is not None):
            told = f"the manifest says {_span_text(row)}, the archive {_span_text(due)}"
            yield _error("manifest-span", paths.get(key, key), told)
    stray = [str(key) for key in claimed if key not in held]
    if stray:
        text = f"the manifest lists {count(len(stray), 'storage')} that no tensor uses: {listing(stray)}"
        yield _error("manifest-span", "", text)


def _span_text(row: Any) -> str:
    if not isinstance(row, list) or len(row) != 3 or not all(type(number) is int for number in row[:2]):
        return f"{str(row)[:60]}"
    return f"{row[1]:,} bytes at byte {row[0]:,}, CRC-32 {f'{row[2]:08x}' if type(row[2]) is int else row[2]}"


def _roles(catalog: Catalog, manifest: Mapping[str, Any]) -> Iterator[Finding]:
    roles = manifest.get("roles")
    for label, row in roles.items() if isinstance(roles, Mapping) else ():
        keys = row.get("keys") if isinstance(row, Mapping) else None
        if not isinstance(keys, list):
            continue
        found, node = _follow(catalog.tree, keys)
        if not found:
            told = f"the manifest says that {label} stands there, and the tree has nothing there"
            yield _error("manifest-role", key_text(keys), told)
            continue
        yield from _names(label, keys, row, node)
        yield from _devices(catalog, label, keys, row)


def _names(label: str, keys: list[Any], row: Mapping[str, Any], node: Any) -> Iterator[Finding]:
    """The names of an optimizer's parameters: as many as it has, each once."""
    names, groups = row.get("names"), node.get("param_groups") if isinstance(node, Mapping) else None
    if not isinstance(names, list) or not isinstance(groups, list | tuple):
        return
    held = [group.get("params") for group in groups if isinstance(group, Mapping)]
    number = sum(len(params) for params in held if isinstance(params, list | tuple))
    if number != len(names):
        told = f"the manifest names {count(len(names), 'parameter')} of {label}, its groups hold {number:,}"
        yield _error("manifest-names", key_text(keys), told)
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        yield _error("manifest-names", key_text(keys), f"the manifest names parameters twice: {listing(twice)}")


def _devices(catalog: Catalog, label: str, keys: list[Any], row: Mapping[str, Any]) -> Iterator[Finding]:
    claimed = row.get("devices")
    tags = {entry.device for entry in catalog.tensors if list(entry.keys[: len(keys)]) == keys}
    if isinstance(claimed, list) and catalog.format == "torch-zip" and tags and set(claimed) != tags:
        told = f"the manifest says that {label} was on {', '.join(claimed)}, its tensors are tagged"
        yield Finding("manifest-device", "info", key_text(keys), f"{told} {', '.join(sorted(tags))}", _RETAGGED)


def _arrays(catalog: Catalog, manifest: Mapping[str, Any]) -> Iterator[Finding]:
    arrays = manifest.get("numpy")
    lost = [
        key_text(keys) for keys in (arrays if isinstance(arrays, list) else ()) if not _follow(catalog.tree, keys)[0]
    ]
    if lost:
        yield _error(
            "manifest-array", lost[0], f"the manifest tells of numpy arrays that are not there: {listing(lost)}"
        )


def _values(catalog: Catalog, manifest: Mapping[str, Any]) -> Iterator[Finding]:
    """The values that the manifest repeats for listings: how far the run was, and its metrics."""
    claimed = manifest.get(VALUES)
    held = told(catalog.tree) or {}
    for key, value in claimed.items() if isinstance(claimed, Mapping) else ():
        if not _agrees(value, held.get(key)):
            yield _error("manifest-values", str(key)[:80], "the manifest gives it another value than the tree")


def _agrees(claimed: Any, held: Any) -> bool:
    if isinstance(claimed, Mapping) and isinstance(held, Mapping):
        return all(key in held and held[key] == value for key, value in claimed.items())
    return bool(claimed == held)


def _ranks(catalog: Catalog, manifest: Mapping[str, Any]) -> Iterator[Finding]:
    recorded = ranks_recorded(manifest)
    if saved_world(manifest) == 1 or not recorded:
        return
    held = catalog.tree.get(RANKS) if isinstance(catalog.tree, Mapping) else None
    there = {str(key) for key in held} if isinstance(held, Mapping) else set()
    lost = [str(rank) for rank, row in recorded.items() if str(rank) not in there and row.get("whole")]
    if lost:
        told = f"the manifest tells of own state of ranks {listing(lost)}, and the file holds none"
        yield _error("manifest-ranks", RANKS, told)


def _follow(tree: Any, keys: list[Any]) -> tuple[bool, Any]:
    """Whether something stands at a key path, and what."""
    for key in keys:
        if (isinstance(tree, Mapping) and key in tree) or (
            isinstance(tree, list | tuple) and type(key) is int and 0 <= key < len(tree)
        ):
            tree = tree[key]
        else:
            return False, None
    return True, tree


def _error(code: str, place: str, message: str) -> Finding:
    return Finding(code, "error", place, message, _REMEDY)
