"""Where each parameter lies in the flat tensors that ZeRO's ranks saved.

Pure: takes the inert trees of the files, answers runs of elements. Facts after DeepSpeed's own converter and optimizers
(0.6 to 0.19). A unit is what is flattened together: a parameter group (stages 1 and 2), or a part of one (stage 3).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any, Final

from unmoor.errors import CorruptFile, UnsupportedFile
from unmoor.values.flat import Slice, slices_of
from unmoor.values.nodes import Opaque, TensorNode, TorchValue, kind_of
from unmoor.values.text import count

__all__ = ["Layout", "Part", "Place", "shape_of"]

Part = Callable[[int, int], Any]
"""The flat tensor of a rank and a unit."""

_LIMIT: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Place:
    """Where a parameter lies.

    In stage 3 `start` counts elements of each rank's share, through all its units; else elements of the unit, through
    the shares of all ranks.
    """

    unit: int
    shape: tuple[int, ...]
    start: int


def shape_of(value: Any) -> tuple[int, ...]:
    """A torch.Size of a file as a tuple."""
    sizes = value.value if type(value) is TorchValue and value.kind == "size" else value
    if type(sizes) not in (tuple, list) or not all(type(n) is int and 0 <= n < _LIMIT for n in sizes):
        raise CorruptFile("a model file of DeepSpeed gives a parameter a shape that is none")
    return tuple(sizes)


def _is_flat(node: Any) -> bool:
    return type(node) is TensorNode and len(node.shape) == 1


class Layout:
    """The layout of one folder. `states` are the optimizer states of the ranks, `shapes` the model file's own.

    Raises CorruptFile where the files do not say how parameters were flattened.
    """

    def __init__(self, path: str, states: Sequence[Mapping[str, Any]], shapes: Any) -> None:
        self.path, self.states, self.world = path, states, len(states)
        self.stage = _stage(path, states[0])
        key = "fp32_flat_groups" if self.stage == 3 else "single_partition_of_fp32_groups"
        self._masters = [_list(state.get(key)) for state in states]
        self._shapes = [
            {str(name): shape_of(size) for name, size in unit.items()}
            for unit in _list(shapes)
            if isinstance(unit, Mapping)
        ]
        self.units = len(self._masters[0])
        if not self.units or not self._shapes or any(len(masters) != self.units for masters in self._masters):
            raise CorruptFile(f"{path}: the files of DeepSpeed do not say how parameters are flattened", path=path)
        if self.stage < 3 and len(self._shapes) != self.units:
            what = f"{count(len(self._shapes), 'group')} of parameters, and flat weights of {self.units}"
            raise CorruptFile(f"{path}: the files of DeepSpeed have {what}", path=path)
        self.places = dict(self._shares() if self.stage == 3 else self._runs())
        self._addresses = {} if self.stage == 3 else dict(self._mapped())

    def master(self, rank: int, unit: int) -> Any:
        """The flat fp32 weights of one unit on one rank."""
        return self._masters[rank][unit]

    def state(self, rank: int, unit: int) -> Mapping[str, Any]:
        """The optimizer's state of one unit on one rank; empty where it never took a step."""
        base = self._base(rank)
        entries = base.get("state") if isinstance(base, Mapping) else dict(enumerate(_list(base)))
        entry = entries.get(unit) if isinstance(entries, Mapping) else None
        return entry if isinstance(entry, Mapping) else {}

    def groups(self) -> Iterator[tuple[dict[str, Any], list[int]]]:
        """Options and units of every parameter group. Elastic files have no options, but for the step."""
        base = self._base(0)
        groups = [g for g in _list(base.get("param_groups")) if isinstance(g, Mapping)] if _is_dict(base) else []
        for group in groups:
            options = {str(key): value for key, value in group.items() if key != "params"}
            yield options, [unit for unit in _list(group.get("params")) if type(unit) is int]
        if not groups:
            step = self.states[0].get("base_optimizer_state_step")
            for unit in range(self.units):
                yield ({} if step is None else {"step": step}), [unit]

    def slices(self, name: str, part: Part) -> list[Slice]:
        """Where the flattened elements of a parameter lie, one run behind the other; fewer where some are missing."""
        place = self.places[name]
        total = prod(place.shape)
        if self.stage == 3:
            return list(self._slices_of_shares(place, total, part))
        if name in self._addresses:
            parts = [(part(rank, place.unit), start, stop) for rank, start, stop in self._addresses[name]]
            return [Slice(node, start, stop) for node, start, stop in parts if _is_flat(node) and stop <= node.shape[0]]
        return slices_of([part(rank, place.unit) for rank in range(self.world)], place.start, place.start + total)

    def _base(self, rank: int) -> Any:
        return self.states[rank].get("optimizer_state_dict" if self.stage == 3 else "base_optimizer_state")

    def paddings(self) -> list[list[int]]:
        """How many elements stand behind each parameter of each unit: 0, unless parameters are aligned."""
        saved = _list(self.states[0].get("param_alignment_paddings"))
        if [len(_list(unit)) for unit in saved] != list(map(len, self._shapes)):
            return [[0] * len(shapes) for shapes in self._shapes]
        return [[n if type(n) is int and 0 <= n < _LIMIT else 0 for n in unit] for unit in saved]

    def _runs(self) -> Iterator[tuple[str, Place]]:
        """One parameter behind the other in each unit."""
        for unit, (shapes, paddings) in enumerate(zip(self._shapes, self.paddings(), strict=True)):
            start = 0
            for (name, shape), padding in zip(shapes.items(), paddings, strict=True):
                yield name, Place(unit, shape, start)
                start += prod(shape) + padding

    def _shares(self) -> Iterator[tuple[str, Place]]:
        """An even share of each parameter on every rank, the last one padded."""
        sizes = [node.shape[0] if _is_flat(node) else 0 for node in self._masters[0]]
        ends = list(accumulate(sizes))
        start = 0
        for shapes in self._shapes:
            for name, shape in shapes.items():
                yield name, Place(min(bisect_right(ends, start), self.units - 1), shape, start)
                start += -(-prod(shape) // self.world)

    def _slices_of_shares(self, place: Place, total: int, part: Part) -> Iterator[Slice]:
        share = -(-total // self.world)
        for rank in range(self.world):
            wanted = max(0, min(share, total - rank * share))
            nodes = [part(rank, unit) for unit in range(self.units)]
            yield from slices_of(nodes, place.start, place.start + wanted)

    def _mapped(self) -> Iterator[tuple[str, list[tuple[int, int, int]]]]:
        """Parameter -> (rank, first element, past the last) of its runs, where the files say so themselves.

        Parameters may be padded one by one, which in many versions only these maps tell. With round_robin_gradients
        they are of an order in which the data is not, and the shapes are of the one in which it is.
        """
        maps = [_list(state.get("param_slice_mappings")) for state in self.states]
        if any(len(units) != self.units for units in maps) or not all(map(self._in_order, range(self.units))):
            return
        for name, place in self.places.items():
            runs = [(rank, *run) for rank, units in enumerate(maps) if (run := _address(units[place.unit], name))]
            if runs:
                yield name, runs

    def _in_order(self, unit: int) -> bool:
        """Whether the maps name the parameters of a unit in the order of their shapes."""
        told: list[str] = []
        for state in self.states:
            names = state["param_slice_mappings"][unit]
            runs = {name: run for name in names if (run := _address(names, name))} if _is_dict(names) else {}
            told += sorted(runs, key=lambda name: runs[name])
        known = {name: place for place, name in enumerate(self._shapes[unit])}
        order = [known.get(name, -1) for name in told]
        return order == sorted(order)


def _address(names: Any, name: str) -> tuple[int, int] | None:
    """First element and past the last of a parameter in a rank's share of a unit."""
    address = names.get(name) if isinstance(names, Mapping) else None
    fields = address.state if type(address) is Opaque and type(address.state) is dict else {}
    start, numel = fields.get("start"), fields.get("numel")
    if type(start) is not int or type(numel) is not int or start < 0 or numel <= 0:
        return None
    return start, start + numel


def _is_dict(value: Any) -> bool:
    return isinstance(value, Mapping)


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _stage(path: str, state: Mapping[str, Any]) -> int:
    stage = state.get("zero_stage")
    number = stage.args[0] if type(stage) is Opaque and len(stage.args) == 1 else stage
    if number is None:
        return 3 if "fp32_flat_groups" in state else 1
    if type(number) is not int or not 1 <= number <= 3:
        raise UnsupportedFile(
            f"{path} is of a ZeRO stage that is not known: {number if type(number) is int else kind_of(number)}",
            path=path,
        )
    return number
