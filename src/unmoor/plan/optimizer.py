"""Optimizer state to its parameters: by name where there are names, else by order proved by shape.

State lands beside its parameter in the dtype it was saved in; counters that live on the host do so unless the live
group is capturable or fused. Execution flags are the live optimizer's own, always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unmoor.values.catalog import Part
from unmoor.values.nodes import TensorNode
from unmoor.values.optimizers import (
    CLASS_FLAGS,
    EXECUTION_FLAGS,
    FAMILIES,
    SHARED_OPTIONS,
    OptimizerFamily,
    guess_family,
)
from unmoor.values.plan import Change, Copy, SetOptimizer
from unmoor.values.target import Slot, TargetGroup, TargetOptimizer, TargetParam
from unmoor.values.text import count, format_shape, listing

from .names import match_names
from .policy import Fault, Policy
from .templates import Template

__all__ = ["OptimizerPlan", "contiguous", "plan_optimizer", "saved_names"]

HOST_SCALARS = ("step", "mu_product")
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


@dataclass(frozen=True, slots=True)
class _Saved:
    """The optimizer state dict of the file, taken apart."""

    groups: tuple[Mapping[str, Any], ...]
    ids: tuple[tuple[Any, ...], ...]
    names: tuple[str, ...] | None
    state: Mapping[Any, Mapping[str, Any]]

    @property
    def flat(self) -> list[Any]:
        return [i for group in self.ids for i in group]


def saved_names(node: Mapping[str, Any], recorded: Sequence[str] | None = None) -> tuple[str, ...] | None:
    """The parameter names that an optimizer state dict carries, in order, or None.

    They are the `param_names` of its groups, or its keys where those are names, or what the manifest recorded.
    """
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


def _take_apart(part: Part, recorded: Sequence[str] | None) -> _Saved:
    node = part.node
    groups = tuple(node["param_groups"])
    state = {key: value for key, value in node["state"].items() if isinstance(value, Mapping)}
    return _Saved(groups, tuple(tuple(group["params"]) for group in groups), saved_names(node, recorded), state)


def plan_optimizer(
    target: TargetOptimizer,
    part: Part,
    policy: Policy,
    *,
    recorded: Sequence[str] | None,
    file_order: Sequence[str] | None,
    renamed: Mapping[str, str],
) -> OptimizerPlan:
    """Plan one optimizer.

    `recorded` are the names in the manifest. `file_order` are the live parameter names in the order of the file's own
    model, where that is known. `renamed` is saved model name -> live name.
    """
    plan = OptimizerPlan()
    saved = _take_apart(part, recorded)
    _check_class(target, saved, plan)
    if plan.faults:
        return plan
    match = _match(target, saved, policy, file_order, renamed, plan)
    if plan.faults:
        return plan
    state = _plan_state(target, part, saved, match, policy, plan)
    options = _plan_options(target, saved, match, policy, plan)
    plan.step = SetOptimizer(target.label, options, state, through=not target.direct)
    return plan


def _check_class(target: TargetOptimizer, saved: _Saved, plan: OptimizerPlan) -> None:
    keys = {key for entry in saved.state.values() for key in entry}
    options = {key for group in saved.groups for key in group} - {"params", "param_names"}
    live = {key for group in target.groups for key in group.options}
    family = guess_family(keys, options)
    foreign = options - live - SHARED_OPTIONS
    lacking = live - options - SHARED_OPTIONS
    known = _family(target)
    wrong_state = known is not None and keys and not keys <= set(known.state) | set(known.optional)
    marks = set(FAMILIES[family].options) if family else set()
    other_class = bool(marks & foreign) or (wrong_state and not keys & set(known.state if known else ()))
    if not (other_class and family and family != target.family) and not wrong_state:
        return
    held = f"{family or 'another optimizer'}-like state ({', '.join(sorted(keys)) or 'empty'}; options {', '.join(sorted(foreign)) or 'alike'})"
    needs = f"needs {', '.join(known.state)}" if known else f"options {', '.join(sorted(lacking))}"
    own = f"; options {', '.join(known.options)}" if known else ""
    plan.faults.append(
        Fault(
            "mismatch",
            target.label,
            f"the file holds {held}, the live optimizer is {target.class_name} ({needs}{own})",
            f"{target.label}=None starts it fresh",
        )
    )


def _family(target: TargetOptimizer) -> OptimizerFamily | None:
    """The table's row where the live class is torch's own: a class derived from it may keep more."""
    family = FAMILIES.get(target.family)
    return family if family is not None and target.class_name in (family.name, *family.also) else None


@dataclass(frozen=True, slots=True)
class _Match:
    """Live position -> saved id, and how it was found."""

    ids: Mapping[int, Any]
    how: str
    unmatched: tuple[str, ...] = ()
    missing: tuple[int, ...] = ()


def _match(
    target: TargetOptimizer,
    saved: _Saved,
    policy: Policy,
    file_order: Sequence[str] | None,
    renamed: Mapping[str, str],
    plan: OptimizerPlan,
) -> _Match:
    live = [param for _, param in target.params()]
    named = all(param.name for param in live) and len({param.name for param in live}) == len(live)
    if saved.names is not None and named and policy.order == "proved":
        return _by_name(target, live, saved, renamed, plan)
    return _by_order(target, live, saved, policy, file_order if named else None, plan)


def _by_name(
    target: TargetOptimizer, live: Sequence[TargetParam], saved: _Saved, renamed: Mapping[str, str], plan: OptimizerPlan
) -> _Match:
    names = saved.names or ()
    ids = dict(zip(names, saved.flat, strict=True))
    known = {renamed.get(name, name): name for name in names}
    shapes = dict.fromkeys(known)
    match = match_names(shapes, {param.name: param.shape for param in live})
    if match.rivals or (not match.reading.pairs and names and live):
        plan.faults.append(
            Fault(
                "mismatch",
                target.label,
                f"none of the {len(names)} parameter names in the file ({listing(list(names), 2)}) is in the live optimizer "
                f"({listing([p.name for p in live], 2)})",
                'order="live" matches by position instead',
            )
        )
        return _Match({}, "")
    positions = {param.name: i for i, param in enumerate(live)}
    found = {positions[name]: ids[known[other]] for name, other in match.reading.pairs.items()}
    how = "matched by name" + ("" if match.reading.how == "as saved" else f", {match.reading.how}")
    gone = tuple(known[name] for name in (*match.unexpected, *match.reading.outside))
    return _Match(found, how, gone, tuple(positions[name] for name in match.missing))


def _by_order(
    target: TargetOptimizer,
    live: Sequence[TargetParam],
    saved: _Saved,
    policy: Policy,
    file_order: Sequence[str] | None,
    plan: OptimizerPlan,
) -> _Match:
    by_live = dict(enumerate(saved.flat))
    sizes = [len(ids) for ids in saved.ids]
    if sizes != [len(group.params) for group in target.groups]:
        _size_fault(target, saved, plan)
        return _Match({}, "")
    by_file = _file_reading(live, saved, file_order)
    agree = by_file is None or by_file == by_live
    chosen, how = (by_file, "file") if policy.order == "file" and by_file is not None else (by_live, "live")
    wrong_live = _contradictions(live, saved, by_live)
    wrong_file = _contradictions(live, saved, by_file) if by_file is not None else []
    if policy.order == "proved" and not agree and by_file is not None:
        if wrong_live and not wrong_file:
            return _Match(
                by_file, "matched by the order of the file's own model: the live order contradicts the shapes"
            )
        if not (wrong_file and not wrong_live):
            _order_fault(target, live, by_live, by_file, saved, plan)
            return _Match({}, "")
    if how == "live" and wrong_live and policy.mismatched == "error":
        plan.faults += [Fault("mismatch", target.label, text, _REORDERED) for text in wrong_live]
    note = "matched by position, " + ("in the order of the file's model" if how == "file" else "shapes agree")
    if policy.order == "proved" and by_file is not None and agree:
        note += ", as does the order of the file's own model"
    return _Match(chosen or {}, note)


_REORDERED = (
    "the parameters were reordered or the model changed: pass rename={...}, or optimizer=None to start it fresh"
)


def _size_fault(target: TargetOptimizer, saved: _Saved, plan: OptimizerPlan) -> None:
    ours = [len(group.params) for group in target.groups]
    theirs = [len(ids) for ids in saved.ids]
    plan.faults.append(
        Fault(
            "mismatch",
            target.label,
            f"saved {count(len(theirs), 'group')} of {theirs} parameters, live {count(len(ours), 'group')} of {ours}, and the "
            "file holds no names to match them by",
            "build the optimizer over the same parameters, or optimizer=None to start it fresh",
        )
    )


def _file_reading(
    live: Sequence[TargetParam], saved: _Saved, file_order: Sequence[str] | None
) -> dict[int, Any] | None:
    """Position -> saved id if the saved optimizer went through the parameters in the order of the file's model."""
    if file_order is None or len(saved.ids) != 1:
        return None
    held = {param.name for param in live}
    order = [name for name in file_order if name in held]
    if len(order) != len(saved.flat) or set(order) != held:
        return None
    ids = dict(zip(order, saved.flat, strict=True))
    return {i: ids[param.name] for i, param in enumerate(live)}


def _contradictions(live: Sequence[TargetParam], saved: _Saved, reading: Mapping[int, Any] | None) -> list[str]:
    found = []
    elementwise = {key for family in FAMILIES.values() for key in family.elementwise}
    for position, identity in (reading or {}).items():
        param = live[position]
        for key, value in saved.state.get(identity, {}).items():
            if key in elementwise and isinstance(value, TensorNode) and value.shape != param.shape:
                found.append(
                    f"state {key!r} for {param.name or f'parameter {position}'} has shape {format_shape(value.shape)}, "
                    f"the live parameter has {format_shape(param.shape)}"
                )
                break
    return found


def _order_fault(
    target: TargetOptimizer,
    live: Sequence[TargetParam],
    by_live: Mapping[int, Any],
    by_file: Mapping[int, Any],
    saved: _Saved,
    plan: OptimizerPlan,
) -> None:
    differing = [i for i in by_live if by_live[i] != by_file[i]]
    rows = [
        f"{live[i].name}: state {by_live[i]} by live order, {by_file[i]} by the file's order" for i in differing[:4]
    ]
    more = f" and {len(differing) - 4} more" if len(differing) > 4 else ""
    plan.faults.append(
        Fault(
            "ambiguous",
            target.label,
            f"the file holds no names, and its model lists {len(differing)} of {len(saved.flat)} parameters in another order than "
            f"the live optimizer: {'; '.join(rows)}{more}",
            'order="live" or order="file" says which',
        )
    )


def _plan_state(
    target: TargetOptimizer, part: Part, saved: _Saved, match: _Match, policy: Policy, plan: OptimizerPlan
) -> dict[int, Mapping[str, Any]]:
    state: dict[int, Mapping[str, Any]] = {}
    without: list[str] = []
    for position, group, param, identity in _walk(target, match):
        entry = saved.state.get(identity, {}) if identity is not None else {}
        if not entry:
            without.append(param.name or f"parameter {position}")
            continue
        if policy.mismatched == "fresh" and _contradictions([param], saved, {0: identity}):
            plan.fresh.append(Change(target.label, param.name, "state of another shape", "starts fresh"))
            continue
        state[position] = _plan_entry(target, part, identity, position, group, param, entry, plan)
    stateful = sum(1 for entry in state.values() if any(v is not None for v in entry.values()))
    total = sum(len(group.params) for group in target.groups)
    plan.note = f"{target.class_name}: state for {stateful} of {total} parameters, {match.how}"
    if stateful < total and not match.unmatched and not match.missing:
        plan.note += f"; {count(total - stateful, 'parameter')} had no state when it was saved"
    for name in match.unmatched:
        if saved.state.get(dict(zip(saved.names or (), saved.flat, strict=True)).get(name)):
            plan.unexpected.append(
                Change(target.label, name, "saved state", "nothing takes it: not in the live optimizer")
            )
    for position in match.missing:
        name = [p.name for _, p in target.params()][position]
        plan.fresh.append(Change(target.label, name, "not in the saved optimizer", "starts without state"))
    return state


def _walk(target: TargetOptimizer, match: _Match) -> Iterator[tuple[int, TargetGroup, TargetParam, Any]]:
    position = 0
    for group in target.groups:
        for param in group.params:
            yield position, group, param, match.ids.get(position)
            position += 1


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
    name = param.name or f"parameter {position}"
    for key, value in entry.items():
        template = Template(
            target.label,
            f"{name}/{key}",
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
        if existing is not None and (existing.shape, existing.dtype, existing.device) == (
            node.shape,
            node.dtype,
            device,
        ):
            return existing
        stride = param.stride if node.shape == param.shape and param.dense else contiguous(node.shape)
        return Slot(
            f"{target.label}/state/{position}/{key}{suffix}",
            node.shape,
            node.dtype,
            stride,
            device,
            dense=True,
            make=True,
        )

    return make


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))


def _plan_options(
    target: TargetOptimizer, saved: _Saved, match: _Match, policy: Policy, plan: OptimizerPlan
) -> tuple[Mapping[str, Any], ...]:
    sources = _group_sources(target, saved, match)
    result: list[Mapping[str, Any]] = []
    for index, (group, source) in enumerate(zip(target.groups, sources, strict=True)):
        options = {} if source is None else _group_options(target, index, group, saved.groups[source], policy, plan)
        result.append(options)
        if source is None:
            plan.kept.append(Change(target.label, f"group {index}", "no saved group matches it", "live options kept"))
    return tuple(result)


def _group_sources(target: TargetOptimizer, saved: _Saved, match: _Match) -> list[int | None]:
    """Live group -> saved group: the same place where the shapes of the lists agree, else where its parameters were."""
    if len(target.groups) == len(saved.groups) and not match.unmatched and not match.missing:
        homes = {identity: g for g, ids in enumerate(saved.ids) for identity in ids}
        if all(homes.get(i) == g for g, i in _homes(target, match)):
            return list(range(len(saved.groups)))
    homes = {identity: g for g, ids in enumerate(saved.ids) for identity in ids}
    result: list[int | None] = []
    for index in range(len(target.groups)):
        votes = [homes[i] for g, i in _homes(target, match) if g == index and i in homes]
        result.append(max(set(votes), key=votes.count) if votes else None)
    return result


def _homes(target: TargetOptimizer, match: _Match) -> Iterator[tuple[int, Any]]:
    position = 0
    for g, group in enumerate(target.groups):
        for _ in group.params:
            if position in match.ids:
                yield g, match.ids[position]
            position += 1


def _group_options(
    target: TargetOptimizer,
    index: int,
    group: TargetGroup,
    saved: Mapping[str, Any],
    policy: Policy,
    plan: OptimizerPlan,
) -> dict[str, Any]:
    options: dict[str, Any] = {}
    many = len(target.groups) > 1
    for key, value in saved.items():
        if key in ("params", "param_names"):
            continue
        name = f"group {index} {key}" if many else key
        live = group.options.get(key)
        same = _same(live, value)
        if key in EXECUTION_FLAGS or key in CLASS_FLAGS:
            if not same and key in group.options:
                plan.kept.append(Change(target.label, name, _text(value), _text(live)))
            continue
        if policy.hyperparameters == "live" and key in group.options:
            if not same:
                plan.kept.append(Change(target.label, name, _text(value), _text(live)))
            continue
        template = Template(
            target.label, f"group {index}/{key}", ("param_groups", index, key), _option_slot(target, index, key)
        )
        options[key] = template(value)
        plan.copies += template.copies
        if not same:
            plan.options.append(
                Change(target.label, name, _text(live) if key in group.options else "unset", _text(value))
            )
    return options


def _option_slot(target: TargetOptimizer, index: int, key: str) -> Callable[[str, TensorNode], Slot]:
    def make(suffix: str, node: TensorNode) -> Slot:
        identity = f"{target.label}/options/{index}/{key}{suffix}"
        return Slot(identity, node.shape, node.dtype, contiguous(node.shape), "cpu", dense=True, make=True)

    return make


def _same(live: Any, saved: Any) -> bool:
    if isinstance(live, list | tuple) and isinstance(saved, list | tuple):
        return len(live) == len(saved) and all(_same(a, b) for a, b in zip(live, saved, strict=True))
    return type(live) in _PLAIN and type(saved) in _PLAIN and live == saved


_PLAIN = (bool, int, float, str, type(None))


def _text(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
