"""What of a saved optimizer finds no place in the live one, and what of the live one the file has nothing for.

Parameters that are in a live model and not in its optimizer are frozen: their state is kept aside for the next save.
What is in no model has no place. A parameter that the file's model has and its optimizer had not was frozen then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from unmoor.values.beside import FROZEN
from unmoor.values.catalog import Part
from unmoor.values.nodes import TensorNode
from unmoor.values.plan import Change, Copy
from unmoor.values.target import Slot, TargetOptimizer
from unmoor.values.text import count, listing

from .optimizer_match import OptimizerMatch
from .policy import Fault, Policy
from .saved_optimizer import SavedOptimizer, place_of
from .selection import Chosen
from .slots import make_slot
from .templates import Template

__all__ = ["LeftOver", "plan_left_over"]


@dataclass(slots=True)
class LeftOver:
    """`aside` is what is to be kept for frozen parameters: a state dict by name, with Slots; the rest is to be told."""

    aside: Mapping[str, Any] = field(default_factory=dict)
    copies: list[Copy] = field(default_factory=list)
    fresh: list[Change] = field(default_factory=list)
    unexpected: list[Change] = field(default_factory=list)
    not_restored: list[Change] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


def plan_left_over(
    target: TargetOptimizer,
    part: Part,
    saved: SavedOptimizer,
    match: OptimizerMatch,
    policy: Policy,
    *,
    listed: Collection[str],
    chosen: Chosen,
) -> LeftOver:
    """`listed` are the live names of parameters that the file's own model has."""
    left = LeftOver()
    _unheld(target, saved, match, policy, listed, left)
    _unborne(target, saved, match, policy, chosen, left)
    _keep_aside(target, part, saved, match, chosen, left)
    live = [param.name or f"parameter {position}" for position, param in target.params()]
    out = [live[position] for position in sorted(chosen.left)]
    left.not_restored += [Change(target.label, name, f"left out by {chosen.word}", "left as it is") for name in out]
    return left


def _unheld(
    target: TargetOptimizer,
    saved: SavedOptimizer,
    match: OptimizerMatch,
    policy: Policy,
    listed: Collection[str],
    left: LeftOver,
) -> None:
    """Live parameters that the saved optimizer did not have."""
    live = [param.name or f"parameter {position}" for position, param in target.params()]
    names = [live[position] for position in match.missing]
    new = [name for name in names if name not in listed]
    if new and policy.missing == "error" and any(saved.state.values()):
        text = f"the file holds no state for {listing(new)}"
        left.faults.append(Fault("mismatch", target.label, text, 'missing="fresh" starts it without'))
    left.fresh += [Change(target.label, name, "not in the saved optimizer", "starts without state") for name in names]


def _unborne(
    target: TargetOptimizer,
    saved: SavedOptimizer,
    match: OptimizerMatch,
    policy: Policy,
    chosen: Chosen,
    left: LeftOver,
) -> None:
    """Saved state whose name no live parameter bears."""
    names = [name for name, identity in match.unmatched.items() if saved.state.get(identity) and chosen.asks(name)]
    if names and policy.unexpected == "error":
        text = f"the file holds state for {listing(names)}, which no live parameter is called"
        remedy = 'unexpected="ignore" drops it' + ("" if match.judged else ", model= keeps what is frozen")
        left.faults.append(Fault("mismatch", target.label, text, remedy))
    left.unexpected += [Change(target.label, name, "saved state", "not in the live optimizer") for name in names]


def _keep_aside(
    target: TargetOptimizer,
    part: Part,
    saved: SavedOptimizer,
    match: OptimizerMatch,
    chosen: Chosen,
    left: LeftOver,
) -> None:
    ids = {name: i for name, i in match.frozen.items() if saved.state.get(i) and chosen.asks(name)}
    if not ids:
        return
    state = {}
    make = make_slot(f"{target.label}/state/{FROZEN}", "cpu")
    for name, identity in ids.items():
        template = Template(target.label, f"{name} (frozen)", (*part.keys, *place_of(identity)), _under(name, make))
        state[name] = template(saved.state[identity])
        left.copies += template.copies
    left.aside = {"state": state, "param_groups": _groups(target, part, saved, ids, left)}
    left.not_restored += [
        Change(target.label, name, "frozen: state kept aside", "written back by the next save") for name in ids
    ]


def _under(name: str, make: Any) -> Any:
    def slot(suffix: str, node: TensorNode) -> Slot:
        made: Slot = make(f"{name}{suffix}", node)
        return made

    return slot


def _groups(
    target: TargetOptimizer, part: Part, saved: SavedOptimizer, ids: Mapping[str, Any], left: LeftOver
) -> list[dict[str, Any]]:
    """The groups that the frozen parameters were in, with their options, by name."""
    homes = saved.homes()
    members: dict[int, list[str]] = {}
    groups: dict[int, Mapping[str, Any]] = {}
    for name, identity in ids.items():
        group = homes[identity]
        groups[id(group)] = group
        members.setdefault(id(group), []).append(name)
    made = []
    for number, (key, group) in enumerate(groups.items()):
        options = {k: v for k, v in group.items() if k not in ("params", "param_names")}
        make = make_slot(f"{target.label}/state/{FROZEN} {count(number, 'group')}", "cpu")
        template = Template(target.label, f"{FROZEN} options", (*part.keys, "param_groups"), make)
        made.append({**template(options), "params": members[key]})
        left.copies += template.copies
    return made
