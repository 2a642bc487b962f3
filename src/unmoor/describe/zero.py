"""DeepSpeed's ZeRO folders as one whole: fp32 weights and optimizer state by parameter name, out of flat partitions.

Each rank keeps an even share of every parameter group's flattened fp32 weights and of the optimizer's moments, with
padding at the end (stages 1 and 2); or an even share of each flattened parameter (stage 3). Nothing of DeepSpeed's is
imported or run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Final

from unmoor.errors import CorruptFile
from unmoor.values.catalog import Catalog
from unmoor.values.finding import Finding
from unmoor.values.flat import Slice, chunks_of, slices_of
from unmoor.values.nodes import Chunk, TensorNode
from unmoor.values.pausing import collector_paused
from unmoor.values.text import count, listing

from .assemble import Contents, assemble
from .chunks import empty_tensor, whole_tensor
from .outline import Outline
from .storages import storages_of
from .zero_files import Ranks, find_step, plain_state, read_ranks
from .zero_layout import Layout, Part, shape_of

__all__ = ["describe_zero", "layout_of"]

_SHOWN: Final = 12
_PER_TENSOR: Final = 64
"""Visits that a walk over the tree may cost for each tensor that is put together."""
_COPY: Final = "module_16bit"
_HALF: Final = ("bfloat16", "float16")
_LAYOUT: Final = frozenset({
    "module", "optimizer", "param_shapes", "buffer_names", "frozen_param_shapes", "frozen_param_fragments",
    "shared_params", "data_sampler", "random_ltd", "sparse_tensor_module_names",
})  # fmt: skip
"""Keys of a model file that tell of its own layout, or that are read into parts of the tree."""


def describe_zero(path: str) -> Catalog:
    """What a DeepSpeed folder holds: {"model", "optimizer", ...} with whole tensors, whatever the world size.

    "model" has the fp32 master weights, which are exact, beside frozen weights and buffers as they were saved. The
    16-bit copy that training computed with stands under "module_16bit". "optimizer" has the form of torch's own state
    dicts, by parameter name. Without a ZeRO stage the tree is that of the one model file.

    Raises NotACheckpoint, CorruptFile naming ranks and parameters whose data is missing, UnsupportedFile for models
    that tensor, pipeline or expert parallelism cut.
    """
    with collector_paused():
        step = find_step(path)
        return _described(path, step, read_ranks(path, step))


def _described(path: str, step: str, ranks: Ranks) -> Catalog:
    files = [*ranks.models, *ranks.optimizers]
    faults = {key: f"{file.file}: {why}" for file in files for key, why in file.saved.faults.items()}
    stage, tree = 0, dict(ranks.models[0].tree)
    if ranks.optimizers:
        merge = _Merge(path, ranks, layout_of(path, ranks))
        stage, tree = merge.layout.stage, merge.tree()
        faults |= {copy: faults[key] for copy, key in merge.copied.items() if key in faults}
    else:
        _refuse_stubs(path, ranks)
    readings = [file.saved.reading for file in files]
    storages = {storage.key: storage for storage in storages_of(tree)}
    contents = Contents(
        format="deepspeed",
        tree=tree,
        readings=readings,
        structure=sum(reading.nbytes for reading in readings) + _PER_TENSOR * len(storages),
        storages=storages,
        faults=faults,
        facts={
            "files": [file.file for file in files],
            "step": step,
            "world_size": max(1, len(ranks.optimizers)),
            "stage": stage,
        },
    )
    catalog = assemble(Outline(path, sum(file.size for file in files)), contents)
    return replace(catalog, dialect="deepspeed", findings=(*_absent_optimizer(ranks), *catalog.findings))


def _absent_optimizer(ranks: Ranks) -> list[Finding]:
    """What to say where a ZeRO stage was on, and the files with master weights and optimizer state are not there."""
    if ranks.optimizers or not ranks.models[0].tree.get("param_shapes"):
        return []
    message = "no file of a rank's optimizer state is here: the weights are the copy that training computed with"
    return [Finding("lacks-files", "warning", "", message, "copy the files ending in _optim_states.pt of every rank")]


def _refuse_stubs(path: str, ranks: Ranks) -> None:
    """Raise CorruptFile where the weights are in optimizer files that are not there: stage 3 leaves empty tensors."""
    shapes = ranks.models[0].tree.get("param_shapes")
    units = shapes if isinstance(shapes, list | tuple) else [shapes]
    module = _mapping(ranks.models[0].tree.get("module"))
    sizes = {name: size for unit in units for name, size in _mapping(unit).items()}
    stubs = [n for n, size in sizes.items() if 0 not in shape_of(size) and 0 in getattr(module.get(n), "shape", ())]
    if stubs:
        raise CorruptFile(
            f"{path} lacks the optimizer files of its ranks, and the weights of {count(len(stubs), 'parameter')} are "
            f"in them: {listing(stubs)}",
            remedy="Copy the files ending in _optim_states.pt of every rank into this folder.",
            path=path,
        )


def layout_of(path: str, ranks: Ranks) -> Layout:
    """How the ranks of a ZeRO stage share parameters. Raises CorruptFile where their files do not say it."""
    states = [file.tree.get("optimizer_state_dict") for file in ranks.optimizers]
    known = [state for state in states if isinstance(state, Mapping)]
    if len(known) < len(states):
        raise CorruptFile(f"{path}: the optimizer files of DeepSpeed hold no optimizer state", path=path)
    return Layout(path, known, ranks.models[0].tree.get("param_shapes"))


@dataclass(slots=True)
class _Merge:
    """The making of one tree out of the files of all ranks. `copied` are storages that stand for others, by key."""

    path: str
    ranks: Ranks
    layout: Layout
    faults: list[str] = field(default_factory=list)
    copied: dict[str, str] = field(default_factory=dict)

    def tree(self) -> dict[str, Any]:
        """Everything that the files hold, whole. Raises CorruptFile naming each tensor that is not."""
        first = self.ranks.models[0].tree
        copy = _mapping(first.get("module"))
        tree: dict[str, Any] = {"model": self._model(copy, first), "optimizer": self._optimizer()}
        self._complain()
        if any(_is_half(node) for node in copy.values()):
            tree[_COPY] = copy
        scaler = plain_state(self.layout.states[0].get("loss_scaler"))
        if isinstance(scaler, dict):
            tree["loss_scaler"] = scaler
        return {**tree, **{key: value for key, value in first.items() if key not in _LAYOUT}}

    def _complain(self) -> None:
        if not self.faults:
            return
        more = [f"and {len(self.faults) - _SHOWN:,} more"] if len(self.faults) > _SHOWN else []
        raise CorruptFile(
            f"{self.path}: {count(len(self.faults), 'tensor')} cannot be put together from the partitions of "
            f"{count(self.layout.world, 'rank')}",
            details=[*self.faults[:_SHOWN], *more],
            remedy="Files are damaged, or of different steps. Copy the folder again, or use the step before it.",
            path=self.path,
        )

    def _model(self, module: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
        """Names in the order of the module: master weights, frozen weights, tied ones by their owner's, buffers."""
        known = {name: self._whole(f"model.{name}", name, self.layout.master) for name in self.layout.places}
        known |= self._frozen(first)
        shared = _mapping(first.get("shared_params"))
        owners = {name: owner for name, owner in shared.items() if type(owner) is str}
        made = {}
        for name in dict.fromkeys((*module, *known, *owners)):
            node = known.get(name, known.get(owners.get(name, ""), module.get(name)))
            if node is not None:
                made[name] = node
        return made

    def _frozen(self, first: Mapping[str, Any]) -> dict[str, TensorNode]:
        """Frozen weights: whole in the first file, or an even share of each in the file of every rank."""
        shapes = _mapping(first.get("frozen_param_shapes"))
        shares = [_mapping(file.tree.get("frozen_param_fragments")) for file in self.ranks.models]
        found = {}
        for name, size in shapes.items():
            shape, nodes = shape_of(size), [share.get(name) for share in shares]
            if type(nodes[0]) is TensorNode and nodes[0].shape == shape and len(nodes) == 1:
                found[name] = nodes[0]
            else:
                found[name] = self._put_together(f"model.{name}", shape, slices_of(nodes, 0, prod(shape)))
        return found

    def _optimizer(self) -> dict[str, Any]:
        """State by parameter name, and groups with the options of the saved groups."""
        state: dict[str, dict[str, Any]] = {}
        groups: list[dict[str, Any]] = []
        for options, units in self.layout.groups():
            names = [name for name, place in self.layout.places.items() if place.unit in units]
            groups.append({**options, "params": names})
            state |= {name: entry for name in names if (entry := self._state(name, options))}
        return {"state": state, "param_groups": groups}

    def _state(self, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """The state of one parameter. Some of DeepSpeed's optimizers count the steps in the group alone."""
        unit = self.layout.places[name].unit
        entry: dict[str, Any] = {}
        for key, value in self.layout.state(0, unit).items():
            entry[key] = self._entry(name, key, value)
        if entry and "step" not in entry and type(options.get("step")) in (int, float):
            entry["step"] = options["step"]
        return entry

    def _entry(self, name: str, key: str, value: Any) -> Any:
        """One value of a state: a flat tensor is cut for each parameter, a counter copied, for each has its own."""
        where = f"optimizer.state.{name}.{key}"
        if type(value) is not TensorNode or value.storage is None:
            return value
        if len(value.shape) == 1:
            return self._whole(where, name, lambda rank, unit: self.layout.state(rank, unit).get(key))
        self.copied[where] = value.storage.key
        return replace(value, storage=replace(value.storage, key=where))

    def _whole(self, where: str, name: str, part: Part) -> TensorNode:
        return self._put_together(where, self.layout.places[name].shape, self.layout.slices(name, part))

    def _put_together(self, where: str, shape: tuple[int, ...], slices: Sequence[Slice]) -> TensorNode:
        """The tensor of `shape` whose flattened elements the slices are, one behind the other."""
        total, held = prod(shape), sum(part.stop - part.start for part in slices)
        if total == 0:
            return empty_tensor(where, "float32", shape, self.ranks.models[0].file, "cpu")
        dtypes = list(dict.fromkeys(part.node.dtype for part in slices))
        if held != total or len(dtypes) != 1:
            fault = f"its parts are of {' and '.join(dtypes)}" if held == total else f"{held:,} of them are there"
            self.faults.append(f"{where[:200]}: {count(total, 'element')}, {fault}")
            return empty_tensor(where, "float32", (0,), self.ranks.models[0].file, "cpu")
        chunks: list[Chunk] = []
        position = 0
        for part in slices:
            chunks += chunks_of(part, shape, position)
            position += part.stop - part.start
        return whole_tensor(where, dtypes[0], shape, chunks, slices[0].node.device)


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _is_half(node: Any) -> bool:
    """A 16-bit weight; stage 3 leaves empty tensors in the place of parameters."""
    return type(node) is TensorNode and node.dtype in _HALF and 0 not in node.shape
