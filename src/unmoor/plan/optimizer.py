"""Optimizer state to its parameters.

State lands beside its parameter in the dtype it was saved in, or in the parameter's new dtype where it had the old
one; counters are where the live class, under the live switches, wants them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from unmoor.values.catalog import Part
from unmoor.values.finding import Finding
from unmoor.values.nodes import TensorNode
from unmoor.values.optimizers import COUNTERS, FAMILIES, counts_on_device, keeps_state, switched_on
from unmoor.values.plan import Change, Copy, SetOptimizer
from unmoor.values.target import Slot, TargetGroup, TargetOptimizer, TargetParam
from unmoor.values.text import count, key_text, listing

from .file_model import FileModel
from .joined import joined_faults, joined_twins, state_copies
from .left_over import plan_left_over
from .objects import opaque_names
from .optimizer_match import ELEMENTWISE, OptimizerMatch, contradictions, match_optimizer
from .optimizer_options import plan_options
from .optimizer_own import form_fault, plan_own, plan_whole
from .policy import Fault, Policy
from .rounding import rounding_faults
from .saved_optimizer import SavedOptimizer, class_faults, own_family, place_of, take_apart
from .selection import Chosen
from .slots import as_stored, contiguous
from .spread import boxes_of, own_loading, spread_faults
from .templates import Template

__all__ = ["OptimizerPlan", "plan_optimizer"]


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
    not_restored: list[Change] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    twins: list[tuple[Copy, Copy]] = field(default_factory=list)


def plan_optimizer(
    target: TargetOptimizer,
    part: Part,
    policy: Policy,
    *,
    recorded: Sequence[str] | None,
    own_model: FileModel,
    renamed: Mapping[str, str],
    known: Mapping[str, str],
    chosen: Chosen,
) -> OptimizerPlan:
    """Plan one optimizer; faults are gathered, nothing is raised.

    `recorded` are the names in the manifest. `own_model` is what the file's own model tells of the parameters.
    `renamed` is saved model name -> live name, `known` every name of a live parameter -> its name in an optimizer.
    `chosen` is what of the optimizer is asked for.
    """
    fault = form_fault(target, part)
    if fault is not None:
        return OptimizerPlan(faults=[fault])
    if by_itself := own_loading(target):
        return OptimizerPlan(faults=by_itself)
    if target.whole:
        return OptimizerPlan(faults=faults) if (faults := _code_faults(target, part)) else _plan_whole(target, part)
    saved = take_apart(part, recorded)
    faults = class_faults(target, saved) or _code_faults(target, part)
    if faults:
        return OptimizerPlan(faults=faults)
    match = match_optimizer(target, saved, policy, file=own_model, known=known, renamed=renamed, left=chosen.left)
    if match.faults:
        return OptimizerPlan(faults=list(match.faults))
    lacking = [*_lacking(target, saved, match), *_switched_on_since(target, saved, match, policy)]
    plan = OptimizerPlan(faults=lacking, findings=list(match.findings))
    _take_strays(target, saved, policy, plan)
    state = _plan_state(target, part, saved, match, policy, own_model.dtypes, plan)
    cast = [c for c in plan.copies if c.node.dtype != c.slot.dtype and c.slot.id.rpartition("/")[2] not in COUNTERS]
    plan.faults += rounding_faults(target.label, cast, policy, what="state ")
    plan.faults += joined_faults(target, state, plan.copies)
    if any(param.boxes is not None for _, param in target.params()):
        whole = [copy for copy in plan.copies if copy.slot.boxes is None and copy.node.shape != ()]
        plan.faults += spread_faults(target, state_copies(target, whole))
    plan.twins = joined_twins(target, plan.copies)
    options = plan_options(target, saved, match, policy)
    plan.copies += options.copies
    plan.options, plan.kept = options.changed, options.kept
    plan.faults += options.faults
    plan.note = _note(target, state, match, plan, chosen)
    listed = {*own_model.dtypes, *(name for name, _ in own_model.params)}
    plan.findings += _never_stepped(target, saved, match)
    left = plan_left_over(target, part, saved, match, policy, listed=listed, chosen=chosen)
    own = plan_own(target, part, saved)
    plan.step = SetOptimizer(
        target.label,
        tuple(options.groups),
        state,
        through=not target.direct,
        aside=left.aside,
        left=tuple(sorted(chosen.left)),
        own=own.keys,
        unassigned=own.state,
    )
    plan.copies += [*left.copies, *own.copies]
    plan.fresh += left.fresh
    plan.unexpected += left.unexpected
    plan.not_restored += left.not_restored
    plan.faults += left.faults
    return plan


def _plan_whole(target: TargetOptimizer, part: Part) -> OptimizerPlan:
    """A class whose state dict has a form of its own: all of it goes to its own load_state_dict."""
    own = plan_whole(target, part)
    note = f"{target.class_name}: {count(len(own.copies), 'tensor')}, handed to its own load_state_dict"
    return OptimizerPlan(
        copies=own.copies,
        step=SetOptimizer(target.label, (), {}, through=True, own=own.keys, whole=True),
        note=note,
    )


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
    lent = _lent(target, saved)
    homes = {id(group): _home(target, group, lent) for group in target.groups}
    for position, group, param in _positions(target):
        identity = match.ids.get(position)
        entry = saved.state.get(identity) if identity is not None else None
        if not entry:
            continue
        if policy.mismatched == "fresh" and contradictions([param], saved, {0: identity}):
            plan.fresh.append(Change(target.label, _name(param, position), "state of another shape", "starts fresh"))
            continue
        place = _Place(homes[id(group)], position, param, dtypes.get(param.name))
        state[position] = _plan_entry(place, (*part.keys, *place_of(identity)), entry, plan)
    return state


def _code_faults(target: TargetOptimizer, part: Part) -> list[Fault]:
    """Objects in the state that only code of their own could build: nothing of such an optimizer is moved."""
    needed = sorted(set(opaque_names(part.node)))
    text = f"the saved state holds objects of {listing(needed, 6)}, which only their own code can build"
    remedy = f"{target.label}=None starts it fresh; unmoor.load(path, trust=[...]) builds them"
    return [Fault("mismatch", target.label, text, remedy)] if needed else []


def _take_strays(target: TargetOptimizer, saved: SavedOptimizer, policy: Policy, plan: OptimizerPlan) -> None:
    """State that cannot find its parameter, because no group of the file lists its id."""
    if not saved.strays:
        return
    ids, listed = (listing([repr(key) for key in keys]) for keys in (saved.strays, saved.flat))
    if policy.unexpected == "ignore":
        plan.unexpected.append(Change(target.label, ids, "the saved state of no parameter", "dropped"))
        return
    text = f"the saved state of {ids} is of no parameter: the groups list {listed}"
    plan.faults.append(Fault("mismatch", target.label, text, 'unexpected="ignore" drops it'))


def _lacking(target: TargetOptimizer, saved: SavedOptimizer, match: OptimizerMatch) -> list[Fault]:
    """Parameters whose saved state lacks part of what the live class cannot do without."""
    family = own_family(target)
    lacking: dict[str, list[str]] = {}
    needed = frozenset(family.state if family is not None else ())
    for position, _, param in _positions(target) if needed else ():
        entry = saved.state.get(match.ids.get(position))
        if entry and not entry.keys() >= needed:
            gone = [key for key in family.state if key not in entry]  # type: ignore[union-attr]
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


def _switched_on_since(
    target: TargetOptimizer, saved: SavedOptimizer, match: OptimizerMatch, policy: Policy
) -> list[Fault]:
    """Live options that stay as they are and need state which the file lacks: the first step would fail."""
    lacking: dict[tuple[str, str], int] = {}
    for position, group, _ in _positions(target) if policy.hyperparameters == "live" else ():
        entry = saved.state.get(match.ids.get(position), {})
        for option, key in switched_on(target.family, group.options).items():
            if entry and key not in entry:
                lacking[option, key] = lacking.get((option, key), 0) + 1
    return [
        Fault(
            "mismatch",
            target.label,
            f"the live {target.class_name} has {option} on, which needs {key}: the file has none for "
            f"{count(number, 'parameter')}",
            f'hyperparameters="saved" leaves {option} off; {target.label}=None starts it fresh',
        )
        for (option, key), number in lacking.items()
    ]


def _lent(target: TargetOptimizer, saved: SavedOptimizer) -> dict[str, str]:
    """Storage key -> device of the live option, for saved options that are tensors."""
    live = target.groups[0].options if target.groups else {}
    return {
        node.storage.key: str(getattr(live.get(key), "device", "cpu"))
        for group in saved.groups
        for key, node in group.items()
        if isinstance(node, TensorNode) and node.storage is not None
    }


def _positions(target: TargetOptimizer) -> Iterator[tuple[int, TargetGroup, TargetParam]]:
    position = 0
    for group in target.groups:
        for param in group.params:
            yield position, group, param
            position += 1


def _name(param: TargetParam, position: int) -> str:
    return param.name or f"parameter {position}"


class _Home(NamedTuple):
    """What holds for all parameters of a live group.

    `beside` tells that the live class, under its switches, keeps counters with their parameter. `lent` are storages of
    options and where those are: state that is an option (an LBFGS's `t` is its tensor learning rate) stays with it.
    """

    label: str
    family: str
    elementwise: frozenset[str]
    beside: bool
    fused: bool
    lent: Mapping[str, str]


def _home(target: TargetOptimizer, group: TargetGroup, lent: Mapping[str, str]) -> _Home:
    row = FAMILIES.get(target.family)
    elementwise = frozenset(row.elementwise if row is not None else ())
    beside = counts_on_device(target.family, group.options)
    return _Home(target.label, target.family, elementwise, beside, bool(group.options.get("fused")), lent)


class _Place(NamedTuple):
    """A live parameter that state goes beside; `saved_dtype` is its dtype in the file, None where unknown."""

    home: _Home
    position: int
    param: TargetParam
    saved_dtype: str | None

    def device(self, key: str, node: TensorNode) -> str:
        """Where the state `key` lives."""
        lent = self.home.lent
        if lent and node.storage is not None and node.storage.key in lent:
            return lent[node.storage.key]
        return self.param.device if key not in COUNTERS or self.home.beside else "cpu"

    def dtype(self, key: str, node: TensorNode) -> str:
        """State in its parameter's dtype stays in it; anything else, and every counter, is as it was saved.

        A fused step takes no counter but a float32 one.
        """
        if key in COUNTERS:
            return "float32" if self.home.fused else node.dtype
        follows = node.dtype == self.saved_dtype and (node.shape or key in ELEMENTWISE)
        return self.param.dtype if follows else node.dtype


def _plan_entry(place: _Place, keys: tuple[Any, ...], entry: Mapping[str, Any], plan: OptimizerPlan) -> dict[str, Any]:
    made: dict[str, Any] = {}
    label, name, above = place.home.label, _name(place.param, place.position), key_text(keys)
    for key, value in entry.items():
        if type(value) is TensorNode and value.quantizer is None:  # nearly always: a template for each adds up
            slot = made[key] = _slot(place, key, "", value)
            plan.copies.append(Copy(label, f"{name}/{key}", f"{above}.{key}", value, slot))
            continue
        template = Template(label, f"{name}/{key}", (*keys, key), partial(_slot, place, key))
        made[key] = template(value)
        plan.copies += template.copies
    return made


def _slot(place: _Place, key: str, suffix: str, node: TensorNode) -> Slot:
    """Where a state goes: the live tensor that is there, where it is the one that would be made."""
    home, param = place.home, place.param
    dtype, device = place.dtype(key, node), place.device(key, node)
    boxes = None if param.boxes is None else boxes_of(param, home.family, key, node)
    existing = param.state.get(key) if not suffix else None
    if (
        existing is not None
        and (existing.shape == node.shape and existing.dtype == dtype and existing.device == device)
        and (node.shape == () or (existing.boxes == boxes and (boxes is None) == (param.boxes is None)))
        and (home.family or boxes is not None or existing.stride == _stride(place, key, node))
    ):
        return existing
    identity = f"{home.label}/state/{place.position}/{key}{suffix}"
    stride = _stride(place, key, node) if boxes is None else contiguous(node.shape)
    return Slot(identity, node.shape, dtype, stride, device, dense=True, make=True, boxes=boxes)


def _never_stepped(target: TargetOptimizer, saved: SavedOptimizer, match: OptimizerMatch) -> list[Finding]:
    """A warning where the file holds no state at all and the live class would have some after one step."""
    expected = any(keeps_state(target.family, group) for group in saved.groups)
    if not expected or any(saved.state.values()) or not match.ids:
        return []
    text = f"no saved state: the optimizer in the file had not stepped any of its {count(len(match.ids), 'parameter')}"
    begins = "from fresh accumulators" if FAMILIES[target.family].begins else "without state"
    return [Finding("no-optimizer-state", "warning", target.label, f"{text}; the live one starts {begins}")]


def _stride(place: _Place, key: str, node: TensorNode) -> tuple[int, ...]:
    """The parameter's for what torch's own classes lay out like it; else as saved, where that leaves no gaps."""
    param = place.param
    if key in place.home.elementwise and node.shape == param.shape and param.dense:
        return param.stride
    return as_stored(node)


def _note(
    target: TargetOptimizer,
    state: Mapping[int, Mapping[str, Any]],
    match: OptimizerMatch,
    plan: OptimizerPlan,
    chosen: Chosen,
) -> str:
    stateful = sum(any(value is not None for value in entry.values()) for entry in state.values())
    total = sum(1 for _ in target.params())
    note = f"{target.class_name}: state for {stateful} of {total} parameters, {match.how}"
    without = total - stateful - len(match.missing) - len(plan.fresh) - len(chosen.left)
    return note + (f"; {count(without, 'parameter')} had no state when it was saved" if without > 0 else "")
