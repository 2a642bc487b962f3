"""An optimizer state dict of the file, taken apart, and whether the live class can take it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unmoor.values.catalog import Part
from unmoor.values.optimizers import FAMILIES, SHARED_OPTIONS, OptimizerFamily, guess_family
from unmoor.values.target import TargetOptimizer

from .policy import Fault

__all__ = ["SavedOptimizer", "class_faults", "take_apart"]


@dataclass(frozen=True, slots=True)
class SavedOptimizer:
    """The groups, the parameter ids of each group, the parameters' names if the file has them, the state by id."""

    groups: tuple[Mapping[str, Any], ...]
    ids: tuple[tuple[Any, ...], ...]
    names: tuple[str, ...] | None
    state: Mapping[Any, Mapping[str, Any]]

    @property
    def flat(self) -> list[Any]:
        """All parameter ids in order."""
        return [i for group in self.ids for i in group]


def take_apart(part: Part, recorded: Sequence[str] | None) -> SavedOptimizer:
    """`recorded` are the names in the file's manifest, None where it has none."""
    node = part.node
    groups = tuple(node["param_groups"])
    state = {key: value for key, value in node["state"].items() if isinstance(value, Mapping)}
    return SavedOptimizer(groups, tuple(tuple(group["params"]) for group in groups), _names(node, recorded), state)


def _names(node: Mapping[str, Any], recorded: Sequence[str] | None) -> tuple[str, ...] | None:
    """From the groups' `param_names`, or from ids that are names, or from the manifest."""
    names: list[str] = []
    for group in node["param_groups"]:
        params = list(group["params"])
        given = group.get("param_names")
        if isinstance(given, list) and len(given) == len(params) and all(isinstance(n, str) for n in given):
            names += given
        elif params and all(isinstance(p, str) for p in params):
            names += params
    total = sum(len(group["params"]) for group in node["param_groups"])
    if len(names) == total and len(set(names)) == total:
        return tuple(names)
    return tuple(recorded) if recorded is not None and len(recorded) == total else None


def class_faults(target: TargetOptimizer, saved: SavedOptimizer) -> list[Fault]:
    """A fault where the saved state is another class's: by options that mark one, or by state the live one lacks."""
    keys = {key for entry in saved.state.values() for key in entry}
    options = {key for group in saved.groups for key in group} - {"params", "param_names"}
    foreign = options - {key for group in target.groups for key in group.options} - SHARED_OPTIONS
    known = _own_family(target)
    family = guess_family(keys, options)
    wrong_state = known is not None and not keys <= {*known.state, *known.optional}
    other_class = family not in ("", target.family) and bool({*FAMILIES[family].options} & foreign)
    if not (wrong_state or other_class):
        return []
    saved_side = f"{family or 'another optimizer'}-like state ({', '.join(sorted(keys)) or 'empty'}"
    saved_side += f"; options {', '.join(sorted(foreign))})" if foreign else ")"
    needs = f" (needs {', '.join(known.state)}; options {', '.join(known.options)})" if known else ""
    text = f"the file holds {saved_side}, the live optimizer is {target.class_name}{needs}"
    return [Fault("mismatch", target.label, text, f"{target.label}=None starts it fresh")]


def _own_family(target: TargetOptimizer) -> OptimizerFamily | None:
    """The table's row where the live class is torch's own: a class derived from it may keep more."""
    family = FAMILIES.get(target.family)
    return family if family is not None and target.class_name in (family.name, *family.also) else None
