"""State that an optimizer keeps of FlatParameters of FSDP1, by parameter.

Without use_orig_params there is one state for each FlatParameter: it is cut, and named by the parameters. With it there
is one for each parameter, flat, which lacks its shape alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count as count_from
from math import prod
from typing import Any, Final

from unmoor.values.catalog import Part
from unmoor.values.flat import cut, joined
from unmoor.values.nodes import TensorNode
from unmoor.values.target import TargetOptimizer
from unmoor.values.text import count, listing

from .flat_shard import shard_fault
from .flat_units import Param, Unit, fits, single_unit
from .policy import Fault

__all__ = ["cut_optimizer"]

_REMEDY: Final = "restore into the model and optimizer that were saved"
_BESIDE: Final = "put the model's files of all ranks beside it"


def cut_optimizer(
    path: str, part: Part, optimizer: TargetOptimizer, units: Sequence[Unit], order: Sequence[str]
) -> Part | Fault | None:
    """The part by parameter; None for state that is not flat.

    `units` are the FlatParameters of the file's own model, in its order; `order` are the names of its parameters.
    """
    saved = _take_apart(part, optimizer)
    if saved is None or not saved.is_flat(sure="flat_ranks" in part.detail):
        return None
    made = saved.by_parameter(order) if saved.count == saved.live_count else None
    if not isinstance(made, dict) and (units or saved.count == 1):
        made = saved.by_unit(units, order)
    if isinstance(made, dict):
        params = sum(len(group["params"]) for group in made["param_groups"])
        return replace(part, node=made, detail={**part.detail, "params": params})
    if "flat_ranks" not in part.detail:
        held, total = saved.elements(), sum(prod(shape) for group in saved.live for _, shape in group)
        return shard_fault(path, optimizer.label, "", held, total) if held < total else None
    text = f"the state of {count(saved.count, 'FlatParameter')}, and no model is beside it that tells what is in them"
    return Fault(
        "mismatch", optimizer.label, made or text, _REMEDY if made else "put the model's files of all ranks there"
    )


@dataclass(frozen=True, slots=True)
class _Saved:
    """A saved optimizer: `ids` by group and the state by id; `live` are the parameters of the live one by group.

    A live parameter without a name goes by a number, in the order of the live optimizer.
    """

    node: Mapping[str, Any]
    ids: tuple[tuple[Any, ...], ...]
    live: tuple[tuple[Param, ...], ...]
    ranks: int

    @property
    def count(self) -> int:
        return sum(map(len, self.ids))

    @property
    def live_count(self) -> int:
        return sum(map(len, self.live))

    def state(self, identity: Any) -> Mapping[str, Any]:
        entry = self.node["state"].get(identity)
        return entry if isinstance(entry, Mapping) else {}

    def elements(self) -> int:
        """How many elements there is state of."""
        return sum(max((n.numel for _, n in _flats(self.state(i))), default=0) for ids in self.ids for i in ids)

    def is_flat(self, *, sure: bool) -> bool:
        """Whether all state is flat; where that is not `sure`, whether it cannot be the live parameters' own."""
        entries = [self.state(identity) for ids in self.ids for identity in ids]
        tensors = [node for entry in entries for node in entry.values() if isinstance(node, TensorNode)]
        if not any(len(node.shape) == 1 for node in tensors) or any(len(node.shape) > 1 for node in tensors):
            return False
        if sure or self.count < self.live_count:
            return True
        shapes = [shape for group in self.live for _, shape in group]
        paired = zip(entries, shapes, strict=False) if self.count == self.live_count else ()
        return any(len(shape) > 1 and next(_flats(entry), None) for entry, shape in paired)

    def by_parameter(self, order: Sequence[str]) -> dict[str, Any] | str:
        """State of one flat tensor for each parameter, in its shape; or why it is not that."""
        faults = []
        for readings in (self._in_order(order), list(self._live_order())):
            pairs = [(identity, param) for ids, params in readings for identity, param in zip(ids, params, strict=True)]
            if len(pairs) == self.count:
                wrong = [text for identity, param in pairs if (text := self._misfit(identity, param))]
                if not wrong:
                    return self._shaped(pairs)
                faults += wrong
        return listing(faults, 3) if faults else "its groups are not those of the live optimizer"

    def by_unit(self, units: Sequence[Unit], order: Sequence[str]) -> dict[str, Any] | str:
        """State of one flat tensor for each FlatParameter, cut; or why it is not that."""
        known = {name for group in self.live for name, _ in group}
        own = [unit for unit in units if any(name in known for name, _ in unit.params)]
        if not own:
            single = self._single(order)
            if isinstance(single, str):
                return single
            own = [single]
        groups = self._units_of_groups(own)
        if [len(group) for group in groups] != [len(ids) for ids in self.ids]:
            lengths = " and ".join(str(len(ids)) for ids in self.ids)
            return f"its groups hold {lengths} FlatParameters, those of the live parameters {len(own)}"
        pairs = [pair for ids, group in zip(self.ids, groups, strict=True) for pair in zip(ids, group, strict=True)]
        wrong = [text for identity, unit in pairs if (text := self._unfit(identity, unit))]
        if wrong:
            return listing(wrong, 3)
        state = {name: entry for identity, unit in pairs for name, entry in self._cut(identity, unit) if entry}
        names = [[name for unit in group for name, _ in unit.params] for group in groups]
        return self._named(state, names)

    def _in_order(self, order: Sequence[str]) -> list[tuple[tuple[Any, ...], list[Param]]]:
        """Ids and parameters of each group, those in the order of the file's model."""
        places = {name: place for place, name in enumerate(order)}
        if not all(name in places for group in self.live for name, _ in group):
            return []
        grouped = [sorted(group, key=lambda param: places[param[0]]) for group in self.live]
        if [len(group) for group in grouped] == [len(ids) for ids in self.ids]:
            return list(zip(self.ids, grouped, strict=True))
        if len(self.ids) > 1:
            return []
        return [(self.ids[0], sorted((p for group in self.live for p in group), key=lambda param: places[param[0]]))]

    def _live_order(self) -> Iterator[tuple[tuple[Any, ...], list[Param]]]:
        yield tuple(i for ids in self.ids for i in ids), [param for group in self.live for param in group]

    def _misfit(self, identity: Any, param: Param) -> str:
        for key, node in _flats(self.state(identity)):
            if node.numel != prod(param[1]):
                return f"{key} of {identity} has {count(node.numel, 'element')}, the live {param[0]} {prod(param[1]):,}"
        return ""

    def _unfit(self, identity: Any, unit: Unit) -> str:
        for key, node in _flats(self.state(identity)):
            if not fits(unit, node.numel, self.ranks):
                return f"{key} of {identity} has {count(node.numel, 'element')}, {unit.name} {unit.total:,}"
        return ""

    def _shaped(self, pairs: Sequence[tuple[Any, Param]]) -> dict[str, Any]:
        key_of = {identity: name for identity, (name, _) in pairs}
        shapes = {identity: shape for identity, (_, shape) in pairs}
        state = {
            key_of[identity]: {key: _reshaped(value, shape) for key, value in self.state(identity).items()}
            for identity, shape in shapes.items()
            if self.state(identity)
        }
        return self._named(state, [[key_of[identity] for identity in ids] for ids in self.ids])

    def _named(self, state: Mapping[Any, Any], names: Sequence[Sequence[Any]]) -> dict[str, Any]:
        groups = [
            {**{key: value for key, value in group.items() if key != "param_names"}, "params": list(params)}
            for group, params in zip(self.node["param_groups"], names, strict=True)
        ]
        return {**self.node, "state": state, "param_groups": groups}

    def _single(self, order: Sequence[str]) -> Unit | str:
        """The one FlatParameter of all live parameters, in the order of the model where that is known."""
        places = {name: place for place, name in enumerate(order)}
        params = [param for group in self.live for param in group]
        params.sort(key=lambda param: places.get(param[0], -1))
        total = max((node.numel for _, node in _flats(self.state(self.ids[0][0]))), default=0)
        return single_unit("its FlatParameter", total, params, self.ranks)

    def _units_of_groups(self, units: Sequence[Unit]) -> list[list[Unit]]:
        """The units of each group: by the groups of the live optimizer, or one behind the other."""
        if len(self.ids) == len(self.live) > 1:
            names = [{name for name, _ in group} for group in self.live]
            return [[unit for unit in units if unit.params[0][0] in own] for own in names]
        left = list(units)
        made = []
        for ids in self.ids:
            made.append(left[: len(ids)])
            left = left[len(ids) :]
        return [*made, left] if left else made

    def _cut(self, identity: Any, unit: Unit) -> Iterator[tuple[str, dict[str, Any]]]:
        """Name and state of each parameter of a unit; a counter is copied, for each has its own."""
        for (name, shape), start in zip(unit.params, unit.starts, strict=True):
            made = {}
            for key, value in self.state(identity).items():
                if isinstance(value, TensorNode) and value.storage is not None:
                    where = f"{value.storage.key}/{name}"
                    flat = len(value.shape) == 1
                    made[key] = cut(where, _whole(value), start, shape) if flat else _copied(value, where)
                else:
                    made[key] = value
            yield name, made


def _take_apart(part: Part, optimizer: TargetOptimizer) -> _Saved | None:
    node = part.node if isinstance(part.node, Mapping) else {}
    groups = node.get("param_groups")
    if not isinstance(groups, list | tuple) or not groups or not isinstance(node.get("state"), Mapping):
        return None
    ids = tuple(tuple(group["params"]) for group in groups)
    numbers = count_from(0)
    live = tuple(
        tuple((param.name or next(numbers), param.shape) for param in group.params) for group in optimizer.groups
    )
    return _Saved(node, ids, live, int(part.detail.get("flat_ranks", 1)))


def _flats(entry: Mapping[str, Any]) -> Iterator[tuple[str, TensorNode]]:
    return ((k, node) for k, node in entry.items() if isinstance(node, TensorNode) and len(node.shape) == 1)


def _whole(node: TensorNode) -> TensorNode:
    """A flat tensor as tensors end to end, which can be cut."""
    return node if node.storage is None or node.storage.chunks else joined(node.storage.key, [node])


def _reshaped(value: Any, shape: tuple[int, ...]) -> Any:
    flat = isinstance(value, TensorNode) and len(value.shape) == 1 and value.shape != shape
    return cut(f"{value.storage.key}/whole", _whole(value), 0, shape) if flat and value.storage is not None else value


def _copied(value: TensorNode, where: str) -> TensorNode:
    return replace(value, storage=replace(value.storage, key=where)) if value.storage is not None else value
