"""Optimizer state to its parameters.

State lands beside its parameter in the dtype it was saved in, or in the parameter's new dtype where it had the old
one; counters that live on the host do so unless the live group is capturable or fused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from unmoor.values.catalog import Part
from unmoor.values.dtypes import is_exact_cast
from unmoor.values.finding import Finding
from unmoor.values.nodes import TensorNode
from unmoor.values.plan import Change, Copy, SetOptimizer
from unmoor.values.target import Slot, TargetGroup, TargetOptimizer, TargetParam
from unmoor.values.text import count, listing

from .file_model import FileModel
from .optimizer_match import ELEMENTWISE, OptimizerMatch, contradictions, match_optimizer
from .optimizer_options import plan_options
from .policy import Fault, Policy
from .saved_optimizer import SavedOptimizer, class_faults, own_family, take_apart
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
    findings: list[Finding] = field(default_factory=list)


def plan_optimizer(
    target: TargetOptimizer,
    part: Part,
    policy: Policy,
    *,
    recorded: Sequence[str] | None,
    own_model: FileModel,
    renamed: Mapping[str, str],
) -> OptimizerPlan:
    """Plan one optimizer; faults are gathered, nothing is raised.

    `recorded` are the names in the manifest. `own_model` is what the file's own model tells of the parameters.
    `renamed` is saved model name -> live name.
    """
    saved = take_apart(part, recorded)
    faults = class_faults(target, saved)
    if faults:
        return OptimizerPlan(faults=faults)
    match = match_optimizer(target, saved, policy, file_order=own_model.order, renamed=renamed)
    if match.faults:
        return OptimizerPlan(faults=list(match.faults))
    plan = OptimizerPlan(faults=_lacking(target, saved, match), findings=list(match.findings))
    state = _plan_state(target, part, saved, match, policy, own_model.dtypes, plan)
    plan.faults += _rounded(target, policy, plan)
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
    dtypes: Mapping[str, str],
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
        place = _Place(target.label, position, group, param, dtypes.get(param.name))
        state[position] = _plan_entry(place, (*part.keys, "state", identity), entry, plan)
    return state


def _lacking(target: TargetOptimizer, saved: SavedOptimizer, match: OptimizerMatch) -> list[Fault]:
    """Parameters whose saved state lacks part of what the live class cannot do without."""
    family = own_family(target)
    lacking: dict[str, list[str]] = {}
    for position, _, param in _positions(target):
        entry = saved.state.get(match.ids.get(position), {})
        gone = [key for key in family.state if key not in entry] if family is not None and entry else []
        if gone:
            lacking.setdefault(", ".join(gone), []).append(_name(param, position))
    return [
        Fault(
            "mismatch",
            target.label,
            f"the saved state of {listing(names)} lacks {gone}, which {target.class_name} needs",
            f"{target.label}=None starts it fresh",
        )
        for gone, names in lacking.items()
    ]


def _rounded(target: TargetOptimizer, policy: Policy, plan: OptimizerPlan) -> list[Fault]:
    """State that would lose digits on the way to its parameter's dtype."""
    casts: dict[tuple[str, str], list[str]] = {}
    for copy in plan.copies if policy.cast != "any" else ():
        if not is_exact_cast(copy.node.dtype, copy.slot.dtype):
            casts.setdefault((copy.node.dtype, copy.slot.dtype), []).append(copy.name)
    return [
        Fault(
            "mismatch",
            target.label,
            f"state {listing(names)}    saved {saved}, live {live}: values would be rounded",
            'cast="any" allows it',
        )
        for (saved, live), names in casts.items()
    ]


def _positions(target: TargetOptimizer) -> Iterator[tuple[int, TargetGroup, TargetParam]]:
    position = 0
    for group in target.groups:
        for param in group.params:
            yield position, group, param
            position += 1


def _name(param: TargetParam, position: int) -> str:
    return param.name or f"parameter {position}"


@dataclass(frozen=True, slots=True)
class _Place:
    """A live parameter that state goes beside; `saved_dtype` is its dtype in the file, None where unknown."""

    label: str
    position: int
    group: TargetGroup
    param: TargetParam
    saved_dtype: str | None

    def device(self, key: str) -> str:
        """Where the state `key` lives."""
        on_device = self.group.options.get("capturable") or self.group.options.get("fused")
        return self.param.device if key not in HOST_SCALARS or on_device else "cpu"

    def dtype(self, key: str, node: TensorNode) -> str:
        """State in its parameter's dtype stays in it; anything else, and every counter, is as it was saved."""
        follows = node.dtype == self.saved_dtype and key not in HOST_SCALARS and (node.shape or key in ELEMENTWISE)
        return self.param.dtype if follows else node.dtype


def _plan_entry(place: _Place, keys: tuple[Any, ...], entry: Mapping[str, Any], plan: OptimizerPlan) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in entry.items():
        name = f"{_name(place.param, place.position)}/{key}"
        template = Template(place.label, name, (*keys, key), _slot_maker(place, key))
        made[key] = template(value)
        plan.copies += template.copies
    return made


def _slot_maker(place: _Place, key: str) -> Callable[[str, TensorNode], Slot]:
    param = place.param

    def make(suffix: str, node: TensorNode) -> Slot:
        dtype, device = place.dtype(key, node), place.device(key)
        existing = param.state.get(key) if not suffix else None
        if existing and (existing.shape, existing.dtype, existing.device) == (node.shape, dtype, device):
            return existing
        stride = param.stride if node.shape == param.shape and param.dense else contiguous(node.shape)
        identity = f"{place.label}/state/{place.position}/{key}{suffix}"
        return Slot(identity, node.shape, dtype, stride, device, dense=True, make=True)

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
