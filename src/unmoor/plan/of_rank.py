"""The checkpoint of several ranks as one of them sees it: its own leaves laid over those of rank 0. Pure.

A rank that did not exist when it was saved takes what rank 0 had of modules, schedulers and scalers, which are the same
on all ranks by rights or stand for all of them (the statistics of a batch normalisation). What each rank had for itself
(metrics, plain values, objects of the user's own) it takes from none: sums would count twice. Its random streams are
derived (`streams`), its data position follows from all of them (`every_rank` gives those).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from unmoor.values.catalog import Catalog, Part
from unmoor.values.ranks import DEEPEST, RANKS, Keys, is_index, is_rank, ranks_recorded, saved_world
from unmoor.values.text import key_text

from .choose import subtree

__all__ = ["ABSENT", "every_rank", "is_withheld", "label_of", "of_rank", "own_leaves", "recorded_roles", "saved_by"]

ABSENT: Final = object()
"""Stands for what a rank did not have."""

_AS_RANK_0: Final = frozenset({"model", "loss", "ema", "optimizer", "scheduler", "scaler", "loader", "rng"})
"""Roles of which a new rank sees what rank 0 had."""


def saved_by(catalog: Catalog) -> int:
    """How many ranks saved a checkpoint; 1 where it does not say."""
    return saved_world(catalog.manifest)


def of_rank(catalog: Catalog, rank: int, world: int) -> Catalog:
    """The catalog as rank `rank` of `world` ranks sees it; the same for a file that does not tell ranks apart.

    One process is rank 0 of 1. What is seen does not depend on `world`: a rank is there or it is not.
    """
    saved = saved_by(catalog)
    if saved == 1 or not isinstance(catalog.tree, Mapping) or not 0 <= rank < max(world, 1):
        return catalog
    tree: Any = {key: item for key, item in catalog.tree.items() if key != RANKS}
    own, whole, gone = _own(catalog, rank)
    leaves = frozenset(_walk(tree, own, (), whole))
    tree = _lay(tree, own, (), leaves)
    if rank >= saved:
        gone = frozenset(_no_ones(catalog))
    return _seen(catalog, rank, _cut(tree, (), gone), leaves, gone)


def every_rank(catalog: Catalog, keys: Keys) -> tuple[Any, ...]:
    """What stood at `keys` on each rank that saved, by rank; ABSENT where a rank had nothing there."""
    base = _at(catalog.tree, keys)
    found = [base] * saved_by(catalog)
    for rank in _differing(catalog):
        own, whole, gone = _own(catalog, rank)
        above = any(keys[: len(place)] == place for place in gone)
        found[rank] = ABSENT if above else _of_own(base, _at_own(own, keys, whole), keys, whole)
    return tuple(found)


def own_leaves(catalog: Catalog) -> dict[int, tuple[Keys, ...]]:
    """Rank -> the places at which it had something else than rank 0, of the ranks that had."""
    whole_tree = isinstance(catalog.tree, Mapping)
    tree = {key: item for key, item in catalog.tree.items() if key != RANKS} if whole_tree else {}
    found = {}
    for rank in _differing(catalog) if tree else ():
        own, whole, gone = _own(catalog, rank)
        if own or gone:
            found[rank] = (*_walk(tree, own, (), whole), *sorted(gone, key=key_text))
    return found


def recorded_roles(catalog: Catalog) -> dict[str, Mapping[str, Any]]:
    """Label -> what the manifest says of it, with where it stands under `keys`."""
    roles = (catalog.manifest or {}).get("roles")
    rows = roles.items() if isinstance(roles, Mapping) else ()
    return {label: row for label, row in rows if isinstance(row, Mapping) and isinstance(row.get("keys"), list)}


def label_of(roles: Mapping[str, Mapping[str, Any]], keys: Keys) -> str:
    """The label under whose keys a place is; "" for a plain value."""
    return next((label for label, row in roles.items() if list(keys[: len(row["keys"])]) == row["keys"]), "")


def is_withheld(role: Mapping[str, Any] | None) -> bool:
    """Whether a new rank takes nothing of what the others had for themselves; None stands for plain values."""
    word = (role or {}).get("role")
    return not (word in _AS_RANK_0 or "position" in (role or {}) or ("wrappers" in (role or {}) and word != "metrics"))


def _has_ranks(catalog: Catalog) -> bool:
    return saved_by(catalog) > 1 and isinstance(catalog.tree, Mapping) and isinstance(catalog.tree.get(RANKS), Mapping)


def _differing(catalog: Catalog) -> list[int]:
    """The ranks of which anything of their own is said, in order."""
    said = [*(catalog.tree[RANKS] if _has_ranks(catalog) else ()), *map(str, ranks_recorded(catalog.manifest))]
    return sorted({int(key) for key in said if is_rank(key) and int(key) < saved_by(catalog)})


def _own(catalog: Catalog, rank: int) -> tuple[Mapping[Any, Any], frozenset[Keys], frozenset[Keys]]:
    """A rank's own leaves, which of them replace a container, and the places at which it had nothing."""
    own = catalog.tree[RANKS].get(str(rank)) if _has_ranks(catalog) else None
    recorded = ranks_recorded(catalog.manifest).get(rank, {})
    tree = {key: leaf for key, leaf in own.items() if key != RANKS} if isinstance(own, Mapping) else {}
    return tree, _paths(recorded.get("whole")), _paths(recorded.get("absent"))


def _paths(recorded: Any) -> frozenset[Keys]:
    rows = recorded if isinstance(recorded, list) else []
    return frozenset(tuple(keys) for keys in rows if isinstance(keys, list) and _are_keys(keys) and keys)


def _are_keys(keys: list[Any]) -> bool:
    return all(isinstance(key, str | int) for key in keys)


def _descends(base: Any, own: Any, keys: Keys, whole: Collection[Keys]) -> bool:
    """Whether `own` holds leaves for places in `base`, and is no leaf itself."""
    if not isinstance(own, Mapping) or keys in whole or len(keys) > DEEPEST:
        return False
    if isinstance(base, list):
        return all(is_index(key) and int(key) < len(base) for key in own)
    return isinstance(base, Mapping)


def _walk(base: Any, own: Any, keys: Keys, whole: Collection[Keys]) -> Iterator[Keys]:
    """The places of the leaves of `own`, as they are called in `base`."""
    if not _descends(base, own, keys, whole):
        yield keys
        return
    for key, leaf in own.items():
        place = int(key) if isinstance(base, list) else key
        known = base[place] if isinstance(base, list) or place in base else ABSENT
        yield from _walk(known, leaf, (*keys, place), whole)


def _lay(base: Any, own: Any, keys: Keys, leaves: Collection[Keys]) -> Any:
    """The tree `base` with the leaves of `own` in their places. Neither is changed."""
    if keys in leaves:
        return own
    made = copy.copy(base)
    for key, leaf in own.items():
        place = int(key) if isinstance(base, list) else key
        known = base[place] if isinstance(base, list) or place in base else ABSENT
        made[place] = _lay(known, leaf, (*keys, place), leaves)
    return made


def _of_own(base: Any, own: Any, keys: Keys, whole: Collection[Keys]) -> Any:
    return base if own is ABSENT else _lay(base, own, keys, frozenset(_walk(base, own, keys, whole)))


def _at(tree: Any, keys: Keys) -> Any:
    try:
        return subtree(tree, keys)
    except KeyError:
        return ABSENT


def _at_own(own: Any, keys: Keys, whole: Collection[Keys]) -> Any:
    """What of a rank's own leaves is at or below `keys`; elements of lists go by their index as text."""
    for length, key in enumerate(keys):
        inside = keys[:length] in whole
        known = own if isinstance(own, Mapping) or inside else {}
        at = _at(known, (key,))
        own = _at(known, (str(key),)) if at is ABSENT else at
    return own


def _no_ones(catalog: Catalog) -> Iterator[Keys]:
    """The places of which a rank that did not exist takes nothing."""
    roles = recorded_roles(catalog)
    for leaves in own_leaves(catalog).values():
        for keys in leaves:
            label = label_of(roles, keys)
            if is_withheld(roles.get(label)):
                yield tuple(roles[label]["keys"]) if label else _cuttable(catalog.tree, keys)


def _cuttable(tree: Any, keys: Keys) -> Keys:
    """A place that can be left out: itself, or the outermost list on the way, which cannot have holes."""
    lengths = (length for length in range(len(keys)) if not isinstance(_at(tree, keys[:length]), Mapping))
    return keys[: next(lengths, len(keys))]


def _cut(node: Any, keys: Keys, gone: Collection[Keys]) -> Any:
    """The mapping without what stands at `gone`."""
    below = {place[len(keys)] for place in gone if len(place) > len(keys) and place[: len(keys)] == keys}
    if not below or not isinstance(node, Mapping):
        return node
    made: Any = copy.copy(node)
    for key in [key for key in node if key in below]:
        if (*keys, key) in gone:
            del made[key]
        else:
            made[key] = _cut(node[key], (*keys, key), gone)
    return made


class _Places:
    """A set of key paths, asked for what lies at or below one of them, and for what one of them lies below."""

    def __init__(self, places: Collection[Keys]) -> None:
        self._places = frozenset(places)
        self._above = {place[:length] for place in places for length in range(len(place))}
        self._lengths: dict[Any, list[int]] = {}
        for head, length in sorted({(place[0], len(place)) for place in places}, key=str):
            self._lengths.setdefault(head, []).append(length)

    def cover(self, keys: Keys) -> bool:
        """Whether a place is one of them or below it."""
        lengths = self._lengths.get(keys[0], ()) if keys else ()
        return any(keys[:length] in self._places for length in lengths)

    def are_within(self, keys: Keys) -> bool:
        """Whether one of them is below a place."""
        return keys in self._above


def _seen(catalog: Catalog, rank: int, tree: Any, leaves: Collection[Keys], gone: Collection[Keys]) -> Catalog:
    """The catalog of `tree`: what stood at a replaced or absent place is out, the rank's own is in its place."""
    out, own, number = _Places({*leaves, *gone}), _Places(leaves), str(rank)

    def moved(keys: Keys) -> Keys | None:
        """Where something is now; None where it is not seen."""
        if keys[:1] != (RANKS,):
            return None if out.cover(keys) else keys
        place = _spelled(tree, keys[2:]) if keys[1:2] == (number,) else ()
        return place if own.cover(place) else None

    roles = {entry.keys: entry.role for entry in catalog.tensors if own.cover(entry.keys)}
    tensors = []
    for entry in catalog.tensors:
        keys = moved(entry.keys)
        if keys is not None and keys is not entry.keys:
            role = roles.get(keys, entry.role)
            tensors.append(replace(entry, keys=keys, path=key_text(keys), role=role))
        elif keys is not None:
            tensors.append(entry)
    return replace(
        catalog,
        tree=tree,
        tensors=tuple(tensors),
        parts=tuple(_parts(catalog.parts, tree, own, moved)),
        manifest={**(catalog.manifest or {}), "numpy": _arrays(catalog, moved)},
    )


def _parts(parts: Collection[Part], tree: Any, own: _Places, moved: Callable[[Keys], Keys | None]) -> Iterator[Part]:
    for part in parts:
        keys = moved(part.keys)
        if keys is not None and keys is not part.keys:
            yield replace(part, keys=keys)
        elif keys is not None:
            yield replace(part, node=_at(tree, keys)) if own.are_within(keys) else part


def _arrays(catalog: Catalog, moved: Callable[[Keys], Keys | None]) -> list[list[Any]]:
    """The places of numpy arrays, as this rank sees them."""
    places = (moved(tuple(row)) for row in (catalog.manifest or {}).get("numpy", ()))
    return [list(keys) for keys in places if keys is not None]


def _spelled(tree: Any, keys: Keys) -> Keys:
    """A key path among a rank's own leaves as one of the tree: indexes of lists are numbers there."""
    made: list[Any] = []
    for key in keys:
        in_list = isinstance(tree, list | tuple) and is_index(key)
        made.append(int(key) if in_list else key)
        tree = _at(tree, (made[-1],))
    return tuple(made)
