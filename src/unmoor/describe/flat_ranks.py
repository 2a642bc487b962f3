"""Folders in which every rank of an FSDP1 run saved what it held itself: its shards of the FlatParameters.

FSDP1 flattens the parameters of each wrapped module into one FlatParameter, pads it and gives every rank an even share.
A model saved with StateDictType.LOCAL_STATE_DICT, and an optimizer whose own state_dict() was saved by each rank, hold
those shares (torch/distributed/fsdp/_flat_param.py). Here they become flat tensors that are whole; which parameters lie
in them only the live model tells, so a restore cuts them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from unmoor import places
from unmoor.errors import CorruptFile
from unmoor.filing import open_reader
from unmoor.values.catalog import Catalog, TensorEntry
from unmoor.values.finding import Finding
from unmoor.values.flat import joined
from unmoor.values.nodes import CompositeTensor, NumpyScalar, TensorNode
from unmoor.values.rank_names import rank_of, ranked
from unmoor.values.text import count, listing

from .assemble import Contents, assemble
from .detect import detect
from .folder_members import Member
from .folder_merge import Described, together
from .outline import Outline
from .storages import storages_of
from .torch_zip import Saved, read_saved

__all__ = ["FLAT", "describe_ranks", "flat_stems", "shard_finding"]

FLAT: Final = re.compile(r"(?:.*\.)?_?flat_param(?:_\d+)?")
"""The name of a FlatParameter in a state dict: flat_param until torch 1.12, _flat_param since."""

_SHOWN: Final = 8
_PER_TENSOR: Final = 64
_DEPTH: Final = 3
_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None), NumpyScalar)

Keys = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _File:
    """The file of one rank."""

    rank: int
    name: str
    saved: Saved
    size: int

    @property
    def tree(self) -> Any:
        return self.saved.reading.value


@dataclass(slots=True)
class _Group:
    """The files of all ranks under one name. `flat` are the key paths of what FSDP1 sharded in them."""

    stem: str
    files: list[_File]
    models: list[Keys] = field(default_factory=list)
    optimizers: list[Keys] = field(default_factory=list)


def flat_stems(names: Iterable[str]) -> dict[str, dict[int, str]]:
    """Files that may be those of all ranks: rank 0's is there, and others of the same name."""
    return {stem: files for stem, files in ranked(names).items() if 0 in files}


def describe_ranks(path: str, stems: Mapping[str, Mapping[int, str]], others: Sequence[Described]) -> Catalog | None:
    """The catalog of the files of all ranks, with `others` beside them; None where none holds shards of FSDP1.

    Raises CorruptFile naming the ranks whose files are missing, and what they hold differently.
    """
    groups = [group for stem, files in stems.items() if (group := _read_first(path, stem, files)) is not None]
    if not any(group.models for group in groups):
        groups = [group for group in groups if "rank" in group.stem]
    if not groups:
        return None
    for group in groups:
        _read_others(path, group, stems[group.stem])
    described = [(Member(group.stem, group.stem), _described(path, group)) for group in groups]
    found = together(path, "fsdp", [*described, *others], {}, [_told(groups)])
    stems_alone = {group.stem for group in groups}
    return replace(found, facts={**found.facts, "files": [f for f in found.facts["files"] if f not in stems_alone]})


def shard_finding(catalog: Catalog) -> list[Finding]:
    """What to say of one file that holds shards of FlatParameters."""
    if not any("flat_param" in entry.path and _is_shard(entry) for entry in catalog.tensors):
        return []
    message = "holds a shard of FSDP1's FlatParameters: what one rank saved"
    return [Finding("shard-of-folder", "warning", "", message, "open the folder that holds the files of all ranks")]


def _is_shard(entry: TensorEntry) -> bool:
    """Whether a tensor is a FlatParameter, or the local shard of one."""
    keys = entry.keys[:-1] if entry.layout == "sharded" else entry.keys
    return bool(keys) and type(keys[-1]) is str and bool(FLAT.fullmatch(keys[-1]))


def _told(groups: Sequence[_Group]) -> Finding:
    world = len(groups[0].files)
    message = f"{listing([group.stem for group in groups])} hold the shards of FSDP1 of {count(world, 'rank')}, flat"
    return Finding("flat-ranks", "info", "", message, "restore into the live model: its parameters say where to cut")


def _read(path: str, rank: int, name: str) -> _File | None:
    with open_reader(places.join(path, name)) as reader:
        if detect(reader) != "zip":
            return None
        return _File(rank, name, read_saved(reader, name, 0), reader.size)


def _read_first(path: str, stem: str, files: Mapping[int, str]) -> _Group | None:
    first = _read(path, 0, files[0])
    if first is None:
        return None
    group = _Group(stem, [first])
    for keys, value in _mappings(first.tree, ()):
        if _is_flat_model(value):
            group.models.append(keys)
        elif _is_flat_optimizer(value):
            group.optimizers.append(keys)
    return group if group.models or group.optimizers else None


def _read_others(path: str, group: _Group, files: Mapping[int, str]) -> None:
    told = rank_of(files[0])
    world = (told[2] if told else None) or max(files) + 1
    missing = [str(rank) for rank in range(min(world, max(files) + _SHOWN)) if rank not in files]
    if missing or len(files) != world:
        raise CorruptFile(
            f"{path} holds {group.stem} of {count(len(files), 'rank')}, of {world} that saved them: "
            f"rank {listing(missing, _SHOWN)} is missing",
            remedy="Every rank writes its own shards: copy the files of all ranks into this folder.",
            path=path,
        )
    for rank, name in files.items():
        if rank and (file := _read(path, rank, name)) is not None:
            group.files.append(file)


def _mappings(value: Any, keys: Keys) -> Iterator[tuple[Keys, Mapping[Any, Any]]]:
    """The mappings of a tree, the outermost first; nothing is looked for within what is flat."""
    if not isinstance(value, Mapping) or len(keys) > _DEPTH:
        return
    yield keys, value
    if not _is_flat_model(value) and "param_groups" not in value:
        for key, item in value.items():
            yield from _mappings(item, (*keys, key))


def _is_flat_model(value: Mapping[Any, Any]) -> bool:
    return any(type(name) is str and FLAT.fullmatch(name) and _local(node) is not None for name, node in value.items())


def _is_flat_optimizer(value: Mapping[Any, Any]) -> bool:
    """Whether all state is of one dimension, or none: a shard is never of more."""
    if not isinstance(value.get("param_groups"), list) or not isinstance(value.get("state"), Mapping):
        return False
    entries = [entry for entry in value["state"].values() if isinstance(entry, Mapping)]
    tensors = [node for entry in entries for node in entry.values() if type(node) is TensorNode]
    return all(len(node.shape) < 2 for node in tensors)


def _local(value: Any) -> TensorNode | None:
    """A rank's shard of a FlatParameter; an empty tensor where it holds none; None for what is none."""
    if type(value) is CompositeTensor and value.layout == "sharded" and len(value.shape) == 1:
        nodes = list(value.children.values())
        value = nodes[0] if nodes else TensorNode(None, 0, (0,), (1,), value.dtype, "cpu")
    return value if type(value) is TensorNode and len(value.shape) == 1 else None


def _described(path: str, group: _Group) -> Catalog:
    merge = _Merge(path, group)
    tree = group.files[0].tree
    for keys in group.models:
        tree = _replaced(tree, keys, merge.model(keys))
    for keys in group.optimizers:
        tree = _replaced(tree, keys, merge.optimizer(keys))
    merge.complain()
    readings = [file.saved.reading for file in group.files]
    storages = {storage.key: storage for storage in storages_of(tree)}
    contents = Contents(
        format="folder",
        tree=tree,
        readings=readings,
        structure=sum(reading.nbytes for reading in readings) + _PER_TENSOR * len(storages),
        storages=storages,
        faults={key: f"{file.name}: {why}" for file in group.files for key, why in file.saved.faults.items()},
        facts={"files": [file.name for file in group.files], "world_size": len(group.files)},
    )
    catalog = assemble(Outline(path, sum(file.size for file in group.files)), contents)
    flat = {*group.models, *group.optimizers}
    detail = {"flat_ranks": len(group.files)}
    parts = tuple(replace(p, detail={**p.detail, **detail}) if p.keys in flat else p for p in catalog.parts)
    findings = tuple(dict.fromkeys(catalog.findings))  # files of all ranks say the same
    return replace(catalog, dialect="fsdp", parts=parts, findings=findings)


def _replaced(tree: Any, keys: Keys, value: Any) -> Any:
    if not keys:
        return value
    return {**tree, keys[0]: _replaced(tree[keys[0]], keys[1:], value)}


def _at(tree: Any, keys: Keys) -> Mapping[Any, Any]:
    for key in keys:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree if isinstance(tree, Mapping) else {}


@dataclass(slots=True)
class _Merge:
    """The making of whole flat tensors out of the files of all ranks."""

    path: str
    group: _Group
    faults: list[str] = field(default_factory=list)

    def model(self, keys: Keys) -> dict[Any, Any]:
        """Every FlatParameter whole. Buffers are those of rank 0; views of a FlatParameter are put together too."""
        states = [_at(file.tree, keys) for file in self.group.files]
        made, flat = {}, [_flat_storages(state) for state in states]
        for name, node in states[0].items():
            nodes = [state.get(name) for state in states]
            if type(name) is str and FLAT.fullmatch(name):
                made[name] = self._flat(name, nodes)
            elif _is_cut(flat, nodes):
                made[name] = self._whole(str(name), nodes)
            else:
                made[name] = node
        return made

    def optimizer(self, keys: Keys) -> dict[Any, Any]:
        """State by the ids of the file; an id that some ranks lack is of a parameter of which they hold nothing."""
        states = [_at(file.tree, keys) for file in self.group.files]
        entries = [state.get("state") for state in states]
        known = [entry for entry in entries if isinstance(entry, Mapping)]
        state: dict[Any, dict[Any, Any]] = {}
        for identity in dict.fromkeys(identity for entry in known for identity in entry):
            own = [entry[identity] for entry in known if isinstance(entry.get(identity), Mapping)]
            names = dict.fromkeys(name for entry in own for name in entry)
            found = {name: [entry[name] for entry in own if name in entry] for name in names}
            state[identity] = {name: self._entry(f"{identity}.{name}", nodes) for name, nodes in found.items()}
        groups = states[0]["param_groups"]
        order = {i: n for n, i in enumerate(i for group in groups for i in _listed(group) if type(i) in (int, str))}
        ordered = dict(sorted(state.items(), key=lambda item: order.get(item[0], len(order))))
        return {**states[0], "state": ordered}

    def complain(self) -> None:
        """Raise CorruptFile where shards are missing or contradict each other."""
        if self.faults:
            more = [f"and {len(self.faults) - _SHOWN:,} more"] if len(self.faults) > _SHOWN else []
            raise CorruptFile(
                f"{self.path}: {self.group.stem} of {count(len(self.group.files), 'rank')} do not make up one state",
                details=[*self.faults[:_SHOWN], *more],
                remedy="Files are damaged, or of different steps. Copy the folder again, or use the step before it.",
                path=self.path,
            )

    def _flat(self, name: str, nodes: Sequence[Any]) -> TensorNode | None:
        """The whole of a FlatParameter; a ShardedTensor says itself where its shard begins."""
        position = 0
        for file, node in zip(self.group.files, nodes, strict=True):
            local = _local(node)
            if local is None:
                self.faults.append(f"{file.name} holds no shard of {name}")
                return None
            starts = node.detail["starts"] if type(node) is CompositeTensor else ()
            if starts and starts[0] != (position,):
                self.faults.append(
                    f"{file.name} holds {name} from element {listing([f'{n:,}' for n in starts[0]])} on, "
                    f"and its rank's shard begins at {position:,}"
                )
                return None
            position += local.shape[0]
        whole = {node.shape[0] for node in nodes if type(node) is CompositeTensor}
        if whole and whole != {position}:
            self.faults.append(f"{name} has {listing([f'{n:,}' for n in whole])} elements, {position:,} are there")
            return None
        return self._whole(name, [_local(node) for node in nodes])

    def _entry(self, place: str, nodes: Sequence[Any]) -> Any:
        """One value of an optimizer's state: shards end to end; a counter, which all ranks have alike."""
        if any(type(node) is TensorNode and len(node.shape) == 1 for node in nodes):
            return self._whole(f"state.{place}", nodes)
        if len({sum_ for node in nodes if (sum_ := _checksum(node)) is not None}) > 1 or any(
            type(node) is not TensorNode and not _alike(node, nodes[0]) for node in nodes
        ):
            self.faults.append(f"state.{place} differs between ranks")
        return nodes[0]

    def _whole(self, place: str, nodes: Sequence[Any]) -> TensorNode | None:
        full = [node for node in nodes if type(node) is TensorNode and node.shape != (0,)]
        dtypes = list(dict.fromkeys(node.dtype for node in full))
        if len(dtypes) > 1:
            self.faults.append(f"{place} is of {' and '.join(dtypes)} on different ranks")
            return None
        return joined(f"{self.group.stem}:{place}", full) if full else nodes[0]


def _alike(one: Any, other: Any) -> bool:
    """Whether plain values, or lists of them, are equal; of what is within these only the kind is held."""
    if type(one) in (list, tuple) and type(other) is type(one):
        return len(one) == len(other) and all(map(_equal, one, other))
    return _equal(one, other)


def _equal(one: Any, other: Any) -> bool:
    return bool(one == other) if type(one) in _PLAIN else type(one) is type(other)


def _is_cut(flat: Sequence[set[str]], nodes: Sequence[Any]) -> bool:
    """Whether each rank has a piece of its own: pieces differ in size, or look into the rank's FlatParameters."""
    if not all(type(node) is TensorNode and len(node.shape) == 1 for node in nodes):
        return False
    if len({node.shape for node in nodes}) > 1:
        return True
    return all(_storage(node) in storages for storages, node in zip(flat, nodes, strict=True))


def _listed(group: Any) -> Sequence[Any]:
    params = group.get("params") if isinstance(group, Mapping) else None
    return params if isinstance(params, list | tuple) else ()


def _storage(node: TensorNode) -> str:
    return node.storage.key if node.storage is not None else ""


def _flat_storages(state: Mapping[Any, Any]) -> set[str]:
    """The storages of a rank's FlatParameters."""
    local = [_local(node) for name, node in state.items() if type(name) is str and FLAT.fullmatch(name)]
    return {_storage(node) for node in local if node is not None} - {""}


def _checksum(node: Any) -> int | None:
    """The checksum of a tensor of one element, where its storage has one and holds nothing else."""
    storage = node.storage if type(node) is TensorNode else None
    return storage.crc32 if storage is not None and node.numel == 1 and not storage.chunks else None
