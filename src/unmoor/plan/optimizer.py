"""Optimizer state to its parameters.

State lands beside its parameter in the dtype it was saved in; counters that live on the host do so unless the live
group is capturable or fused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from unmoor.values.catalog import Part
from unmoor.values.nodes import TensorNode
from unmoor.values.plan import Change, Copy, SetOptimizer
from unmoor.values.target import Slot, TargetGroup, TargetOptimizer, TargetParam
from unmoor.values.text import count

from .optimizer_match import OptimizerMatch, contradictions, match_optimizer
from .optimizer_options import plan_options
from .policy import Fault, Policy
from .saved_optimizer import SavedOptimizer, class_faults, take_apart
from .slots import contiguous
from .templates import Template

__all__ = ["HOST_SCALARS", "OptimizerPlan", "plan_optimizer"]

HOST_SCALARS: Final = ("step", "mu_product")
"""State keys that torch keeps on the host unless the group is capturable or fused."""


@dataclass(slots=True)
class OptimizerPlan:
    """The steps for one optimizer, and what there is to tell about them."""

    copies: list[Copy] = field(default_factory=list)
    step: SetOptimizer | None = None
    note: str = ""
    options: list[Change] = field(default_factory=list)
    kept: list[Change] = field(default_factory=list)
    fresh: list[Change] = field(default_factory=list)
    unexpected: list[Change] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


def plan_optimizer(
    target: TargetOptimizer,
    part: Part,
    policy: Policy,
    *,
    recorded: Sequence[str] | None,
    file_order: Sequence[str] | None,
    renamed: Mapping[str, str],
) -> OptimizerPlan:
    """Plan one optimizer; faults are gathered, nothing is raised.

    `recorded` are the names in the manifest. `file_order` are the live parameter names in the order of the file's own
    model, where that is known. `renamed` is saved model name -> live name.
    """
    saved = take_apart(part, recorded)
    faults = class_faults(target, saved)
    if faults:
        return OptimizerPlan(faults=faults)
    match = match_optimizer(target, saved, policy, file_order=file_order, renamed=renamed)
    if match.faults:
        return OptimizerPlan(faults=list(match.faults))
    plan = OptimizerPlan()
    state = _plan_state(target, part, saved, match, policy, plan)
    options = plan_options(target, saved, match, policy)
    plan.copies += options.copies
    plan.options, plan.kept = options.changed, options.kept
    plan.note = _note(target, state, match, plan)
    plan.step = SetOptimizer(target.label, tuple(options.groups), state, through=not target.direct)
    _tell_left_over(target, saved, match, plan)
    return plan


def _plan_state(
    target: TargetOptimizer,
    part: Part,
    saved: SavedOptimizer,
    match: OptimizerMatch,
    policy: Policy,
    plan: OptimizerPlan,
) -> dict[int, Mapping[str, Any]]:
    state: dict[int, Mapping[str, Any]] = {}
    for position, group, param in _positions(target):
        identity = match.ids.get(position)
        entry = saved.state.get(identity, {}) if identity is not None else {}
        if not entry:
            continue
        if policy.mismatched == "fresh" and contradictions([param], saved, {0: identity}):
            plan.fresh.append(Change(target.label, _name(param, position), "state of another shape", "starts fresh"))
            continue
        state[position] = _plan_entry(target, part, identity, position, group, param, entry, plan)
    return state


def _positions(target: TargetOptimizer) -> Iterator[tuple[int, TargetGroup, TargetParam]]:
    position = 0
    for group in target.groups:
        for param in group.params:
            yield position, group, param
            position += 1


def _name(param: TargetParam, position: int) -> str:
    return param.name or f"parameter {position}"


def _plan_entry(
    target: TargetOptimizer,
    part: Part,
    identity: Any,
    position: int,
    group: TargetGroup,
    param: TargetParam,
    entry: Mapping[str, Any],
    plan: OptimizerPlan,
) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in entry.items():
        template = Template(
            target.label,
            f"{_name(param, position)}/{key}",
            (*part.keys, "state", identity, key),
            _slot_maker(target, position, key, group, param),
        )
        made[key] = template(value)
        plan.copies += template.copies
    return made


def _slot_maker(
    target: TargetOptimizer, position: int, key: str, group: TargetGroup, param: TargetParam
) -> Callable[[str, TensorNode], Slot]:
    on_device = bool(group.options.get("capturable") or group.options.get("fused"))
    device = param.device if key not in HOST_SCALARS or on_device else "cpu"

    def make(suffix: str, node: TensorNode) -> Slot:
        existing = param.state.get(key) if not suffix else None
        if existing and (existing.shape, existing.dtype, existing.device) == (node.shape, node.dtype, device):
            return existing
        stride = param.stride if node.shape == param.shape and param.dense else contiguous(node.shape)
        identity = f"{target.label}/state/{position}/{key}{suffix}"
        return Slot(identity, node.shape, node.dtype, stride, device, dense=True, make=True)

    return make


def _note(
    target: TargetOptimizer, state: Mapping[int, Mapping[str, Any]], match: OptimizerMatch, plan: OptimizerPlan
) -> str:
    stateful = sum(any(value is not None for value in entry.values()) for entry in state.values())
    total = sum(1 for _ in target.params())
    note = f"{target.class_name}: state for {stateful} of {total} parameters, {match.how}"
    without = total - stateful - len(match.missing) - len(plan.fresh)
    return note + (f"; {count(without, 'parameter')} had no state when it was saved" if without > 0 else "")


def _tell_left_over(target: TargetOptimizer, saved: SavedOptimizer, match: OptimizerMatch, plan: OptimizerPlan) -> None:
    ids = dict(zip(saved.names or (), saved.flat, strict=False))
    live = [param for _, param in target.params()]
    for name in match.unmatched:
        if saved.state.get(ids.get(name)):
            plan.unexpected.append(Change(target.label, name, "saved state", "not in the live optimizer"))
    for position in match.missing:
        name = _name(live[position], position)
        plan.fresh.append(Change(target.label, name, "not in the saved optimizer", "starts without state"))
