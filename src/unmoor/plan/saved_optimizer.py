"""An optimizer state dict of the file, taken apart, and whether the live class can take it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from unmoor.values.catalog import Part
from unmoor.values.optimizers import FAMILIES, SHARED_OPTIONS, OptimizerFamily, guess_family
from unmoor.values.target import TargetOptimizer

from .policy import Fault

__all__ = ["SavedOptimizer", "class_faults", "own_family", "take_apart"]

_SINCE_TORCH_1_11: Final = frozenset({"foreach", "maximize"})
"""Options that torch added to all classes; a file that has one of them has every option that marks its class."""


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
    """A fault where the saved state is another class's: by the options that mark one, or by the state it keeps."""
    keys = {key for entry in saved.state.values() for key in entry}
    options = {key for group in saved.groups for key in group} - {"params", "param_names"}
    foreign = options - {key for group in target.groups for key in group.options} - SHARED_OPTIONS
    known = own_family(target)
    family = guess_family(keys, options)
    wrong_state = known is not None and not keys <= {*known.state, *known.optional}
    if not wrong_state and not _other_class(family, target, known, keys, options, foreign):
        return []
    saved_side = f"{family or 'another optimizer'}-like state ({', '.join(sorted(keys)) or 'empty'}"
    saved_side += f"; options {', '.join(sorted(foreign))})" if foreign else ")"
    needs = f" (needs {', '.join(known.state)}; options {', '.join(known.options)})" if known else ""
    text = f"the file holds {saved_side}, the live optimizer is {target.class_name}{needs}"
    return [Fault("mismatch", target.label, text, f"{target.label}=None starts it fresh")]


def _other_class(
    family: str,
    target: TargetOptimizer,
    known: OptimizerFamily | None,
    keys: set[str],
    options: set[str],
    foreign: set[str],
) -> bool:
    """Whether the file looks like another class and bears a mark of it, or lacks one of the live class."""
    if family in ("", target.family):
        return False
    lacks_state = known is not None and bool(keys) and not keys >= set(known.state)
    lacks_option = known is not None and bool(options & _SINCE_TORCH_1_11) and not options >= set(known.options)
    return lacks_state or lacks_option or bool(foreign & set(FAMILIES[family].options))


def own_family(target: TargetOptimizer) -> OptimizerFamily | None:
    """The table's row where the live class is torch's own: a class derived from it may keep more."""
    family = FAMILIES.get(target.family)
    return family if family is not None and target.class_name in (family.name, *family.also) else None
