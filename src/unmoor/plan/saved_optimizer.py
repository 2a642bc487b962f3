"""An optimizer state dict of the file, taken apart, and whether the live class can take it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from unmoor.values.beside import FROZEN, NAMES
from unmoor.values.catalog import Part
from unmoor.values.nodes import TensorNode
from unmoor.values.optimizers import FAMILIES, SHARED_OPTIONS, OptimizerFamily, guess_family
from unmoor.values.target import TargetOptimizer

from .policy import Fault

__all__ = [
    "ELEMENTWISE",
    "FROZEN",
    "SavedOptimizer",
    "class_faults",
    "optimizer_fit",
    "own_family",
    "place_of",
    "take_apart",
]

ELEMENTWISE: Final = frozenset(key for family in FAMILIES.values() for key in family.elementwise)
"""State keys whose tensors have the shape of their parameter."""

_SINCE_TORCH_1_11: Final = frozenset({"foreach", "maximize"})
"""Options that torch added to all classes; a file that has one of them has every option that marks its class."""


@dataclass(frozen=True, slots=True)
class SavedOptimizer:
    """The groups, the parameter ids of each group, the parameters' names if the file has them, the state by id.

    `frozen` are groups of parameters that were frozen when the file was written and whose state was kept aside, by
    name; their ids in `state` are `("frozen", name)`. `unassigned` is state under keys that are no parameter's, and
    `strays` are ids such as parameters have that no group lists.
    """

    groups: tuple[Mapping[str, Any], ...]
    ids: tuple[tuple[Any, ...], ...]
    names: tuple[str, ...] | None
    state: Mapping[Any, Mapping[str, Any]]
    frozen: tuple[Mapping[str, Any], ...] = ()
    unassigned: Mapping[Any, Any] = field(default_factory=dict)
    strays: tuple[Any, ...] = ()

    @property
    def flat(self) -> list[Any]:
        """All parameter ids in order."""
        return [i for group in self.ids for i in group]

    def homes(self) -> dict[Any, Mapping[str, Any]]:
        """Parameter id -> the group it was in."""
        found = {i: group for group, ids in zip(self.groups, self.ids, strict=True) for i in ids}
        return found | {(FROZEN, name): group for group in self.frozen for name in group["params"]}

    def shape(self, identity: Any) -> tuple[int, ...] | None:
        """The shape of a parameter by its state, None where that does not tell."""
        for key, value in self.state.get(identity, {}).items():
            if key in ELEMENTWISE and isinstance(value, TensorNode):
                return value.shape
        return None


def optimizer_fit(part: Part, target: TargetOptimizer) -> bool:
    """Whether a saved optimizer has as many parameters as the live one, and state of no other shapes than they have."""
    live = Counter(param.shape for _, param in target.params())
    if int(part.detail.get("params", 0)) != live.total():
        return False
    state = part.node.get("state") if isinstance(part.node, Mapping) else None
    entries = state.values() if isinstance(state, Mapping) else ()
    tensors = [
        [value for key, value in entry.items() if key in ELEMENTWISE and isinstance(value, TensorNode)]
        for entry in entries
        if isinstance(entry, Mapping)
    ]
    return Counter(found[0].shape for found in tensors if found) <= live


def place_of(identity: Any) -> tuple[Any, ...]:
    """Where the state of a parameter stands in an optimizer state dict, by its id."""
    return (
        (FROZEN, "state", identity[1]) if isinstance(identity, tuple) and identity[0] == FROZEN else ("state", identity)
    )


def take_apart(part: Part, recorded: Sequence[str] | None) -> SavedOptimizer:
    """`recorded` are the names in the file's manifest, None where it has none."""
    node = part.node
    groups = tuple(node["param_groups"])
    ids = tuple(tuple(group["params"]) for group in groups)
    held = {identity for group in ids for identity in group}
    entries = node["state"]
    if not entries.keys() <= held:
        spelled = {str(identity): identity for identity in held}
        entries = {key if key in held else spelled.get(key, key): value for key, value in entries.items()}
    kinds = {type(identity) for identity in held}
    unassigned = {
        key: value
        for key, value in entries.items()
        if key not in held and not (isinstance(value, Mapping) and type(key) in kinds)
    }
    state = {key: value for key, value in entries.items() if isinstance(value, Mapping) and key in held}
    strays = tuple(key for key, value in entries.items() if key not in held and key not in unassigned and value)
    names = _names(node, recorded)
    frozen = _frozen(node, names)
    state |= {(FROZEN, name): node[FROZEN]["state"].get(name, {}) for group in frozen for name in group["params"]}
    return SavedOptimizer(groups, ids, names, state, frozen, unassigned, strays)


def _names(node: Mapping[str, Any], recorded: Sequence[str] | None) -> tuple[str, ...] | None:
    """Canonical names that unmoor wrote, beside the groups or in the manifest; else torch's own; else ids as names."""
    total = sum(len(group["params"]) for group in node["param_groups"])
    beside = node.get(NAMES)
    own = [name for group in node["param_groups"] for name in _group_names(group)]
    for found in (_flattened(beside) if isinstance(beside, list | tuple) else None, recorded, own):
        if found is not None and len(found) == total == len(set(found)) and all(type(n) is str for n in found):
            return tuple(found)
    return None


def _flattened(groups: Sequence[Any]) -> list[Any]:
    return [name for group in groups if isinstance(group, list | tuple) for name in group]


def _group_names(group: Mapping[str, Any]) -> list[Any]:
    params, given = list(group["params"]), group.get("param_names")
    if isinstance(given, list | tuple) and len(given) == len(params):
        return list(given)
    return params if all(isinstance(p, str) for p in params) else []


def _frozen(node: Mapping[str, Any], names: Sequence[str] | None) -> tuple[Mapping[str, Any], ...]:
    """The groups that were kept aside, where they are well-formed and no name is also among the others."""
    aside = node.get(FROZEN)
    if not isinstance(aside, Mapping) or names is None:
        return ()
    groups, state = aside.get("param_groups"), aside.get("state")
    if not isinstance(groups, list | tuple) or not isinstance(state, Mapping):
        return ()
    own = set(names)
    return tuple(
        group
        for group in groups
        if isinstance(group, Mapping)
        and isinstance(group.get("params"), list | tuple)
        and all(isinstance(name, str) and name not in own for name in group["params"])
    )


def class_faults(target: TargetOptimizer, saved: SavedOptimizer) -> list[Fault]:
    """A fault where the saved state is another class's: by the options that mark one, or by the state it keeps."""
    keys: set[str] = set().union(*saved.state.values())
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
