"""What the file's own model tells of an optimizer's parameters: their order when it was saved, and their dtypes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from unmoor.values.catalog import Catalog, Part
from unmoor.values.target import TargetModule, TargetOptimizer

from .modules import ModulePlan, saved_tensors
from .names import match_names
from .policy import Rename

__all__ = ["FileModel", "Planned", "file_model"]

Planned = tuple[TargetModule, Part, ModulePlan]
"""A live module, the part of the file that it takes, and the plan for it."""


@dataclass(frozen=True, slots=True)
class FileModel:
    """`order` are the live parameter names as the saved optimizer would list them, None where nothing tells.

    `dtypes` is live parameter name -> the dtype that this parameter had when it was saved.
    """

    order: tuple[str, ...] | None = None
    dtypes: Mapping[str, str] = field(default_factory=dict)


def file_model(
    catalog: Catalog, optimizer: TargetOptimizer, modules: Sequence[Planned], rename: Rename = None
) -> FileModel:
    """From the modules that are restored beside the optimizer, else from a model in the file with all its names.

    A model that lists its parameters as the live one does leaves the optimizer's own order, whatever that is.
    """
    names = {param.name for _, param in optimizer.params() if param.name}
    own = [_saved_dtypes(planned, _prefix(planned[0], modules)) for planned in modules]
    dtypes = {name: dtype for one in own for name, dtype in one.items()}
    if names and names <= dtypes.keys():
        changed = any(_changed(planned, names, _prefix(planned[0], modules)) for planned in modules)
        listed = dtypes if changed else [param.name for _, param in optimizer.params()]
        return FileModel(tuple(name for name in listed if name in names), dtypes)
    for part in catalog.part("model") if names else ():
        alone = _alone(part, optimizer, rename)
        if names <= alone.keys():
            return FileModel(tuple(alone), alone)
    return FileModel(None, dtypes)


def _prefix(module: TargetModule, modules: Sequence[Planned]) -> str:
    """What stands before a module's names in an optimizer: its label, unless it is the only model."""
    many = sum(target.role == "model" for target, _, _ in modules) > 1
    return "" if module.role == "model" and not many else f"{module.label}:"


def _saved_dtypes(planned: Planned, prefix: str) -> dict[str, str]:
    """Live name -> saved dtype, in the order of the file."""
    _, part, plan = planned
    return {
        prefix + plan.names[saved]: node.dtype for saved, node in saved_tensors(part).items() if saved in plan.names
    }


def _changed(planned: Planned, names: Collection[str], prefix: str) -> bool:
    """Whether file and live module list the parameters that both have in different orders."""
    theirs = [name for name in _saved_dtypes(planned, prefix) if name in names]
    ours = [prefix + name for name in planned[0].slots if prefix + name in names]
    return theirs != [name for name in ours if name in set(theirs)]


def _alone(part: Part, optimizer: TargetOptimizer, rename: Rename) -> dict[str, str]:
    """Live name -> saved dtype in the order of the file, from a model that was not asked for; {} where names differ."""
    saved = saved_tensors(part)
    live = {param.name: param.shape for _, param in optimizer.params()}
    match = match_names({name: node.shape for name, node in saved.items()}, live, rename)
    if match.missing or match.mismatched or match.rivals:
        return {}
    back = {name: own for own, name in match.reading.pairs.items()}
    return {back[name]: node.dtype for name, node in saved.items() if name in back}
