"""(Catalog, Catalog) -> which tensor is compared with which, what each side has alone, and which plain values differ.

Pure. Weights are paired by name, an optimizer's state by its parameters, everything else by its place. What nothing
proves is not paired: it stands on its own side.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from unmoor.values.beside import NAMES
from unmoor.values.catalog import Catalog, Part, TensorEntry
from unmoor.values.difference import Leaf, ValueDifference
from unmoor.values.nodes import CompositeTensor, Opaque, TensorNode
from unmoor.values.text import count, key_text, listing

from .pairing_leaves import QUANTIZER, Keys, flatten, leaf_of, number_leaf, value_difference, value_text
from .pairing_names import NamePairs, kept_once, pair_names
from .pairing_optimizer import ParamPair, ParamPairs, is_optimizer, pair_params
from .pairing_parts import WEIGHTS, Asked, PartPair, asked, match_parts, names_in, own_tensors, part_label
from .pairing_states import by_states
from .saved_optimizer import place_of

__all__ = ["Pairing", "TensorPair", "pair"]

_GROUP_KEYS: Final = frozenset({"params", NAMES})
_OPTIMIZER_KEYS: Final = frozenset({"state", "param_groups", NAMES})


@dataclass(frozen=True, slots=True, eq=False)
class TensorPair:
    """A tensor of each side that are one, and what both are told under."""

    name: str
    a: Leaf
    b: Leaf


@dataclass(slots=True)
class Pairing:
    """What is compared, what stands on one side alone, plain values that differ, and how sides were matched."""

    pairs: list[TensorPair] = field(default_factory=list)
    only_a: list[Leaf] = field(default_factory=list)
    only_b: list[Leaf] = field(default_factory=list)
    values: list[ValueDifference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a subtree stands on each side, what it is told under, and the role of what is in it."""

    a: Keys
    b: Keys
    name: Keys
    role: str


def pair(a: Catalog, b: Catalog, only: str | Sequence[str] | None) -> Pairing:
    """Pair everything of two checkpoints, or what `only` chooses of them: role words, key paths, `left=right`."""
    limit = asked(only, a, b)
    a, b, notes = by_states(a, b)
    made = _Pairing(a, b, limit).run()
    made.notes[:0] = notes
    return made


class _Pairing:
    def __init__(self, a: Catalog, b: Catalog, limit: Asked) -> None:
        self.a, self.b, self.limit = a, b, limit
        self.held = (own_tensors(a), own_tensors(b))
        self.made = Pairing()

    def run(self) -> Pairing:
        matched, left_a, left_b = match_parts(self.a, self.b, self.limit)
        for pair in matched:
            self._part(pair)
        placed = _placed(self.a, self.b, left_a, left_b)
        for side, parts in ((0, left_a), (1, left_b)):
            for part in parts:
                if id(part) not in placed:
                    self._alone(side, part)
        self._beside(placed)
        return self.made

    def _part(self, pair: PartPair) -> None:
        one, other = pair.a, pair.b
        if pair.note:
            self.made.notes.append(pair.note)
        if one.role in WEIGHTS and other.role in WEIGHTS:
            self._weights(one, other)
        elif is_optimizer(one.node) and is_optimizer(other.node):
            self._optimizer(one, other)
        else:
            place = _Place(_texts(one.keys), _texts(other.keys), _label(one, other), one.role)
            self._trees(place, one.node, other.node)

    def _weights(self, one: Part, other: Part) -> None:
        mine, theirs = names_in(one, self.held[0][id(one)]), names_in(other, self.held[1][id(other)])
        found = pair_names(*({name: e.shape for name, e in side.items()} for side in (mine, theirs)))
        if found.how:
            self.made.notes.append(f"{part_label(one)}: {found.how}")
        label = _label(one, other)
        for x, y in found.pairs:
            self._pair(_joined(label, (x,)), _entry_leaf(mine[x]), _entry_leaf(theirs[y]))
            self._quantizers(mine[x], theirs[y])
        paired = ({x for x, _ in found.pairs}, {y for _, y in found.pairs})
        for side, names, there in ((0, mine, self.b), (1, theirs, self.a)):
            tied = kept_once(names, paired[side]) if there.format == "safetensors" else {}
            for name, entry in names.items():
                if name not in paired[side] and name not in tied:
                    self._only(side, _entry_leaf(entry))
            if tied:
                told = listing([f"{name} is {own}" for name, own in tied.items()])
                self.made.notes.append(f"{part_label(one)}: safetensors keeps tied weights once: {told}")
        self._values_inside(one, other, found)

    def _quantizers(self, one: TensorEntry, other: TensorEntry) -> None:
        numbers = [entry.node.quantizer if isinstance(entry.node, TensorNode) else None for entry in (one, other)]
        plain = [tuple(x for x in n or () if not isinstance(x, TensorNode | CompositeTensor)) for n in numbers]
        if plain[0] != plain[1]:
            text, told = (", ".join(map(value_text, side)) or "none" for side in plain)
            self._value(ValueDifference(f"{one.path}.quantizer", "changed", text, told, one.role), other.path)

    def _values_inside(self, one: Part, other: Part, found: NamePairs) -> None:
        """What stands among weights and is no tensor, such as extra state of modules."""
        if isinstance(one.node, Opaque) != isinstance(other.node, Opaque):
            side = "a" if isinstance(one.node, Opaque) else "b"
            told = (
                f"{part_label(one)}: {side} holds a pickled object, the other a state dict; tensors alone are compared"
            )
            self.made.notes.append(told)
            return
        place = _Place(_texts(one.keys), _texts(other.keys), _label(one, other), one.role)
        mine, theirs = (_values_of(part, side.path) for part, side in ((one, self.a), (other, self.b)))
        names = {keys: found.in_a(keys[0]) for keys in theirs if keys and keys not in mine}
        self._leaves(place, mine, {_known(keys, names.get(keys, ""), mine): value for keys, value in theirs.items()})

    def _optimizer(self, one: Part, other: Part) -> None:
        found = pair_params(self.a, one, self.b, other)
        label = _label(one, other)
        if found.how:
            self.made.notes.append(f"{part_label(one)}: {found.how}")
        for each in found.pairs:
            place = _Place(
                (*_texts(one.keys), *_texts(place_of(each.a))),
                (*_texts(other.keys), *_texts(place_of(each.b))),
                (*label, "state", each.name),
                one.role,
            )
            self._trees(place, found.a.state.get(each.a, {}), found.b.state.get(each.b, {}))
        self._unpaired(one, other, found)
        self._groups(one, other, found)
        place = _Place(_texts(one.keys), _texts(other.keys), label, one.role)
        rest = [{key: value for key, value in part.node.items() if key not in _OPTIMIZER_KEYS} for part in (one, other)]
        self._trees(place, *rest)
        inner = _Place((*place.a, "state"), (*place.b, "state"), (*label, "state"), one.role)
        self._trees(inner, dict(found.a.unassigned), dict(found.b.unassigned))

    def _unpaired(self, one: Part, other: Part, found: ParamPairs) -> None:
        """State of parameters that one side alone has."""
        taken = ({each.a for each in found.pairs}, {each.b for each in found.pairs})
        for side, part, saved in ((0, one, found.a), (1, other, found.b)):
            for identity, entry in saved.state.items():
                if identity not in taken[side]:
                    keys = (*_texts(part.keys), *_texts(place_of(identity)))
                    self._leaves_alone(side, keys, part.role, flatten(entry, ""))

    def _groups(self, one: Part, other: Part, found: ParamPairs) -> None:
        """Options of the groups, by their number; and parameters that are in another group."""
        label, (mine, theirs) = _label(one, other), (found.a.groups, found.b.groups)
        where = key_text((*label, "param_groups"))
        if len(mine) != len(theirs):
            told = ValueDifference(where, "changed", count(len(mine), "group"), count(len(theirs), "group"), one.role)
            self._value(told, other.path)
        for i, groups in enumerate(zip(mine, theirs, strict=False)):
            inner = ("param_groups", str(i))
            place = _Place((*_texts(one.keys), *inner), (*_texts(other.keys), *inner), (*label, *inner), one.role)
            options = [{k: v for k, v in group.items() if k not in _GROUP_KEYS} for group in groups]
            self._trees(place, *options)
        moved = _moved(found.pairs, found)
        if moved and len(mine) == len(theirs):
            text = f"{count(len(moved), 'parameter')} in another group: {listing(moved)}"
            self._value(ValueDifference(where, "changed", text, "", one.role), other.path)

    def _alone(self, side: int, part: Part) -> None:
        """A part that the other side lacks: its tensors, or in few words what it is."""
        entries = self.held[side][id(part)]
        for entry in entries:
            self._only(side, _entry_leaf(entry))
        if not entries and self.limit.takes(side, part.path, part.role):
            text = f"{part.role} state, {count(len(flatten(part.node, '')), 'value')}"
            kind = "only-b" if side else "only-a"
            self.made.values.append(ValueDifference(part_label(part), kind, *_sided(side, text), part.role))

    def _beside(self, placed: Collection[int]) -> None:
        """Everything that stands in no part, and parts that are none on the other side, by its place."""
        sides = []
        for catalog in (self.a, self.b):
            parts = {id(part.node) for part in catalog.parts if part.role != "extra" and id(part) not in placed}
            sides.append(flatten(catalog.tree, catalog.path, without=parts))
        self._leaves(_Place((), (), (), "extra"), *sides)

    def _trees(self, place: _Place, one: Any, other: Any) -> None:
        self._leaves(place, flatten(one, self.a.path), flatten(other, self.b.path))

    def _leaves(self, place: _Place, mine: Mapping[Keys, Any], theirs: Mapping[Keys, Any]) -> None:
        for keys, value in mine.items():
            if keys in theirs:
                self._leaf(place, keys, value, theirs[keys])
        self._leaves_alone(0, place.a, place.role, {k: v for k, v in mine.items() if k not in theirs})
        self._leaves_alone(1, place.b, place.role, {k: v for k, v in theirs.items() if k not in mine})

    def _leaf(self, place: _Place, keys: Keys, one: Any, other: Any) -> None:
        name = _joined(place.name, keys)
        mine = leaf_of(_joined(place.a, keys), place.role, one)
        theirs = leaf_of(_joined(place.b, keys), place.role, other)
        if mine is None and theirs is not None and not theirs.shape:
            mine = number_leaf(_joined(place.a, keys), place.role, one)
        elif theirs is None and mine is not None and not mine.shape:
            theirs = number_leaf(_joined(place.b, keys), place.role, other)
        if mine is not None and theirs is not None:
            self._pair(name, mine, theirs)
            return
        found = value_difference(name, place.role, one, other)
        if found is not None:
            self._value(found, _joined(place.b, keys), _joined(place.a, keys))

    def _leaves_alone(self, side: int, keys: Keys, role: str, leaves: Mapping[Keys, Any]) -> None:
        for inner, value in leaves.items():
            path = _joined(keys, inner)
            leaf = leaf_of(path, role, value)
            if leaf is not None:
                self._only(side, leaf)
            elif self.limit.takes(side, path, role):
                kind = "only-b" if side else "only-a"
                text = _sided(side, value_text(value))
                self.made.values.append(ValueDifference(path, kind, *text, role))

    def _pair(self, name: str, one: Leaf, other: Leaf) -> None:
        if self.limit.takes(0, one.path, one.role) or self.limit.takes(1, other.path, other.role):
            self.made.pairs.append(TensorPair(name, one, other))

    def _only(self, side: int, leaf: Leaf) -> None:
        if self.limit.takes(side, leaf.path, leaf.role):
            (self.made.only_b if side else self.made.only_a).append(leaf)

    def _value(self, found: ValueDifference, path_b: str, path_a: str = "") -> None:
        if self.limit.takes(0, path_a or found.path, found.role) or self.limit.takes(1, path_b, found.role):
            self.made.values.append(found)


def _placed(a: Catalog, b: Catalog, left_a: Sequence[Part], left_b: Sequence[Part]) -> set[int]:
    """The ids of parts without a counterpart where the other side has something of no part, or of such a part too."""
    found: set[int] = set()
    for parts, others, other in ((left_a, left_b, b), (left_b, left_a, a)):
        inside = {id(part.node) for part in other.parts if part.role != "extra"}
        loose = [*flatten(other.tree, other.path, without=inside), *(_texts(part.keys) for part in others)]
        heads = {keys[:n] for keys in loose for n in range(len(keys) + 1)}
        found |= {id(part) for part in parts if _texts(part.keys) in heads}
    return found


def _values_of(part: Part, path: str) -> dict[Keys, Any]:
    """What is no tensor in a part, without the numbers of quantized ones, which go by the names of these."""
    leaves = flatten(part.node, path).items()
    return {keys: v for keys, v in leaves if not _is_tensor(v) and not any(key.startswith(QUANTIZER) for key in keys)}


def _known(keys: Keys, name: str, mine: Collection[Keys]) -> Keys:
    """Keys of b with the name that a has for the first of them, if that is where a has something."""
    return (name, *keys[1:]) if name and (name, *keys[1:]) in mine else keys


def _label(one: Part, other: Part) -> Keys:
    """What two parts are told under: where the first stands, or the other where the first is a whole file."""
    return _texts(one.keys) or _texts(other.keys)


def _entry_leaf(entry: TensorEntry) -> Leaf:
    return Leaf(entry.path, entry.role, entry.shape, entry.dtype, entry.device, entry.nbytes, entry.node)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, TensorNode | CompositeTensor) or leaf_of("", "", value) is not None


def _moved(pairs: Iterable[ParamPair], found: ParamPairs) -> list[str]:
    homes = [{identity: i for i, ids in enumerate(side.ids) for identity in ids} for side in (found.a, found.b)]
    return [each.name for each in pairs if homes[0].get(each.a) != homes[1].get(each.b)]


def _texts(keys: Iterable[Any]) -> Keys:
    return tuple(map(str, keys))


def _joined(place: Keys, keys: Keys) -> str:
    return key_text([key for key in (*place, *keys) if key])


def _sided(side: int, text: str) -> tuple[str, str]:
    return ("", text) if side else (text, "")
