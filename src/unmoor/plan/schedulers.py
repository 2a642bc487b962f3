"""A saved schedule to a live scheduler: is it one of that kind, whose settings win, and what its groups must hold.

Progress (how many steps were taken) is the file's. Settings are the file's, or the live scheduler's on request: then
the live schedule is walked to the step at which the file stands.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from unmoor.values.catalog import Catalog, Part
from unmoor.values.finding import Finding
from unmoor.values.plan import AdvanceSchedule, Change, Copy, LoadSchedule
from unmoor.values.schedulers import (
    CHILDREN,
    DERIVED,
    GROUP_OPTIONS,
    PLATEAU,
    PROGRESS,
    SCHEDULERS,
    SchedulerFamily,
    guess_scheduler,
)
from unmoor.values.target import TargetObject, TargetSchedule
from unmoor.values.text import count

from .objects import needs_code
from .pickled_state import unpickled
from .policy import Fault, Policy
from .slots import make_slot
from .templates import Template

__all__ = ["SchedulePlan", "plan_schedule"]

_PER_GROUP: Final = ("base_lrs", "_last_lr", "min_lrs", "max_lrs", "lr_lambdas")
_CYCLING: Final = ("CyclicLR", "OneCycleLR")
_PLAIN: Final = (bool, int, float, str, type(None))


@dataclass(slots=True)
class SchedulePlan:
    """The step for one scheduler, and what there is to tell about it."""

    copies: list[Copy] = field(default_factory=list)
    step: LoadSchedule | AdvanceSchedule | None = None
    faults: list[Fault] = field(default_factory=list)
    options: list[Change] = field(default_factory=list)
    kept: list[Change] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    note: str = ""


def plan_schedule(
    target: TargetObject,
    live: TargetSchedule,
    part: Part,
    policy: Policy,
    *,
    catalog: Catalog,
    restored: Collection[str],
) -> SchedulePlan:
    """Plan one scheduler. `restored` are the labels that the same restore fills: an optimizer among them has its lr."""
    plan = SchedulePlan()
    saved = _without_derived(part.node)
    part = replace(part, node=saved)
    plan.faults += needs_code(target.label, part)
    bare = _is_bare(saved) and live.family != PLATEAU
    alone = bare or (policy.hyperparameters == "live" and live.family != PLATEAU)
    if not bare:
        plan.faults += [Fault(k, target.label, m, r) for k, m, r in _kinds(target, live, part, catalog)]
    if not plan.faults and not alone:
        plan.faults += [Fault("mismatch", target.label, m, r) for m, r in _group_faults(live, saved)]
    if not plan.faults and alone:
        plan.faults += _uncounted(target, live)
    if plan.faults:
        return plan
    if bare or policy.hyperparameters == "live":
        plan.kept += [Change(target.label, name, _text(b), _text(a)) for name, a, b in _differences(live.state, saved)]
        _keep_live(target, live, saved, plan)
    else:
        plan.options += [
            Change(target.label, name, _text(a), _text(b)) for name, a, b in _differences(live.state, saved)
        ]
        _take_saved(target, live, part, catalog, restored, plan)
    return plan


def _take_saved(
    target: TargetObject,
    live: TargetSchedule,
    part: Part,
    catalog: Catalog,
    restored: Collection[str],
    plan: SchedulePlan,
) -> None:
    for message, remedy in _too_short(live.state, part.node):
        plan.faults.append(Fault("mismatch", target.label, message, remedy))
    for message in _finished(part.node):
        remedy = f'build a longer schedule and pass hyperparameters="live", or {target.label}=None'
        plan.findings.append(Finding("schedule-finished", "warning", target.label, message, remedy))
    template = Template(target.label, target.label, part.keys, make_slot(f"{target.label}/state", "cpu"))
    tree = template(part.node)
    plan.copies += template.copies
    groups = () if live.optimizer in restored else _groups(target, live, part, catalog, plan)
    plan.step = LoadSchedule(target.label, tree, groups)


def _keep_live(target: TargetObject, live: TargetSchedule, saved: Mapping[str, Any], plan: SchedulePlan) -> None:
    if live.family == PLATEAU:
        progress = {key: value for key, value in saved.items() if key in PROGRESS and key != "_last_lr"}
        plan.step = LoadSchedule(target.label, progress)
        plan.note = "what it measured so far, from the file; its settings and the lr are the live ones"
        return
    there, here = _position(saved), _position(live.state)
    if there < here:
        plan.faults.append(
            Fault(
                "mismatch",
                target.label,
                f"the live scheduler already stands at step {here}, the file at step {there}",
                "build a new scheduler, then restore",
            )
        )
        return
    plan.step = AdvanceSchedule(target.label, there - here)
    plan.note = f"the live schedule, taken from step {here} to step {there}, where the file stands; the lr follows it"


def _is_bare(state: Any) -> bool:
    """Whether a state tells how far a schedule has come and not which one it is, as torchtitan's last_epoch alone."""
    return isinstance(state, Mapping) and type(state.get("last_epoch")) is int and state.keys() <= PROGRESS


def _position(state: Mapping[str, Any]) -> int:
    """How many steps a schedule has taken."""
    if type(state.get("last_epoch")) is int:
        return int(state["last_epoch"])
    children = [child for child in state.get(CHILDREN) or () if isinstance(child, Mapping)]
    return _position(children[0]) if children else 0


def _kinds(target: TargetObject, live: TargetSchedule, part: Part, catalog: Catalog) -> Iterator[tuple[str, str, str]]:
    """Where the file's schedule is of another class than the live one, at the top or within."""
    where = part.path or "the file"
    recorded = (catalog.manifest or {}).get("roles", {}).get(target.label) or {}
    name = str(part.detail.get("class") or recorded.get("class") or "").rpartition(".")[2]
    known = _named(name)
    if name and name == target.class_name:
        pass
    elif known and live.family and known != live.family:
        yield "class", _other(where, known, live.family, target), "a scheduler of the class that was saved"
        return
    for place, mine, theirs in _pairs(live.state, part.node, where):
        one, other = guess_scheduler(mine.keys()), guess_scheduler(theirs.keys())
        if one is not None and one.name != (other.name if other else ""):
            shown = live.family if mine is live.state and live.family else one.name
            yield (
                "class",
                _other(place, other.name if other else "", shown, target),
                ("a scheduler of the class that was saved"),
            )
        elif len(mine.get(CHILDREN) or ()) != len(theirs.get(CHILDREN) or ()):
            numbers = f"{len(theirs.get(CHILDREN) or ())} schedulers, the live one runs {len(mine.get(CHILDREN) or ())}"
            yield "mismatch", f"{place} was saved by a scheduler of {numbers}", f"{target.label}=None leaves it alone"
        yield from _one_goes_on(target, place, mine, theirs)


def _one_goes_on(
    target: TargetObject, place: str, mine: Mapping[str, Any], theirs: Mapping[str, Any]
) -> Iterator[tuple[str, str, str]]:
    """Where one of two schedules goes on to another scheduler, and the other does not."""
    for key in {**mine, **theirs}:
        ours, saved = _is_schedule(mine.get(key)), _is_schedule(theirs.get(key))
        if ours != saved:
            has, lacks = ("live", "saved") if ours else ("saved", "live")
            text = f"the {has} one goes on to another scheduler at {place}.{key}, the {lacks} one does not"
            yield "mismatch", text, f"build it as it was saved; {target.label}=None leaves it alone"


def _uncounted(target: TargetObject, live: TargetSchedule) -> list[Fault]:
    """The fault of a schedule that cannot be walked: it goes on to another one, and both count."""
    within = [str(key) for key, value in live.state.items() if _is_schedule(value)]
    text = f"the live {target.class_name} goes on to the scheduler at {', '.join(within)}, and each counts its own "
    text += "steps: to which step the live schedule is to be taken cannot be told"
    return [Fault("mismatch", target.label, text, 'hyperparameters="saved" takes the saved one')] if within else []


def _is_schedule(value: Any) -> bool:
    """Whether a value of a scheduler's state is the state of another one that it goes on to."""
    return isinstance(value, Mapping) and "last_epoch" in value


def _other(where: str, theirs: str, mine: str, target: TargetObject) -> str:
    saved = f"the state of a {theirs}" if theirs else "a scheduler state of no class of torch"
    return f"{target.label}= is a {mine}, and {where} holds {saved}"


def _named(name: str) -> str:
    """A class name, where it is one of torch's."""
    return name if any(name == f.name or name in f.also for f in SCHEDULERS) else ""


def _pairs(
    live: Mapping[str, Any], saved: Any, where: str
) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """A live and a saved state, and those of the schedulers within them, by place."""
    if not isinstance(saved, Mapping):
        return
    yield where, live, saved
    for i, (mine, theirs) in enumerate(zip(live.get(CHILDREN) or (), saved.get(CHILDREN) or (), strict=False)):
        if isinstance(mine, Mapping):
            yield from _pairs(mine, theirs, f"{where}.{CHILDREN}.{i}")
    for key in filter(lambda key: _is_schedule(live[key]), live):
        yield from _pairs(live[key], saved.get(key), f"{where}.{key}")


def _group_faults(live: TargetSchedule, saved: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for place, _, theirs in _pairs(live.state, saved, ""):
        lengths = {key: len(theirs[key]) for key in _PER_GROUP if isinstance(theirs.get(key), list | tuple)}
        wrong = {key: n for key, n in lengths.items() if n != len(live.groups)}
        if wrong:
            key, number = next(iter(wrong.items()))
            name = f"{place[1:]}.{key}" if place else key
            held = f"{name} holds {count(number, 'value')}, one for each parameter group"
            message = f"{held}; the live optimizer has {count(len(live.groups), 'group')}"
            yield message, 'hyperparameters="live" takes the live schedule to the saved step'


def _differences(live: Mapping[str, Any], saved: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Settings that both have and that differ: name, live value, saved value."""
    for place, mine, theirs in _pairs(live, saved, ""):
        prefix = f"{place[1:]}." if place else ""
        for key, value in theirs.items():
            if key in PROGRESS or key in DERIVED or key == CHILDREN or key not in mine:
                continue
            if _is_plain(value) and not _is_schedule(value) and not _of_mappings(value) and not _same(mine[key], value):
                yield prefix + str(key), mine[key], value


def _too_short(live: Mapping[str, Any], saved: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Saved schedules that end, and before the live ones would."""
    for place, mine, theirs in _pairs(live, saved, ""):
        family = guess_scheduler(theirs.keys())
        if family is None or not family.ends:
            continue
        key = family.length
        there, here, done = theirs.get(key), mine.get(key), _position(theirs)
        if isinstance(there, int) and isinstance(here, int) and there < here:
            name = f"{place[1:]}.{key}" if place else key
            left = f"only {max(there - done, 0)} of the saved {there} steps remain, and step() raises after them"
            keep = f'hyperparameters="live" keeps the {here} steps and goes on at step {done}'
            message = f"{name} is {there} in the file and {here} in the live scheduler: {left}"
            yield message, f"{keep}; or build the scheduler with {key}={there}"


def _finished(saved: Mapping[str, Any]) -> Iterator[str]:
    for _, _, state in _pairs(saved, saved, ""):
        family: SchedulerFamily | None = guess_scheduler(state.keys())
        if family is not None and family.ends and isinstance(state.get(family.length), int):
            total, done = state[family.length], _position(state)
            if done >= total:
                yield f"the saved schedule is at its end ({done} of {total} steps): the next step() raises"


def _groups(
    target: TargetObject, live: TargetSchedule, part: Part, catalog: Catalog, plan: SchedulePlan
) -> tuple[Mapping[str, Any], ...]:
    """What the groups of its optimizer must hold, which building the scheduler has overwritten."""
    source = _saved_groups(target, part.node, len(live.groups), catalog)
    if source is not None:
        keys, groups = source
        plan.note = "the lr of its optimizer's groups, from the optimizer in the file"
    else:
        keys, groups = part.keys, _from_schedule(live, part.node)
        plan.note = "the lr of its optimizer's groups, from the schedule: the file holds no optimizer that fits"
        plan.note += "; momentum is set by its next step" if live.family in _CYCLING else ""
    made: list[Mapping[str, Any]] = []
    for index, (mine, theirs) in enumerate(zip(live.groups, groups, strict=True)):
        options: dict[str, Any] = {}
        for key, value in theirs.items():
            name = f"group {index} {key}" if len(live.groups) > 1 else str(key)
            template = Template(
                target.label, name, (*keys, index, key), make_slot(f"{target.label}/groups/{index}/{key}", "cpu")
            )
            options[key] = template(value)
            plan.copies += template.copies
            if not _same(mine.get(key), value):
                before = _text(mine[key]) if key in mine else "unset"
                plan.options.append(Change(target.label, name, before, _text(value)))
        made.append(options)
    return tuple(made)


_Groups = list[dict[str, Any]]


def _saved_groups(
    target: TargetObject, saved: Mapping[str, Any], number: int, catalog: Catalog
) -> tuple[tuple[Any, ...], _Groups] | None:
    """Where the groups of the file's optimizer of this scheduler stand, and what schedulers write into them."""
    parts = [
        p for p in catalog.part("optimizer") if isinstance(p.node, Mapping) and len(p.node["param_groups"]) == number
    ]
    named = [p for p in parts if p.keys == _recorded_keys(target, catalog)]
    parts = named or parts
    if len(parts) > 1:
        parts = [p for p in parts if [g.get("lr") for g in p.node["param_groups"]] == list(saved.get("_last_lr") or ())]
    if len(parts) != 1:
        return None
    groups = [{k: v for k, v in g.items() if k in GROUP_OPTIONS} for g in parts[0].node["param_groups"]]
    return (*parts[0].keys, "param_groups"), groups


def _recorded_keys(target: TargetObject, catalog: Catalog) -> tuple[Any, ...]:
    """Where the manifest has the optimizer of the same key: scheduler[gen] goes with optimizer[gen]."""
    label = "optimizer" + target.label[len(target.label.partition("[")[0]) :]
    entry = (catalog.manifest or {}).get("roles", {}).get(label)
    return tuple(entry["keys"]) if isinstance(entry, Mapping) and "keys" in entry else ()


def _from_schedule(live: TargetSchedule, saved: Mapping[str, Any]) -> _Groups:
    """The lr that the schedule gave last, and the lr that it began with."""
    number = len(live.groups)
    starts = _each(saved.get("base_lrs") if live.family != "CyclicLR" else None, number)
    rates = _each(saved.get("_last_lr"), number)
    pairs = zip(starts, rates, strict=True)
    return [{k: v for k, v in (("initial_lr", s), ("lr", r)) if v is not None} for s, r in pairs]


def _each(values: Any, number: int) -> Sequence[Any]:
    """One value a group; None for each where there are not as many."""
    return values if isinstance(values, list | tuple) and len(values) == number else [None] * number


def _without_derived(state: Any) -> Any:
    if not isinstance(state, Mapping):
        return state
    kept = {key: unpickled(value) for key, value in state.items() if key not in DERIVED}
    if isinstance(kept.get(CHILDREN), list | tuple):
        kept[CHILDREN] = [_without_derived(child) for child in kept[CHILDREN]]
    return kept


def _of_mappings(value: Any) -> bool:
    """Whether a value is bookkeeping that says again what other settings say."""
    return isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value)


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_is_plain(item) for item in value.values())
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in value)
    return isinstance(value, _PLAIN)


def _same(live: Any, saved: Any) -> bool:
    if isinstance(live, Mapping) and isinstance(saved, Mapping):
        return live.keys() == saved.keys() and all(_same(live[key], saved[key]) for key in saved)
    if isinstance(live, list | tuple) and isinstance(saved, list | tuple):
        return len(live) == len(saved) and all(_same(a, b) for a, b in zip(live, saved, strict=True))
    return isinstance(live, _PLAIN) and isinstance(saved, _PLAIN) and live == saved


def _text(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
