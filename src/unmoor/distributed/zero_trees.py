"""What the files of a DeepSpeed checkpoint hold for another number of ranks: the trees of all files, data still stored.

The trees are the inert ones of `describe`; everything that is no share of a parameter stays as it was saved. Tensors
that were cut anew are chunks of the saved shares; elements that no chunk holds are padding, and zero.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from math import prod
from typing import Any, Final

from unmoor.describe.storages import storages_of
from unmoor.describe.zero_files import Ranks
from unmoor.describe.zero_layout import Layout, shape_of
from unmoor.errors import UnsupportedFile
from unmoor.plan.zero_cuts import Cut, FlatCut, Run, ShareCut, round_robin, sub_groups, unmixed
from unmoor.values.dtypes import DTYPES
from unmoor.values.flat import slices_of
from unmoor.values.nodes import Chunk, Opaque, Storage, TensorNode
from unmoor.values.text import count

__all__ = ["ZeroTrees", "model_trees"]

_SUB_GROUP_SIZE: Final = 1_000_000_000
_MASTERS: Final = {3: "fp32_flat_groups"}
_STATES: Final = {3: "optimizer_state_dict"}
_CUT: Final = ("param_slice_mappings", "group_paddings", "partition_count")
_FRAGMENT: Final = "deepspeed.utils.tensor_fragment.fragment_address"


class ZeroTrees:
    """The optimizer files of `ranks` ranks, made of those of a folder.

    Raises UnsupportedFile where the saved shares are not cut as this knows it, or other tensors are cut by ranks.
    """

    def __init__(self, path: str, saved: Ranks, layout: Layout, ranks: int) -> None:
        self.path, self.saved, self.layout, self.ranks = path, saved, layout, ranks
        self.old, self.new = self._cuts()
        self._check_sizes()
        self._refuse_others()

    def trees(self) -> Iterator[Mapping[str, Any]]:
        """The tree of each rank's file, in order."""
        files = self.saved.optimizers
        for rank in range(self.ranks):
            tree = files[rank if rank < len(files) else 0].tree
            yield {**tree, "optimizer_state_dict": self._state_dict(rank, tree["optimizer_state_dict"])}

    def shapes(self) -> list[dict[str, Any]]:
        """What the model files say of the parameters in each unit, as it is written there."""
        known = {name: size for unit in self._param_shapes for name, size in unit.items()}
        return [{name: known[name] for name in names} for names in self.new.units]

    @cached_property
    def _param_shapes(self) -> list[Mapping[str, Any]]:
        return [unit for unit in self.saved.models[0].tree["param_shapes"] if isinstance(unit, Mapping)]

    def _cuts(self) -> tuple[Cut, Cut]:
        """How parameters are cut by the ranks that saved, and by those that will load."""
        units = [[str(name) for name in unit] for unit in self._param_shapes]
        sizes = {name: prod(place.shape) for name, place in self.layout.places.items()}
        world = self.layout.world
        if self.layout.stage == 3:
            most = _number(self._setting("sub_group_size"), _SUB_GROUP_SIZE)
            groups = [[name for unit in own for name in units[unit]] for _, own in self.layout.groups()]
            old = [made for names in groups for made in sub_groups(names, sizes, world, most)]
            new = [made for names in groups for made in sub_groups(names, sizes, self.ranks, most)]
            if old != units:
                raise self._unknown(f"{count(len(units), 'sub-group')}, where sub_group_size {most:,} gives {len(old)}")
            return ShareCut(world, units, sizes), ShareCut(self.ranks, new, sizes)
        paddings = self.layout.paddings()
        mixed = self._setting("round_robin_gradients") is True
        if mixed and any(map(any, paddings)):
            raise self._unknown("parameters both aligned and in round robin order")
        order = [round_robin(unmixed(unit, world), self.ranks) if mixed else unit for unit in units]
        return FlatCut(world, units, sizes, paddings), FlatCut(self.ranks, order, sizes, paddings)

    def _setting(self, name: str) -> Any:
        """What the run's configuration says of ZeRO."""
        config = self.saved.models[0].tree.get("ds_config")
        zero = config.get("zero_optimization") if isinstance(config, Mapping) else None
        return zero.get(name) if isinstance(zero, Mapping) else None

    def _unknown(self, what: str) -> UnsupportedFile:
        return UnsupportedFile(
            f"{self.path} cannot be cut for {count(self.ranks, 'rank')}: its shares are laid out in a way that is not "
            f"known, {what}",
            remedy="Convert it with DeepSpeed's ds_to_universal.py, and load that with load_universal_checkpoint.",
            path=self.path,
        )

    def _check_sizes(self) -> None:
        """Hold the sizes of all saved shares against those that this cut gives, and where parameters begin in them."""
        for unit in range(self.layout.units):
            for rank in range(self.layout.world):
                found = getattr(self.layout.master(rank, unit), "shape", None)
                size, padding = self.old.size(unit), self.old.padding(unit, rank)
                if found not in ((size,), (size - padding,)):
                    held = f"{found[0]:,} elements" if found else "none"
                    raise self._unknown(f"rank {rank} holds {held} of group {unit} where {size:,} were expected")
        for name in self.layout.places:
            slices = [(part.start, part.stop) for part in self.layout.slices(name, self.layout.master)]
            if slices != [(run.start, run.start + run.last - run.first) for _, _, run in self._saved_runs[name]]:
                raise self._unknown(f"{name} begins where it was not expected")

    def _refuse_others(self) -> None:
        """Raise for tensors that are neither weights nor optimizer state: how ranks share them is not known."""
        known = {self._masters, self._states, *_CUT}
        for state in self.layout.states:
            odd = [key for key, value in state.items() if key not in known and any(True for _ in storages_of(value))]
            odd += ["ds_zero_partition_groups"] if state.get("ds_zero_partition_groups") else []
            if odd:
                raise self._unknown(f"{odd[0]} holds what ranks share in a way of their own")

    @property
    def _masters(self) -> str:
        return _MASTERS.get(self.layout.stage, "single_partition_of_fp32_groups")

    @property
    def _states(self) -> str:
        return _STATES.get(self.layout.stage, "base_optimizer_state")

    @cached_property
    def _saved_runs(self) -> dict[str, list[tuple[int, int, Run]]]:
        """Parameter -> rank, unit and run of each of its pieces in the saved shares, in the order of its elements."""
        found: dict[str, list[tuple[int, int, Run]]] = {name: [] for name in self.layout.places}
        for unit in range(len(self.old.units)):
            for rank in range(self.old.ranks):
                for run in self.old.runs(unit, rank):
                    found[run.name].append((rank, unit, run))
        return found

    @cached_property
    def _lean_weights(self) -> bool:
        """Whether weights were saved without the padding at their end; DeepSpeed loads either where nothing tells."""
        usual = self.layout.stage < 3 and "zero_stage" in self.layout.states[0]
        return self._is_lean(self.layout.master, usual)

    @cached_property
    def _lean_state(self) -> bool:
        usual = not isinstance(self.layout.states[0][self._states], Mapping)
        return self._is_lean(self._any_flat, usual)

    def _any_flat(self, rank: int, unit: int) -> TensorNode | None:
        nodes = self.layout.state(rank, unit).values()
        return next((node for node in nodes if type(node) is TensorNode and len(node.shape) == 1), None)

    def _is_lean(self, part: Callable[[int, int], Any], usual: bool) -> bool:  # noqa: FBT001
        """Whether the shares of a kind lack the padding at their end; `usual` where none has any."""
        told = [
            part(rank, unit).shape[0] < self.old.size(unit)
            for unit in range(self.layout.units)
            for rank in range(self.layout.world)
            if self.old.padding(unit, rank) and part(rank, unit) is not None
        ]
        return any(told) if told else usual

    def _state_dict(self, rank: int, saved: Mapping[str, Any]) -> dict[str, Any]:
        units = range(len(self.new.units))
        made = {**saved, self._states: self._base(rank, saved[self._states])}
        made[self._masters] = [
            self._share(rank, unit, self.layout.master, f"rank {rank}, weights {unit}", lean=self._lean_weights)
            for unit in units
        ]
        if "partition_count" in saved:
            counts = saved["partition_count"]
            made["partition_count"] = [self.ranks] * len(counts) if isinstance(counts, list | tuple) else self.ranks
        if "group_paddings" in saved:
            made["group_paddings"] = [self._told_padding(unit, rank) for unit in units]
        if "param_slice_mappings" in saved:
            made["param_slice_mappings"] = [self._mapping(rank, unit) for unit in units]
        return made

    def _told_padding(self, unit: int, rank: int) -> int:
        """The padding as the files tell it: the optimizer for bfloat16 counts all of it as the last rank's."""
        if "zero_stage" in self.layout.states[0]:
            return self.new.padding(unit, rank)
        return sum(self.new.padding(unit, other) for other in range(self.ranks)) if rank == self.ranks - 1 else 0

    def _mapping(self, rank: int, unit: int) -> dict[str, Opaque]:
        """Where parameters lie in a share: parameter -> fragment_address, in the order of the group."""
        return OrderedDict(
            (run.name, Opaque(_FRAGMENT, how="new", state={"numel": run.last - run.first, "start": run.start}))
            for run in self.new.runs(unit, rank)
        )

    def _base(self, rank: int, saved: Any) -> Any:
        """The optimizer's state, in the form in which it was saved: of torch's own, or a list without paddings."""
        states = [self._unit_state(rank, unit) for unit in range(len(self.new.units))]
        if not isinstance(saved, Mapping):
            return states
        numbers = iter(range(len(states)))
        groups = [
            {**group, "params": [next(numbers) for _ in range(own)]}
            for group, own in zip(saved["param_groups"], self._units_of_groups(), strict=True)
        ]
        return {**saved, "state": {n: state for n, state in enumerate(states) if state}, "param_groups": groups}

    def _units_of_groups(self) -> list[int]:
        """How many units each parameter group has now."""
        old = [{name for unit in own for name in self.old.units[unit]} for _, own in self.layout.groups()]
        return [sum(unit[0] in names for unit in self.new.units) for names in old]

    def _unit_state(self, rank: int, unit: int) -> dict[str, Any]:
        """The state of one flat tensor; what is no share is rank 0's, for all ranks have it alike."""
        made: dict[str, Any] = {}
        for key, value in self.layout.state(0, self._first_unit(unit)).items():
            where = f"rank {rank}, {key} {unit}"
            if type(value) is not TensorNode or value.storage is None:
                made[key] = value
            elif value.shape in ((), (1,)):
                made[key] = replace(value, storage=replace(value.storage, key=where))
            else:
                made[key] = self._share(rank, unit, partial(self._state_part, key), where, lean=self._lean_state)
        return made

    def _state_part(self, key: str, rank: int, unit: int) -> TensorNode:
        node = self.layout.state(rank, unit).get(key)
        size, padding = self.old.size(unit), self.old.padding(unit, rank)
        if type(node) is not TensorNode or node.shape not in ((size,), (size - padding,)):
            raise self._unknown(f"state {key!r} of rank {rank} is not one number for each element")
        return node

    def _first_unit(self, unit: int) -> int:
        """A saved unit that holds parameters of a new one."""
        return next(self._saved_runs[name][0][1] for name in self.new.units[unit] if self._saved_runs[name])

    def _share(
        self, rank: int, unit: int, part: Callable[[int, int], TensorNode], where: str, *, lean: bool
    ) -> TensorNode:
        """What a rank has of a unit, out of what the saved ranks have; without the padding at its end where `lean`."""
        size = self.new.size(unit) - (self.new.padding(unit, rank) if lean else 0)
        like = part(0, self._first_unit(unit))
        chunks = []
        for run in self.new.runs(unit, rank):
            for old, old_unit, piece in self._pieces(run):
                node, low, high = part(old, old_unit), max(run.first, piece.first), min(run.last, piece.last)
                offset = node.offset + (piece.start + low - piece.first) * node.stride[0]
                window = replace(node, offset=offset, shape=(high - low,))
                chunks.append(Chunk((run.start + low - run.first,), window))
        nbytes = size * DTYPES[like.dtype].itemsize
        storage = Storage(where, like.dtype, nbytes, like.device, None, None, shape=(size,), chunks=tuple(chunks))
        return TensorNode(storage, 0, (size,), (1,), like.dtype, like.device, like.requires_grad, like.parameter)

    def _pieces(self, run: Run) -> Iterator[tuple[int, int, Run]]:
        """The saved pieces that hold the elements of a run, in order."""
        saved = self._saved_runs[run.name]
        at = bisect_right(saved, run.first, key=lambda item: item[2].first) - 1
        while at < len(saved) and saved[at][2].first < run.last:
            yield saved[at]
            at += 1


def model_trees(path: str, saved: Ranks, shapes: Sequence[Mapping[str, Any]], ranks: int) -> Iterator[dict[str, Any]]:
    """The tree of each model file of `ranks` ranks: one in all, or one for each rank with stage 3.

    `shapes` are those of the parameters in each unit, as ranks of that number have them.
    """
    files = saved.models
    for rank in range(ranks if len(files) > 1 or files[0].each else 1):
        tree = files[rank if rank < len(files) else 0].tree
        made = {**tree, "dp_world_size": ranks}
        if tree.get("param_shapes") is not None:
            made["param_shapes"] = [OrderedDict(unit) for unit in shapes]
        fragments = tree.get("frozen_param_fragments")
        if isinstance(fragments, Mapping) and files[0].each:
            made["frozen_param_fragments"] = _frozen(path, saved, rank, ranks)
        yield made


def _frozen(path: str, saved: Ranks, rank: int, ranks: int) -> dict[str, TensorNode]:
    """A rank's even share of each frozen parameter, padded."""
    shares = [file.tree["frozen_param_fragments"] for file in saved.models]
    sizes = {name: prod(shape_of(size)) for name, size in saved.models[0].tree["frozen_param_shapes"].items()}
    made: dict[str, TensorNode] = OrderedDict()
    for name, size in sizes.items():
        share, nodes = -(-size // ranks), [own[name] for own in shares]
        low, high = min(size, rank * share), min(size, (rank + 1) * share)
        chunks, position = [], 0
        for part in slices_of(nodes, low, high):
            window = replace(part.node, offset=part.node.offset + part.start * part.node.stride[0],
                             shape=(part.stop - part.start,))  # fmt: skip
            chunks.append(Chunk((position,), window))
            position += part.stop - part.start
        if position < high - low:
            raise UnsupportedFile(
                f"{path}: the shares of the frozen {name} do not make up its {size:,} elements", path=path
            )
        like = nodes[0]
        nbytes = share * DTYPES[like.dtype].itemsize
        where = f"rank {rank}, frozen {name}"
        storage = Storage(where, like.dtype, nbytes, like.device, None, None, shape=(share,), chunks=tuple(chunks))
        made[name] = replace(like, storage=storage, offset=0, shape=(share,), stride=(1,))
    return made


def _number(value: Any, default: int) -> int:
    return int(value) if type(value) in (int, float) else default
