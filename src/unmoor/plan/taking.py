"""Which parts of a file a conversion takes, and the tree that they make. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from unmoor.errors import MismatchError, UnsupportedFile, UsageError
from unmoor.values.catalog import Catalog
from unmoor.values.progress import VALUES
from unmoor.values.ranks import RANKS, is_index, saved_world
from unmoor.values.text import columns, key_text

from .choose import find_at, subtree
from .taken import Keys, Taken, remade, with_tree

__all__ = ["Taken", "places_of", "take", "words_of"]

_OF_ITS_FILES: Final = ("storages", "files", "metadata", "save_id", "frame", VALUES)
_GONE: Final = object()


def take(catalog: Catalog, only: str | Sequence[str] | None, drop: str | Sequence[str] | None = None) -> Taken:
    """All of a file; with `only`, parts of it, by role word or key path; without what `drop` names in the same way.

    One part that a single word of `only` chose becomes the root of the tree, as it was on rank 0; several keep their
    places, with what other ranks have there of their own. Elements of a list that is cut are kept in their order.
    Raises MismatchError for a word that chooses nothing, with what there is, and where nothing is left; UsageError for
    what is no word.
    """
    chosen = None if only is None else [keys for word in words_of("only", only) for keys in places_of(catalog, word)]
    words = () if drop is None else words_of("drop", drop)
    gone = [keys for word in words for keys in places_of(catalog, word, "drop")]
    parts = catalog.run_parts()
    if chosen is None and not gone:
        return Taken(catalog.tree, catalog.tensors, (), _carried(catalog.manifest), catalog.tensors, parts=parts)
    root = chosen[0] if isinstance(only, str) and chosen is not None and len(chosen) == 1 else None
    if chosen is not None and root is None:
        chosen += _of_other_ranks(catalog, chosen)
    gone += _of_other_ranks(catalog, gone)
    told_apart = saved_world(catalog.manifest) > 1
    cut = _Cut(None if chosen is None else frozenset(chosen), frozenset(gone), told_apart)
    tree = cut(catalog.tree, ())
    if tree is _GONE or (root is not None and cut.moved(root) is None):
        raise MismatchError(
            f"nothing of {catalog.path} is left: only={only!r} and drop={drop!r}"
            if only is not None
            else f"nothing of {catalog.path} is left: drop={drop!r}",
            path=catalog.path,
        )
    read = tuple(entry for entry in catalog.tensors if cut.stays(entry.keys))
    moved = tuple(replace(part, keys=cut.moved(part.keys) or ()) for part in parts if cut.stays(part.keys))
    taken = Taken(tree, read, (), _relocated(_carried(catalog.manifest), cut), read, parts=moved)
    if root is None:
        return with_tree(taken, tree)
    place = cut.moved(root) or ()
    below = tuple(replace(part, keys=part.keys[len(place) :]) for part in moved)
    return with_tree(replace(taken, manifest=None), _at(catalog, tree, place), root=root, parts=below)


def _at(catalog: Catalog, tree: Any, keys: Keys) -> Any:
    try:
        return subtree(tree, keys)
    except KeyError:
        raise UnsupportedFile(
            f"{key_text(keys)} of {catalog.path} stands within a pickled object",
            remedy='layout="plain" takes the parts of a run out of such objects.',
            path=catalog.path,
        ) from None


def words_of(name: str, given: Any) -> tuple[str, ...]:
    """One role or key path, or a list of them. Raises UsageError for anything else."""
    words = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list | tuple | set) else ()
    if not words or not all(isinstance(word, str) and word for word in words):
        raise UsageError(
            f"{name}={given!r} is no role or key path, nor a list of them", remedy=f'{name}="model" names one.'
        )
    return words


def places_of(catalog: Catalog, word: str, name: str = "only") -> list[Keys]:
    """Where the parts of a role stand, or what stands at a key path; outermost places only."""
    found = list(dict.fromkeys(part.keys for part in catalog.part(word)))
    if not found:
        place = find_at(catalog, word)
        found = [] if place is None else [place]
    if not found:
        rows = [(part.role, part.path or "(the whole file)") for part in catalog.run_parts()]
        raise MismatchError(
            f"{name}={word!r} chooses nothing in {catalog.path}",
            details=columns(rows, indent=0),
            remedy="Give one of these roles, or a key path with dots.",
            path=catalog.path,
        )
    return [keys for keys in found if not any(keys[:n] in found for n in range(len(keys)))]


def _of_other_ranks(catalog: Catalog, places: Collection[Keys]) -> list[Keys]:
    """Where ranks other than 0 have something of their own at the places, of a checkpoint that tells ranks apart."""
    if saved_world(catalog.manifest) == 1 or not isinstance(catalog.tree, Mapping):
        return []
    ranks = catalog.tree.get(RANKS)
    rows = ranks.items() if isinstance(ranks, Mapping) else ()
    spelled = ((rank, _spelled(own, place)) for rank, own in rows for place in places)
    return [(RANKS, rank, *keys) for rank, keys in spelled if keys]


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


@dataclass(slots=True)
class _Cut:
    """Cuts a tree to `chosen` places (None: all), without the places in `gone`; tells where things are afterwards."""

    chosen: frozenset[Keys] | None
    gone: frozenset[Keys]
    told_apart: bool
    """Whether the tree tells ranks apart: what is under `ranks` then follows the lists that it lies over."""
    _above: frozenset[Keys] = field(init=False)
    _leading: frozenset[Keys] = field(init=False)
    _numbers: dict[Keys, dict[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._above = frozenset(keys[:n] for keys in self.gone for n in range(len(keys)))
        self._leading = frozenset(keys[:n] for keys in self.chosen or () for n in range(len(keys)))

    def __call__(self, node: Any, keys: Keys) -> Any:
        """The node that stands at `keys`, cut."""
        if keys in self.gone:
            return _GONE
        within = self._within(keys)
        if not within and keys not in self._leading:
            return _GONE
        if within and keys not in self._above:
            return node
        if isinstance(node, Mapping):
            kept = {
                key: self(node[key], (*keys, key)) for key in sorted(node, key=lambda key: (*keys, key) == (RANKS,))
            }
            numbers = self._numbers_below(keys)
            left = ((numbers.get(key, key), kept[key]) for key in node if kept[key] is not _GONE)
            return remade(node, left)
        if isinstance(node, list | tuple):
            items = [(i, self(item, (*keys, i))) for i, item in enumerate(node)]
            stay = [(i, item) for i, item in items if item is not _GONE]
            self._numbers[keys] = {old: new for new, (old, _) in enumerate(stay)}
            return type(node)(item for _, item in stay)
        return node

    def _numbers_below(self, keys: Keys) -> dict[Any, Any]:
        """The new words for elements of a cut list, of which `keys` is what another rank has in its place."""
        if not self.told_apart or keys[:1] != (RANKS,):
            return {}
        place: Keys = ()
        for key in keys[2:]:
            place = (*place, int(key) if place in self._numbers and is_index(key) else key)
        return {str(old): str(new) for old, new in self._numbers.get(place, {}).items()}

    def _within(self, keys: Keys) -> bool:
        """Whether a place is one of the chosen ones or below it."""
        return self.chosen is None or any(keys[:n] in self.chosen for n in range(len(keys) + 1))

    def stays(self, keys: Keys) -> bool:
        """Whether what stands at `keys` is taken."""
        return self._within(keys) and not any(keys[:n] in self.gone for n in range(len(keys) + 1))

    def moved(self, keys: Keys) -> Keys | None:
        """Where what stood at `keys` is now; None where it is no more."""
        if any(keys[:n] in self.gone for n in range(len(keys) + 1)):
            return None
        made = [self._numbers.get(keys[:n], {}).get(key, key) for n, key in enumerate(keys)]
        return tuple(made) if self._within(keys) or keys in self._leading else None


def _relocated(manifest: Mapping[str, Any] | None, cut: _Cut) -> Mapping[str, Any] | None:
    """The manifest with the roles that are still there, where they are now."""
    if manifest is None:
        return None
    roles = manifest.get("roles")
    rows = roles.items() if isinstance(roles, Mapping) else ()
    kept: dict[str, Any] = {}
    for label, row in rows:
        keys = tuple(row["keys"]) if isinstance(row, Mapping) and isinstance(row.get("keys"), list) else None
        if keys is not None and cut.stays(keys):
            kept[label] = {**row, "keys": list(cut.moved(keys) or ())}
    made = {**manifest, "roles": kept}
    if isinstance(manifest.get(RANKS), Mapping):
        made[RANKS] = {rank: _own_moved(row, cut) for rank, row in manifest[RANKS].items()}
    return made


def _own_moved(row: Any, cut: _Cut) -> Any:
    """What the manifest says of one rank, with the places where they are now."""
    if not isinstance(row, Mapping):
        return row
    kept = {}
    for word in ("whole", "absent"):
        if isinstance(row.get(word), list):
            moved = [cut.moved(tuple(path)) for path in row[word] if isinstance(path, list)]
            kept[word] = [list(keys) for keys in moved if keys is not None]
    return {**row, **kept}


def _carried(manifest: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """What a manifest says of the run, without what it says of its own files."""
    return None if manifest is None else {key: value for key, value in manifest.items() if key not in _OF_ITS_FILES}
