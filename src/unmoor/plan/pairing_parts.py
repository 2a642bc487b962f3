"""Which part of one checkpoint is compared with which of another, and what `only=` leaves of both. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from unmoor.errors import UsageError
from unmoor.values.catalog import Catalog, Part, TensorEntry
from unmoor.values.ranks import RANKS, saved_world
from unmoor.values.text import key_text, listing

from .pairing_names import pair_names
from .role_words import is_average

__all__ = ["WEIGHTS", "Asked", "PartPair", "asked", "match_parts", "names_in", "own_tensors", "part_label"]

WEIGHTS: Final = frozenset({"model", "ema", "loss"})
"""Roles whose parts are tensors by name."""


@dataclass(frozen=True, slots=True, eq=False)
class PartPair:
    """A part of each side; `note` says what is not plain in comparing them."""

    a: Part
    b: Part
    note: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """What of two checkpoints is compared: everything, or what the words choose, each for one side or for both.

    A word is a key path, or a role where no part stands at such a path; `paths` are the words of each side that are.
    """

    words: tuple[tuple[str, str], ...] = ()
    paths: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())

    def takes(self, side: int, path: str, role: str) -> bool:
        """Whether a place is asked for on a side (0 or 1)."""
        if not self.words:
            return True
        return any(self.names(side, word[side], path, role) for word in self.words)

    def names(self, side: int, word: str, path: str, role: str) -> bool:
        """Whether a word means a place on a side."""
        return _below(path, word) or (word == role and word not in self.paths[side])

    def may_hold(self, side: int, path: str) -> bool:
        """Whether something below a place may be asked for."""
        return not self.words or any(_below(word[side], path) or _below(path, word[side]) for word in self.words)


def asked(only: str | Sequence[str] | None, a: Catalog, b: Catalog) -> Asked:
    """The meaning of `only=`. Raises UsageError for a word that chooses nothing on either side."""
    words = [only] if isinstance(only, str) else list(only or ())
    if not all(isinstance(word, str) and word and "" not in word.split("=", 1) for word in words):
        raise UsageError(f"only={only!r} holds what is no role word and no key path")
    paths = (frozenset(part.path for part in a.parts), frozenset(part.path for part in b.parts))
    made = Asked(tuple((left, right or left) for left, _, right in (word.partition("=") for word in words)), paths)
    for word, (left, right) in zip(words, made.words, strict=True):
        found = [_chooses(catalog, name) for catalog, name in ((a, left), (b, right))]
        if not any(found) or ("=" in word and not all(found)):
            names = listing(sorted({*_offered(a), *_offered(b)}), 8)
            raise UsageError(f"only={word!r} chooses nothing", remedy=f"There are {names}.")
    return made


def _chooses(catalog: Catalog, word: str) -> bool:
    named = any(part.role == word or _below(part.path, word) or _below(word, part.path) for part in catalog.parts)
    return named or any(_below(entry.path, word) for entry in catalog.tensors)


def _offered(catalog: Catalog) -> list[str]:
    return [word for part in catalog.parts for word in (part.role, part.path) if word not in ("extra", "")]


def _below(path: str, place: str) -> bool:
    """Whether a path is a place or below it; all paths are below the root."""
    return not place or path == place or path.startswith(f"{place}.")


def own_tensors(catalog: Catalog) -> dict[int, list[TensorEntry]]:
    """Id of a part -> its tensors, in the order of the file."""
    found: dict[int, list[TensorEntry]] = {id(part): [] for part in catalog.parts}
    place = {tuple(map(str, part.keys)): part for part in catalog.parts}
    for entry in catalog.tensors:
        keys = tuple(map(str, entry.keys))
        owner = next((place[keys[:n]] for n in range(len(keys), -1, -1) if keys[:n] in place), None)
        if owner is not None:
            found[id(owner)].append(entry)
    return found


def names_in(part: Part, entries: Sequence[TensorEntry]) -> dict[str, TensorEntry]:
    """Tensors by their name inside a part."""
    return {key_text(entry.keys[len(part.keys) :]): entry for entry in entries}


Key = Callable[[Part], Hashable | None]


class _Matching:
    """Takes parts off two lists as they are paired."""

    def __init__(self, a: list[Part], b: list[Part]) -> None:
        self.a, self.b = a, b
        self.pairs: list[PartPair] = []

    def by(self, key: Key, other: Key | None = None, note: str = "") -> None:
        """Pair what has a key that no other part of its side has; a key of None is none."""
        mine, theirs = self._single(self.a, key), self._single(self.b, other or key)
        for value in [value for value in mine if value in theirs]:
            self.take(mine[value], theirs[value], note)

    def take(self, one: Part, other: Part, note: str) -> None:
        self.pairs.append(PartPair(one, other, note))
        self.a = [part for part in self.a if part is not one]
        self.b = [part for part in self.b if part is not other]

    @staticmethod
    def _single(parts: Sequence[Part], key: Key) -> dict[Hashable, Part]:
        found: dict[Hashable, list[Part]] = {}
        for part in parts:
            found.setdefault(key(part), []).append(part)
        return {value: same[0] for value, same in found.items() if value is not None and len(same) == 1}


def match_parts(a: Catalog, b: Catalog, limit: Asked) -> tuple[list[PartPair], list[Part], list[Part]]:
    """Parts of the same role at the same place; then those that are the only ones of their role; then by names.

    The parts that are left over on each side come second and third. Values beside parts are not among them.
    """
    mine, theirs = ([*_run_parts(side, number, limit)] for number, side in enumerate((a, b)))
    matching = _Matching(mine, theirs)
    for left, right in limit.words:
        if left != right:
            matching.by(_named(limit, 0, left), _named(limit, 1, right), f"{left} of a is compared with {right} of b")
    matching.by(lambda part: (part.role, tuple(map(str, part.keys))))
    matching.by(lambda part: None if _is_own(part, a, b) else (part.role, part.kind if part.role == "rng" else ""))
    matching.by(lambda part: None if _is_own(part, a, b) else (part.role, str(part.keys[-1:])))
    _by_names(matching, a, b)
    order = {id(part): number for number, part in enumerate(a.parts)}
    return sorted(matching.pairs, key=lambda pair: order[id(pair.a)]), matching.a, matching.b


def _run_parts(catalog: Catalog, side: int, limit: Asked) -> list[Part]:
    asked_for = (p for p in catalog.parts if limit.takes(side, p.path, p.role) or limit.may_hold(side, p.path))
    return [part for part in asked_for if part.role != "extra"]


def _named(limit: Asked, side: int, word: str) -> Key:
    return lambda part: (limit.names(side, word, part.path, part.role) and not part.path.startswith(f"{word}.")) or None


def _is_own(part: Part, a: Catalog, b: Catalog) -> bool:
    """Whether a part is what a single rank has for itself: it has its counterpart at its own place or nowhere."""
    ranked = saved_world(a.manifest) > 1 or saved_world(b.manifest) > 1
    return ranked and part.keys[:1] == (RANKS,)


def _by_names(matching: _Matching, a: Catalog, b: Catalog) -> None:
    """Weights whose role or place differs, paired where every name of one side is among those of the other."""
    held = [own_tensors(catalog) for catalog in (a, b)]
    for one in [part for part in matching.a if part.role in WEIGHTS and not _is_own(part, a, b)]:
        mine = {name: entry.shape for name, entry in names_in(one, held[0][id(one)]).items()}
        fitting = []
        for other in matching.b:
            if other.role in WEIGHTS and not _is_own(other, a, b):
                theirs = {name: entry.shape for name, entry in names_in(other, held[1][id(other)]).items()}
                found = pair_names(mine, theirs).pairs
                agree = all(mine[x] == theirs[y] for x, y in found)
                if mine and theirs and agree and len(found) == min(len(mine), len(theirs)):
                    fitting.append(other)
        if len(fitting) > 1:
            fitting = [other for other in fitting if _averages(other) == _averages(one)]
        if len(fitting) == 1:
            matching.take(one, fitting[0], _told(one, fitting[0]))


def _averages(part: Part) -> bool:
    """Whether weights are a running average, by their role or their own word; both fit where the model does."""
    return part.role == "ema" or is_average(part)


def _told(one: Part, other: Part) -> str:
    if one.role == other.role:
        return ""
    places = [f"{part.role} of {side}{_at(part)}" for side, part in (("a", one), ("b", other))]
    return f"{places[0]} is compared with {places[1]}: their names and shapes agree"


def _at(part: Part) -> str:
    return f" (at {part.path})" if part.path and part.path != part.role else ""


def part_label(part: Part) -> str:
    """What a part is told under: its place, or its role where it is the whole file."""
    return part.path or part.role
