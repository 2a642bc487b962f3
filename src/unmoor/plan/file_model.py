"""What the file's own model tells of an optimizer's parameters: their order when it was saved, and their dtypes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from unmoor.values.catalog import Catalog, Part
from unmoor.values.nodes import TensorNode
from unmoor.values.target import Target, TargetModule, TargetOptimizer

from .modules import ModulePlan, saved_tensors
from .names import match_names
from .policy import Rename

__all__ = ["FileModel", "Planned", "file_model", "known_names", "renamed_names", "several_models"]

Planned = tuple[TargetModule, Part, ModulePlan]
"""A live module, the part of the file that it takes, and the plan for it."""

_BUFFERS: Final = ("running_mean", "running_var", "num_batches_tracked")
"""The last segment of names that torch's own modules give to buffers: no optimizer holds those."""


@dataclass(frozen=True, slots=True)
class FileModel:
    """`order` are the live parameter names as the saved optimizer would list them, None where nothing tells.

    `dtypes` is live parameter name -> the dtype that this parameter had when it was saved. `params` are name and shape
    of every parameter in the order of the file: the live name, or the saved one where no live parameter has it.
    `several` tells that they are of more than one model: in which order an optimizer took those is not in the file.
    """

    order: tuple[str, ...] | None = None
    dtypes: Mapping[str, str] = field(default_factory=dict)
    params: tuple[tuple[str, tuple[int, ...]], ...] = ()
    several: bool = False


def file_model(
    catalog: Catalog, optimizer: TargetOptimizer, modules: Sequence[Planned], rename: Rename, *, many: bool
) -> FileModel:
    """From the modules that are restored beside the optimizer, else from a model in the file with all its names.

    A model that lists its parameters as the live one does leaves the optimizer's own order, whatever that is. One in
    safetensors tells no order: its tensors are sorted by dtype and name. `many` tells that several models are live, so
    that names carry the labels of theirs.
    """
    names = {param.name for _, param in optimizer.params() if param.name}
    held = [_Held(planned, _prefix(planned[0], many=many), saved_tensors(planned[1])) for planned in modules]
    own = [one.dtypes() for one in held]
    dtypes = own[0] if len(own) == 1 else {name: dtype for one in own for name, dtype in one.items()}
    if not all(_is_ordered(catalog, part) for _, part, _ in modules):
        return FileModel(None, dtypes)
    listed_by = [one.params(names) for one in held]
    params = tuple(item for own_params in listed_by for item in own_params)
    several = sum(map(bool, listed_by)) > 1
    if names and names <= dtypes.keys():
        changed = any(one.is_reordered(theirs, names) for one, theirs in zip(held, own, strict=True))
        listed = dtypes if changed else [param.name for _, param in optimizer.params()]
        return FileModel(tuple(name for name in listed if name in names), dtypes, params, several)
    for part in catalog.part("model") if names else ():
        alone = _alone(part, optimizer, rename)
        if names <= alone.dtypes.keys():
            return alone if _is_ordered(catalog, part) else FileModel(None, alone.dtypes)
    return FileModel(None, dtypes, params)


def _is_ordered(catalog: Catalog, part: Part) -> bool:
    return catalog.format != "safetensors" and part.detail.get("ordered", True) is True


def _prefix(module: TargetModule, *, many: bool) -> str:
    """What stands before a module's names in an optimizer: its label, unless it is the only model."""
    return "" if module.role == "model" and not many else f"{module.label}:"


def several_models(target: Target) -> bool:
    """Whether more than one live model was passed."""
    return sum(module.role == "model" for module in target.modules) > 1


def known_names(target: Target) -> dict[str, str]:
    """Every name of a parameter of a live module -> the name that it goes by in an optimizer."""
    found: dict[str, str] = {}
    many = several_models(target)
    for module in target.modules:
        prefix = _prefix(module, many=many)
        for name in module.parameters:
            slot = module.slots.get(name)
            owner = slot.alias.removeprefix(f"{module.label}/") if slot is not None and slot.alias else name
            found[prefix + name] = prefix + owner
    return {name: target.shared.get(own, own) for name, own in found.items()} if target.shared else found


def renamed_names(optimizer: TargetOptimizer, modules: Sequence[Planned], *, many: bool) -> dict[str, str]:
    """Saved name of a module's tensor -> its live name as an optimizer has it.

    Under the saved name itself for modules that the optimizer holds a part of, where that tells which is meant; and
    under the label of its module, as the files of several models have it.
    """
    held = {param.name for _, param in optimizer.params()}
    found: dict[str, str] = {}
    twice: set[str] = set()
    labelled: dict[str, str] = {}
    for planned in modules:
        target, _, plan = planned
        prefix = _prefix(target, many=many)
        labelled |= {f"{target.label}:{saved}": prefix + live for saved, live in plan.names.items()}
        if any(prefix + name in held for name in target.slots):
            for saved, live in plan.names.items():
                if found.setdefault(saved, prefix + live) != prefix + live:
                    twice.add(saved)
    return labelled | {saved: live for saved, live in found.items() if saved not in twice}


@dataclass(frozen=True, slots=True)
class _Held:
    """A restored module beside the optimizer: what stands before its names there, and its tensors in the file."""

    planned: Planned
    prefix: str
    saved: Mapping[str, TensorNode]

    def dtypes(self) -> dict[str, str]:
        """Live name -> saved dtype, in the order of the file."""
        prefix, names = self.prefix, self.planned[2].names
        return {prefix + names[saved]: node.dtype for saved, node in self.saved.items() if saved in names}

    def params(self, names: Collection[str]) -> list[tuple[str, tuple[int, ...]]]:
        """Name and shape of the parameters of a module that the optimizer has a part in, one name for tied ones."""
        target, _, plan = self.planned
        prefix = self.prefix
        if not any(prefix + name in names for name in target.slots):
            return []
        found: dict[str, tuple[int, ...]] = {}
        for saved, node in self.saved.items():
            live = plan.names.get(saved)
            if live is None:
                if saved.rpartition(".")[2] not in _BUFFERS:
                    found[saved] = node.shape
            elif live in target.parameters:
                alias = target.slots[live].alias
                owner = alias.removeprefix(f"{target.label}/") if alias else live
                found.setdefault(prefix + owner, node.shape)
        return list(found.items())

    def is_reordered(self, listed: Collection[str], names: Collection[str]) -> bool:
        """Whether file, whose names are `listed`, and live module have the parameters of both in different orders."""
        prefix = self.prefix
        theirs = [name for name in listed if name in names]
        both = set(theirs)
        return theirs != [own for name in self.planned[0].slots if (own := prefix + name) in both]


def _alone(part: Part, optimizer: TargetOptimizer, rename: Rename) -> FileModel:
    """From a model that was not asked for, as far as its names tell parameters from buffers; empty if names differ."""
    saved = saved_tensors(part)
    live = {param.name: param.shape for _, param in optimizer.params()}
    match = match_names({name: node.shape for name, node in saved.items()}, live, rename)
    if match.missing or match.mismatched or match.rivals:
        return FileModel()
    back = {name: own for own, name in match.reading.pairs.items()}
    beyond = set(match.reading.outside)
    dtypes = {back[name]: node.dtype for name, node in saved.items() if name in back}
    params = [
        (back.get(name, name), node.shape)
        for name, node in saved.items()
        if name in back or (name not in beyond and name.rpartition(".")[2] not in _BUFFERS)
    ]
    return FileModel(tuple(dtypes), dtypes, tuple(params))
