"""Saved options to live parameter groups. Execution flags and what marks the class stay the live optimizer's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from unmoor.values.nodes import TensorNode
from unmoor.values.optimizers import CLASS_FLAGS, EXECUTION_FLAGS
from unmoor.values.plan import Change, Copy
from unmoor.values.target import Slot, TargetGroup, TargetOptimizer

from .optimizer_match import OptimizerMatch
from .policy import Policy
from .saved_optimizer import SavedOptimizer
from .slots import contiguous
from .templates import Template

__all__ = ["OptionsPlan", "plan_options"]

_PLAIN: Final = (bool, int, float, str, type(None))


@dataclass(slots=True)
class OptionsPlan:
    """For each live group the options to set; what changes by it, and what live settings were kept."""

    groups: list[Mapping[str, Any]] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    changed: list[Change] = field(default_factory=list)
    kept: list[Change] = field(default_factory=list)


def plan_options(target: TargetOptimizer, saved: SavedOptimizer, match: OptimizerMatch, policy: Policy) -> OptionsPlan:
    """Plan the options of every live group; a group that no saved one matches keeps its own."""
    plan = OptionsPlan()
    for index, (group, source) in enumerate(zip(target.groups, _sources(target, saved, match), strict=True)):
        if source is None:
            plan.groups.append({})
            plan.kept.append(Change(target.label, f"group {index}", "no saved group matches it", "live options"))
        else:
            plan.groups.append(_group(target, index, group, saved.groups[source], policy, plan))
    return plan


def _sources(target: TargetOptimizer, saved: SavedOptimizer, match: OptimizerMatch) -> list[int | None]:
    """Live group -> the saved group that most of its parameters were in; the same place for groups without any."""
    homes = {identity: g for g, ids in enumerate(saved.ids) for identity in ids}
    same = len(target.groups) == len(saved.groups)
    result: list[int | None] = []
    for index in range(len(target.groups)):
        votes = [homes[identity] for g, identity in _members(target, match) if g == index and identity in homes]
        result.append(max(set(votes), key=votes.count) if votes else index if same else None)
    return result


def _members(target: TargetOptimizer, match: OptimizerMatch) -> Iterator[tuple[int, Any]]:
    """Live group and saved id of every matched parameter."""
    position = 0
    for g, group in enumerate(target.groups):
        for _ in group.params:
            if position in match.ids:
                yield g, match.ids[position]
            position += 1


def _group(
    target: TargetOptimizer,
    index: int,
    group: TargetGroup,
    saved: Mapping[str, Any],
    policy: Policy,
    plan: OptionsPlan,
) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for key, value in saved.items():
        if key in ("params", "param_names"):
            continue
        name = f"group {index} {key}" if len(target.groups) > 1 else key
        if _is_live(key, group, policy):
            if key in group.options and not _same(group.options[key], value):
                plan.kept.append(Change(target.label, name, _text(value), _text(group.options[key])))
            continue
        template = Template(target.label, name, ("param_groups", index, key), _slot(target, index, key))
        options[key] = template(value)
        plan.copies += template.copies
        if key not in group.options or not _same(group.options[key], value):
            before = _text(group.options[key]) if key in group.options else "unset"
            plan.changed.append(Change(target.label, name, before, _text(value)))
    return options


def _is_live(key: str, group: TargetGroup, policy: Policy) -> bool:
    """Whether the live setting wins whatever the file says."""
    asked = policy.hyperparameters == "live" and key in group.options
    return key in EXECUTION_FLAGS or key in CLASS_FLAGS or asked


def _slot(target: TargetOptimizer, index: int, key: str) -> Callable[[str, TensorNode], Slot]:
    def make(suffix: str, node: TensorNode) -> Slot:
        identity = f"{target.label}/options/{index}/{key}{suffix}"
        return Slot(identity, node.shape, node.dtype, contiguous(node.shape), "cpu", dense=True, make=True)

    return make


def _same(live: Any, saved: Any) -> bool:
    if isinstance(live, list | tuple) and isinstance(saved, list | tuple):
        return len(live) == len(saved) and all(_same(a, b) for a, b in zip(live, saved, strict=True))
    return type(live) in _PLAIN and type(saved) in _PLAIN and live == saved


def _text(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
