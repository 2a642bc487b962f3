"""From what a damaged file still says to a Catalog of what can be had, and the list of what cannot. Pure.

A tensor whose data is lost goes out of the tree, with its key; of an optimizer's state for one parameter all goes, as
no step can be taken with half of it. What is left is described as any file is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from unmoor.errors import CorruptFile, HostileFile
from unmoor.values.catalog import Catalog, TensorEntry
from unmoor.values.nodes import Storage
from unmoor.values.pruning import pruned
from unmoor.values.salvage import Lost, Salvage
from unmoor.values.text import count, listing

from .assemble import assemble
from .entries import Entries, why_lost
from .outline import Outline
from .recorded import with_recorded_roles
from .walk import visits, walk
from .wreck import Wreck

__all__ = ["settled"]

_STATE: Final = "state"
_WITH_IT: Final = "given up with the rest of the state of its parameter"


def settled(path: str, size: int, wreck: Wreck, *, keep: Iterable[str]) -> tuple[Catalog, Salvage]:
    """The catalog of all that can be had of a wreck, and the account of the rest.

    `keep` are keys of storages whose data is taken as it is, though its checksum does not hold. Raises CorruptFile
    where no tensor is left.
    """
    kept, faults = set(keep), dict(wreck.faults)
    for key in kept:
        faults.pop(key, None)
    contents = wreck.contents
    made = Entries(path, {})
    walked = walk(contents.tree, budget=visits(contents.structure), wanted=(), path=path, make=made.make)
    _, entries = with_recorded_roles([], walked.tensors, contents.manifest)
    whys = {id(entry.node): why for entry in entries if entry.node and (why := why_lost(entry.node, faults))}
    lost = [_lost(entry, whys[id(entry.node)], wreck) for entry in entries if id(entry.node) in whys]
    with_it = list(_with_it(entries, whys))
    lost += [Lost(entry.path, entry.role, _WITH_IT) for entry in with_it]
    whys |= {id(entry.node): _WITH_IT for entry in with_it}
    lost += [Lost(name, "model", why) for name, why in wreck.entries.items()]
    if entries and all(id(entry.node) in whys for entry in entries):
        raise _nothing(path, lost)
    try:
        tree = pruned(contents.tree, {**whys, **_emptied(contents.tree, entries, whys)})
    except RecursionError:
        raise HostileFile(f"{path} nests its values too deep to take what is lost out of them", path=path) from None
    manifest = _still_true(contents.manifest, tree)
    catalog = assemble(Outline(path, size), replace(contents, tree=tree, faults={}, manifest=manifest))
    for entry in entries:
        storage = entry.node.storage if entry.node is not None else None
        if storage is not None and not kept.isdisjoint(source.key for source in storage.sources()):
            lost.append(Lost(entry.path, entry.role, wreck.faults[_first(storage.sources(), kept)], kept=True))
    return catalog, _account(catalog, lost, wreck, kept)


def _lost(entry: TensorEntry, why: str, wreck: Wreck) -> Lost:
    return Lost(entry.path, entry.role, why, tensor=entry.storage not in wreck.values)


def _still_true(manifest: Mapping[str, Any] | None, tree: Any) -> Mapping[str, Any] | None:
    """The manifest without the roles of which nothing is left."""
    roles = (manifest or {}).get("roles")
    if manifest is None or not isinstance(roles, Mapping):
        return manifest
    left = {label: row for label, row in roles.items() if _at(tree, tuple(row["keys"])) is not None}
    return {**manifest, "roles": left}


def _first(sources: Sequence[Storage], kept: set[str]) -> str:
    return next(source.key for source in sources if source.key in kept)


def _with_it(entries: Sequence[TensorEntry], whys: Mapping[int, str]) -> Iterator[TensorEntry]:
    """The other tensors of the state that an optimizer has for a parameter of which one is lost."""
    broken = {place for entry in entries if id(entry.node) in whys and (place := _parameter(entry)) is not None}
    for entry in entries:
        if id(entry.node) not in whys and _parameter(entry) in broken:
            yield entry


def _parameter(entry: TensorEntry) -> tuple[Any, ...] | None:
    """Where the state of one parameter stands that a tensor is a part of; None for what is no such part."""
    keys = entry.keys
    at = next((i for i in range(len(keys) - 2, 0, -1) if keys[i - 1] == _STATE), None) if len(keys) > 2 else None
    return keys[: at + 1] if at is not None and entry.role == "optimizer" else None


def _emptied(tree: Any, entries: Sequence[TensorEntry], whys: Mapping[int, str]) -> dict[int, str]:
    """The states of parameters that are to go as a whole, numbers in them included, by id."""
    places = {place for entry in entries if id(entry.node) in whys and (place := _parameter(entry)) is not None}
    found = (_at(tree, place) for place in places)
    return {id(value): _WITH_IT for value in found if isinstance(value, dict)}


def _at(tree: Any, keys: tuple[Any, ...]) -> Any:
    for key in keys:
        if isinstance(tree, Mapping):
            tree = tree.get(key)
        elif isinstance(tree, list | tuple) and type(key) is int and key < len(tree):
            tree = tree[key]
        else:
            return None
    return tree


def _account(catalog: Catalog, lost: Sequence[Lost], wreck: Wreck, kept: set[str]) -> Salvage:
    summed = bare = 0
    for entry in catalog.tensors:
        storage = entry.node.storage if entry.node is not None else None
        if storage is None or any(source.key in kept for source in storage.sources()):
            continue
        holds = all(source.crc32 is not None for source in storage.sources())
        summed, bare = summed + holds, bare + (not holds)
    return Salvage(tuple(lost), summed, bare, tuple(wreck.notes), tuple(_incomplete(catalog, lost)))


def _incomplete(catalog: Catalog, lost: Sequence[Lost]) -> Iterator[tuple[str, str]]:
    """Role -> what it lacks, of all roles that lack something."""
    there = catalog.roles()
    gone: dict[str, list[str]] = {}
    for one in lost:
        if not one.kept and one.tensor:
            gone.setdefault(one.role, []).append(one.path)
    for role, names in gone.items():
        number, _ = there.get(role, (0, 0))
        yield role, f"{len(names):,} of {count(number + len(names), 'tensor')} lost: {listing(names, 3)}"


def _nothing(path: str, lost: Sequence[Lost]) -> CorruptFile:
    return CorruptFile(
        f"nothing can be rescued from {path}: the data of all {count(len(lost), 'tensor')} is lost",
        details=[f"{one.path}: {one.why}" for one in lost[:12]],
        path=path,
    )
