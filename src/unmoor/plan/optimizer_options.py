"""Saved options to live parameter groups. Execution flags and what marks the class stay the live optimizer's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from unmoor.values.nodes import TensorNode
from unmoor.values.optimizers import CLASS_FLAGS, EXECUTION_FLAGS, RUNNING_OPTIONS
from unmoor.values.plan import Change, Copy
from unmoor.values.target import Slot, TargetGroup, TargetOptimizer

from .group_sources import group_sources, merge
from .optimizer_match import OptimizerMatch
from .policy import Fault, Policy
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
    faults: list[Fault] = field(default_factory=list)


def plan_options(target: TargetOptimizer, saved: SavedOptimizer, match: OptimizerMatch, policy: Policy) -> OptionsPlan:
    """Plan the options of every live group; a group that no saved one matches keeps its own."""
    plan = OptionsPlan()
    for index, (group, sources) in enumerate(zip(target.groups, group_sources(target, saved, match), strict=True)):
        if not sources:
            plan.groups.append({})
            plan.kept.append(Change(target.label, f"group {index}", "no saved group matches it", "live options"))
            continue
        merged = merge(sources, _same)
        told = {key: values for key, values in merged.differing.items() if not _is_live(key, group, policy)}
        if told and policy.hyperparameters == "saved":
            plan.faults.append(_differing(target, index, len(sources), told))
        name = f"group {index} " if len(target.groups) > 1 else ""
        for key in sorted((merged.differing.keys() - told.keys()) & group.options.keys()):
            values = " and ".join(map(_text, merged.differing[key]))
            plan.kept.append(Change(target.label, name + key, values, _text(group.options[key])))
        own = {key: value for key, value in merged.options.items() if key not in merged.differing}
        plan.groups.append(_group(target, index, group, own, policy, plan))
    return plan


def _differing(target: TargetOptimizer, index: int, number: int, told: Mapping[str, Sequence[Any]]) -> Fault:
    """A live group made of saved groups that do not agree."""
    rows = [f"{key} {' and '.join(map(_text, values))}" for key, values in told.items()]
    text = f"live group {index} is made of {number} saved groups that differ: {'; '.join(rows)}"
    return Fault("mismatch", target.label, text, 'hyperparameters="live" keeps the options of the live group')


def _group(
    target: TargetOptimizer,
    index: int,
    group: TargetGroup,
    saved: Mapping[str, Any],
    policy: Policy,
    plan: OptionsPlan,
) -> dict[str, Any]:
    options: dict[str, Any] = {}
    told = any(isinstance(v, TensorNode) and v.device != "cpu" for v in saved.values())
    for key, value in saved.items():
        if key in ("params", "param_names"):
            continue
        name = f"group {index} {key}" if len(target.groups) > 1 else key
        if _is_live(key, group, policy):
            if key in group.options and not _same(group.options[key], value):
                plan.kept.append(Change(target.label, name, _text(value), _text(group.options[key])))
            continue
        template = Template(
            target.label, name, ("param_groups", index, key), _slot(target, index, key, group, told=told)
        )
        options[key] = template(value)
        plan.copies += template.copies
        if key not in group.options or not _same(group.options[key], value):
            before = _text(group.options[key]) if key in group.options else "unset"
            plan.changed.append(Change(target.label, name, before, _text(value)))
    return options


def _is_live(key: str, group: TargetGroup, policy: Policy) -> bool:
    """Whether the live setting wins whatever the file says."""
    asked = policy.hyperparameters == "live" and key in group.options and key not in RUNNING_OPTIONS
    return key in EXECUTION_FLAGS or key in CLASS_FLAGS or asked


def _slot(
    target: TargetOptimizer, index: int, key: str, group: TargetGroup, *, told: bool
) -> Callable[[str, TensorNode], Slot]:
    """Tensors among options are on the host, as torch's classes have them, and copied into live ones where those are.

    Other classes keep running sums there, beside their parameters. `told` tells that some were not on the host.
    """
    first = group.params[0].device if group.params else "cpu"

    def make(suffix: str, node: TensorNode) -> Slot:
        identity = f"{target.label}/options/{index}/{key}{suffix}"
        beside = not target.family and (node.device != "cpu" or not told)
        device = first if beside else "cpu"
        return Slot(identity, node.shape, node.dtype, contiguous(node.shape), device, dense=True, make=True)

    return make


def _same(live: Any, saved: Any) -> bool:
    if isinstance(live, list | tuple) and isinstance(saved, list | tuple):
        return len(live) == len(saved) and all(_same(a, b) for a, b in zip(live, saved, strict=True))
    return type(live) in _PLAIN and type(saved) in _PLAIN and live == saved


def _text(value: Any) -> str:
    if isinstance(value, TensorNode):
        return "the file's tensor"
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_text, value))})"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
