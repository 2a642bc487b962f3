"""Which parts of a file a conversion takes, and the tree that they make. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from unmoor.errors import MismatchError, UsageError
from unmoor.values.catalog import Catalog, TensorEntry
from unmoor.values.ranks import RANKS, saved_world
from unmoor.values.text import columns, key_text

from .choose import find_at, subtree

__all__ = ["Taken", "take"]

Keys = tuple[Any, ...]

_OF_ITS_FILES: Final = ("storages", "files", "metadata", "save_id", "frame")


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """The tree to write, inert, and its tensors by their place in it.

    `root` are the keys that led to it in the file: those of the one part that was taken, else none. `manifest` is the
    file's own, as far as it tells of this tree.
    """

    tree: Any
    tensors: tuple[TensorEntry, ...]
    root: Keys = ()
    manifest: Mapping[str, Any] | None = None


def take(catalog: Catalog, only: str | Sequence[str] | None) -> Taken:
    """All of a file; with `only`, parts of it, by role word or key path.

    One part that a single word chose becomes the root of the tree, as it was on rank 0; several keep their places, with
    what other ranks have there of their own. Raises MismatchError for
    a word that chooses nothing, with what there is; UsageError for what is no word.
    """
    if only is None:
        return Taken(catalog.tree, catalog.tensors, manifest=_carried(catalog.manifest))
    words = _words(only)
    places = [place for word in words for place in _places(catalog, word)]
    if isinstance(only, str) and len(places) == 1:
        (root,) = places
        tensors = tuple(
            replace(entry, keys=entry.keys[len(root) :], path=key_text(entry.keys[len(root) :]))
            for entry in catalog.tensors
            if entry.keys[: len(root)] == root
        )
        return Taken(subtree(catalog.tree, root), tensors, root)
    chosen = {*places, *_of_other_ranks(catalog, places)}
    tensors = tuple(entry for entry in catalog.tensors if any(entry.keys[:n] in chosen for n in range(99)))
    return Taken(_pruned(catalog.tree, (), chosen), tensors, manifest=_manifest(catalog.manifest, chosen))


def _words(only: Any) -> tuple[str, ...]:
    words = (only,) if isinstance(only, str) else tuple(only) if isinstance(only, list | tuple | set) else ()
    if not words or not all(isinstance(word, str) and word for word in words):
        raise UsageError(f"only={only!r} is no role or key path, nor a list of them", remedy='only="model" takes one.')
    return words


def _places(catalog: Catalog, word: str) -> list[Keys]:
    """Where the parts of a role stand, or what stands at a key path; outermost places only."""
    found = list(dict.fromkeys(part.keys for part in catalog.part(word)))
    if not found:
        place = find_at(catalog, word)
        found = [] if place is None else [place]
    if not found:
        rows = [(part.role, part.path or "(the whole file)") for part in catalog.run_parts()]
        raise MismatchError(
            f"only={word!r} chooses nothing in {catalog.path}",
            details=columns(rows, indent=0),
            remedy="Give one of these roles, or a key path with dots.",
            path=catalog.path,
        )
    return [keys for keys in found if not any(keys[:n] in found for n in range(len(keys)))]


def _of_other_ranks(catalog: Catalog, places: Collection[Keys]) -> Iterator[Keys]:
    """Where ranks other than 0 have something of their own at the places, of a checkpoint that tells ranks apart."""
    if saved_world(catalog.manifest) == 1 or not isinstance(catalog.tree, Mapping):
        return
    ranks = catalog.tree.get(RANKS)
    for rank, own in ranks.items() if isinstance(ranks, Mapping) else ():
        for place in places:
            keys = _spelled(own, place)
            if keys:
                yield (RANKS, rank, *keys)


def _spelled(own: Any, place: Keys) -> Keys:
    """A key path as a rank's own leaves have it, where indexes of lists are text; as far as they go, () if nowhere."""
    made: list[Any] = []
    for key in place:
        if not isinstance(own, Mapping):
            break  # a leaf that replaces what the place lies in
        known = key if key in own else str(key)
        if known not in own:
            return ()
        made.append(known)
        own = own[known]
    return tuple(made)


def _pruned(node: Any, keys: Keys, chosen: Collection[Keys]) -> Any:
    """The tree without what does not lead to a chosen place; elements of a list that is cut are kept by their order."""
    if keys in chosen:
        return node
    if isinstance(node, Mapping):
        kept = {key: item for key, item in node.items() if _leads((*keys, key), chosen)}
        made: dict[Any, Any] = OrderedDict() if isinstance(node, OrderedDict) else {}
        made.update((key, _pruned(item, (*keys, key), chosen)) for key, item in kept.items())
        return made
    return node


def _leads(keys: Keys, chosen: Collection[Keys]) -> bool:
    return any(place[: len(keys)] == keys or keys[: len(place)] == place for place in chosen)


def _manifest(manifest: Mapping[str, Any] | None, chosen: Collection[Keys]) -> Mapping[str, Any] | None:
    """The manifest with the roles and arrays that are still there."""
    if manifest is None:
        return None
    roles = manifest.get("roles")
    rows = roles.items() if isinstance(roles, Mapping) else ()
    kept = {label: row for label, row in rows if isinstance(row, Mapping) and _has(row.get("keys"), chosen)}
    return {**(_carried(manifest) or {}), "roles": kept}


def _carried(manifest: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """What a manifest says of the run, without what it says of its own files."""
    return None if manifest is None else {key: value for key, value in manifest.items() if key not in _OF_ITS_FILES}


def _has(keys: Any, chosen: Collection[Keys]) -> bool:
    return isinstance(keys, list) and any(tuple(keys)[: len(place)] == place for place in chosen)
