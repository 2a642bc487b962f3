"""A module that saves and loads in its own way: its whole state goes to its own load_state_dict, under its own names.

Where the saved names are proved to be the live ones they are translated. Where they are not, the module gets them as
they stand: its hooks may know older names, and what it refuses is put back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from unmoor.values.catalog import Part
from unmoor.values.plan import Change, Copy, LoadState
from unmoor.values.target import TargetModule, TargetObject
from unmoor.values.text import key_text, listing

from .module_match import averaged_fault, match_module
from .modules import ModulePlan, saved_tensors
from .objects import plan_object
from .policy import Fault, Policy
from .rounding import rounding_faults

__all__ = ["plan_through"]


def plan_through(target: TargetModule, part: Part, policy: Policy, arrays: Collection[int]) -> ModulePlan:
    """Plan one module; faults are gathered, nothing is raised."""
    item = TargetObject(target.role, target.label, target.class_name, "device", target.device)
    given = plan_object(item, part, arrays)
    if given.load is None or not isinstance(given.load.tree, Mapping):
        return ModulePlan(faults=given.faults)
    saved = saved_tensors(part)
    match = match_module({name: node.shape for name, node in saved.items()}, target, policy)
    averaged = averaged_fault(target, match, saved, policy)
    if averaged is not None:
        return ModulePlan(faults=[averaged])
    pairs = match.reading.pairs if match.complete else {}
    spread = [name for name, slot in target.slots.items() if slot.boxes is not None]
    if spread and not pairs:
        text = "it loads in a way of its own, and the saved names are not proved to be the live ones: nothing tells "
        text += f"which part of which tensor to hand over, with {listing(spread, 2)} spread over ranks"
        return ModulePlan(faults=[Fault("mismatch", target.label, text, "rename={...} says how they become those")])
    plan = ModulePlan(copies=_as_live(target, part, pairs, given.copies))
    plan.faults = rounding_faults(target.label, plan.copies, policy)
    plan.names = {theirs: ours for ours, theirs in pairs.items()}
    plan.renamed = [Change(target.label, ours, theirs, ours) for ours, theirs in pairs.items() if ours != theirs]
    outside = match.reading.outside if pairs else ()
    plan.unexpected = [Change(target.label, n, "in the file", "outside the names that fit") for n in outside]
    plan.loads = [LoadState(target.label, _renamed(given.load.tree, pairs, outside))]
    plan.note = f"handed to {target.class_name}.load_state_dict: it saves or loads in a way of its own"
    return plan


def _as_live(target: TargetModule, part: Part, pairs: Mapping[str, str], copies: Sequence[Copy]) -> list[Copy]:
    """The copies with dtype and parts of the live tensor that each is for, so that nothing is rounded unseen."""
    live = {key_text((*part.keys, theirs)): target.slots[ours] for ours, theirs in pairs.items()}
    slots = [(copy, live.get(copy.path, copy.slot)) for copy in copies]
    return [replace(copy, slot=replace(copy.slot, dtype=own.dtype, boxes=own.boxes)) for copy, own in slots]


def _renamed(tree: Mapping[str, Any], pairs: Mapping[str, str], outside: Sequence[str]) -> Mapping[str, Any]:
    """The state by canonical live name, with what torch noted of its modules."""
    if all(ours == theirs for ours, theirs in pairs.items()) and not outside:
        return tree
    names = {theirs: ours for ours, theirs in pairs.items()}
    modules = _modules(pairs)
    left_out = set(outside)
    made: OrderedDict[str, Any] = OrderedDict()
    for name, value in tree.items():
        if name in left_out:
            continue
        module, _, last = name.rpartition(".")
        made[names.get(name) or _joined(modules.get(module, module), last)] = value
    noted = getattr(tree, "_metadata", None)
    if isinstance(noted, Mapping):
        kept = OrderedDict((modules[name], value) for name, value in noted.items() if name in modules)
        made._metadata = kept  # type: ignore[attr-defined]
    return made


def _modules(pairs: Mapping[str, str]) -> dict[str, str]:
    """Saved name of a module -> live name, for all modules above the tensors of the pairs."""
    found: dict[str, str] = {}
    for pair in pairs.items():
        ours, theirs = pair
        while ours and theirs and ours.rpartition(".")[2] == theirs.rpartition(".")[2]:
            ours, theirs = ours.rpartition(".")[0], theirs.rpartition(".")[0]
            found[theirs] = ours
    return found


def _joined(module: str, last: str) -> str:
    return f"{module}.{last}" if module else last
