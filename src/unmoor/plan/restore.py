"""(Catalog, Target, Policy) -> Plan. Pure: every fault of the input is gathered and raised together.

Order of the steps: modules are moved; then data arrives; then objects take their states, then optimizers; RNG is last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from unmoor.errors import AmbiguousError, DeviceError, FitError, KindError, MismatchError
from unmoor.values.catalog import Catalog, Part
from unmoor.values.dtypes import dtype_bytes
from unmoor.values.finding import Finding
from unmoor.values.plan import Change, Copy, MoveModule, Plan, Step
from unmoor.values.roles import ROLES
from unmoor.values.target import Target, TargetModule, TargetObject, TargetOptimizer, TargetSchedule
from unmoor.values.text import columns, listing

from .choose import array_nodes, choose
from .extras import plan_extras, unasked
from .file_model import Planned, file_model, known_names, renamed_names, several_models
from .flat_ranks import with_parameters
from .modules import module_fit, plan_module
from .objects import plan_loader, plan_object
from .of_rank import every_rank, of_rank
from .optimizer import OptimizerPlan, plan_optimizer
from .optimizer_own import whole_part
from .pickled_state import with_states
from .policy import Fault, Policy
from .ranks_told import tell_ranks, withheld
from .role_words import AnyTarget, key_of, misplaced
from .saved_optimizer import optimizer_fit
from .schedulers import plan_schedule
from .selection import Selection, select
from .streams import plan_rng
from .through import plan_through

__all__ = ["plan_restore"]


@dataclass(slots=True)
class _Draft:
    """A plan in the making."""

    moves: list[MoveModule] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    loads: list[Step] = field(default_factory=list)
    optimizers: list[Step] = field(default_factory=list)
    rng: list[Step] = field(default_factory=list)
    restored: list[str] = field(default_factory=list)
    changes: dict[str, list[Change]] = field(default_factory=dict)
    notes: list[tuple[str, str]] = field(default_factory=list)
    twins: list[tuple[Copy, Copy]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    used: list[Part] = field(default_factory=list)
    sources: list[tuple[str, str]] = field(default_factory=list)
    modules: dict[str, Planned] = field(default_factory=dict)
    selection: Selection = field(default_factory=Selection)
    known: Mapping[str, str] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)
    saved: Catalog | None = None
    withheld: Mapping[str, str] = field(default_factory=dict)

    def tell(self, name: str, changes: Sequence[Change]) -> None:
        self.changes.setdefault(name, []).extend(changes)

    def source(self, label: str, part: Part) -> None:
        """Keep which of several files a label comes from."""
        if "file" in part.detail:
            self.sources.append((label, str(part.detail["file"])))


def plan_restore(catalog: Catalog, target: Target, policy: Policy) -> Plan:
    """Everything a restore of this file into this run does.

    Raises KindError, MismatchError, AmbiguousError or DeviceError with all faults as details; nothing was changed.
    """
    selection = select(target, policy)
    draft = _Draft(
        selection=selection,
        faults=list(selection.faults),
        known=known_names(target) if target.optimizers else {},
        saved=catalog,
    )
    everyone, catalog = catalog, of_rank(catalog, target.rank, target.world)
    draft.withheld = withheld(everyone, target)
    told = tell_ranks(everyone, target.rank, target.world, target.labels())
    catalog, uncut = with_parameters(with_states(catalog), target, policy)
    draft.faults += uncut
    if uncut:
        _raise_faults(catalog, draft)
    for module in target.modules:
        _add_module(catalog, module, target, policy, draft)
    for item in target.objects:
        if item.schedule is None:
            _add_object(catalog, item, target, policy, draft)
    for optimizer in target.optimizers:
        _add_optimizer(catalog, optimizer, target, policy, draft)
    for item in target.objects:
        if item.schedule is not None:
            _add_schedule(catalog, item, item.schedule, target, policy, draft)
    streams = plan_rng(everyone, target.streams, policy, rank=target.rank, world=target.world)
    draft.copies += streams.copies
    draft.rng += streams.steps
    draft.faults += streams.faults
    draft.tell("not_restored", streams.not_restored)
    if streams.note:
        draft.sources += [("rng", file) for file in streams.files]
        draft.notes.append(("rng", streams.note))
        draft.restored.append("rng")
    draft.notes += [("ranks", told.note)] if told.note else []
    asked = set(target.labels()) - set(draft.withheld)
    if asked and not [label for label in draft.restored if label != "rng"] and not draft.faults:
        draft.faults += [
            Fault("kind", c.label, c.before, "") for c in draft.changes.get("not_restored", ()) if c.label != "rng"
        ]
    draft.faults += _without_data(draft.copies)
    _raise_faults(catalog, draft)
    draft.tell("not_restored", told.not_restored)
    used = {part.keys for part in draft.used}
    values = plan_extras(catalog, policy, used)
    draft.copies += values.copies
    draft.tell("not_restored", values.without_data)
    draft.tell("not_restored", unasked(catalog, used, told=draft.left_out))
    return _finish(catalog, target, policy, draft, values.extra)


def _without_data(copies: Sequence[Copy]) -> list[Fault]:
    """Tensors that were on the meta device when they were saved: there is nothing to restore from."""
    empty: dict[str, list[str]] = {}
    for copy in copies:
        if copy.node.device == "meta" and copy.node.storage is None and copy.node.numel:
            empty.setdefault(copy.label, []).append(copy.name)
    text = "saved on the meta device: the file holds no data for it"
    return [
        Fault("mismatch", label, f"{listing(names)} (meta) {text}", f"skip={names[:4]} leaves it as it is")
        for label, names in empty.items()
    ]


def _pick(catalog: Catalog, target: AnyTarget, run: Target, policy: Policy, draft: _Draft) -> Part | None:
    def fits(part: Part) -> bool:
        if isinstance(target, TargetModule):
            return module_fit(part, target, policy)
        return not isinstance(target, TargetOptimizer) or optimizer_fit(part, target)

    why = draft.withheld.get(target.label, "") if target.label not in policy.at else ""
    if why:
        draft.tell("not_restored", [Change(target.label, "", why, f"rank {run.rank} has none")])
        draft.left_out.add(target.role)
        return None
    everyone: list[AnyTarget] = [*run.modules, *run.objects, *run.optimizers]
    rivals = [t for t in everyone if key_of(t.label)[0] == key_of(target.label)[0]]
    choice = choose(catalog, target, at=policy.at, fits=fits, rivals=rivals, alone=len(run.modules) == 1)
    if choice.fault is not None:
        draft.faults.append(choice.fault)
    elif choice.part is None:
        draft.tell("not_restored", [Change(target.label, "", choice.reason, "left as it is")])
    else:
        draft.used.append(choice.part)
        draft.source(target.label, choice.part)
        draft.findings += misplaced(choice.part, target, policy.at)
    return choice.part


def _add_module(catalog: Catalog, module: TargetModule, target: Target, policy: Policy, draft: _Draft) -> None:
    chosen = draft.selection.of(module.label)
    if not chosen.everything and not any(map(chosen.asks, (*module.slots, *module.extra_state))):
        draft.tell("not_restored", [Change(module.label, "", f"left out by {chosen.word}", "left as it is")])
        draft.left_out.add(module.role)
        return
    part = _pick(catalog, module, target, policy, draft)
    if part is None:
        return
    if module.through and module.meta:
        text = (
            f"{listing(sorted(module.meta))} of the live model is on the meta device, and it loads in a way of its own"
        )
        draft.faults.append(Fault("device", module.label, text, "model.to_empty(device=...) first"))
        return
    arrays = array_nodes(catalog)
    if module.through:
        plan = plan_through(module, part, policy, arrays)
    else:
        plan = plan_module(module, part, policy, chosen, arrays)
    draft.faults += plan.faults
    draft.copies += plan.copies
    draft.loads += plan.loads
    draft.twins += plan.twins
    draft.modules[module.label] = (module, part, plan)
    for name in ("renamed", "fresh", "missing", "unexpected", "not_restored"):
        draft.tell(name, getattr(plan, name))
    if plan.note:
        draft.notes.append((module.label, plan.note))
    draft.restored.append(module.label)


def _add_object(catalog: Catalog, item: TargetObject, target: Target, policy: Policy, draft: _Draft) -> None:
    part = _pick(catalog, item, target, policy, draft)
    if part is None:
        return
    if item.position is not None or item.role == "loader":
        everyone = every_rank(draft.saved or catalog, part.keys)
        plan = plan_loader(item, part, everyone, policy.position, target)
    else:
        plan = plan_object(item, part, array_nodes(catalog))
    draft.faults += plan.faults
    draft.copies += plan.copies
    draft.findings += plan.findings
    draft.tell("fresh", plan.fresh)
    if plan.note:
        draft.notes.append((item.label, plan.note))
    if plan.load is not None:
        draft.loads.append(plan.load)
        draft.restored.append(item.label)


def _add_schedule(
    catalog: Catalog, item: TargetObject, live: TargetSchedule, target: Target, policy: Policy, draft: _Draft
) -> None:
    part = _pick(catalog, item, target, policy, draft)
    if part is None:
        return
    plan = plan_schedule(item, live, part, policy, catalog=catalog, restored=draft.restored)
    draft.faults += plan.faults
    draft.copies += plan.copies
    draft.findings += plan.findings
    draft.tell("options", plan.options)
    draft.tell("kept", plan.kept)
    if plan.step is not None:
        draft.loads.append(plan.step)
        draft.restored.append(item.label)
    if plan.note:
        draft.notes.append((item.label, plan.note))


def _add_optimizer(catalog: Catalog, optimizer: TargetOptimizer, target: Target, policy: Policy, draft: _Draft) -> None:
    part = whole_part(catalog, optimizer) if optimizer.whole and optimizer.label not in policy.at else None
    if part is not None:
        draft.used.append(part)
    part = part or _pick(catalog, optimizer, target, policy, draft)
    if part is None:
        return
    empty = [param.name or f"parameter {i}" for i, param in optimizer.params() if param.device == "meta"]
    if empty:
        text = f"{listing(empty)} of the live optimizer is on the meta device, which holds no data"
        remedy = 'pass model= and model_device="cpu" or another device: it is made there'
        draft.faults.append(Fault("device", optimizer.label, text, remedy))
        return
    modules, many = tuple(draft.modules.values()), several_models(target)
    plan = plan_optimizer(
        optimizer,
        part,
        policy,
        recorded=_recorded_names(catalog, optimizer.label),
        own_model=file_model(catalog, optimizer, modules, policy.rename, many=many),
        renamed=renamed_names(optimizer, modules, many=many),
        known=draft.known,
        chosen=draft.selection.of(optimizer.label),
    )
    _take_optimizer(optimizer, plan, draft)


def _take_optimizer(optimizer: TargetOptimizer, plan: OptimizerPlan, draft: _Draft) -> None:
    draft.faults += plan.faults
    draft.copies += plan.copies
    draft.findings += plan.findings
    draft.twins += plan.twins
    for name in ("options", "kept", "fresh", "unexpected", "not_restored"):
        draft.tell(name, getattr(plan, name))
    if plan.step is not None:
        draft.optimizers.append(plan.step)
        draft.notes.append((optimizer.label, plan.note))
        draft.restored.append(optimizer.label)


def _recorded_names(catalog: Catalog, label: str) -> Sequence[str] | None:
    entry = (catalog.manifest or {}).get("roles", {}).get(label)
    return entry.get("names") if isinstance(entry, Mapping) else None


_PARTIAL: Final = frozenset({"shard-of-folder", "shard-of-index", "lacks-files", "incomplete-step"})
_ORDER: Final = (
    ("kind", KindError),
    ("class", KindError),
    ("device", DeviceError),
    ("ambiguous", AmbiguousError),
    ("mismatch", MismatchError),
)


def _raise_faults(catalog: Catalog, draft: _Draft) -> None:
    faults = draft.faults
    if not faults:
        return
    kinds = {fault.kind for fault in faults}
    error: type[FitError] = dict(_ORDER)[next(iter(kinds))] if len(kinds) == 1 else MismatchError
    if len(faults) == 1 and faults[0].kind in ("kind", "class"):
        expected = [f"expected   {faults[0].remedy}"] if faults[0].remedy else []
        details = [*expected, *(f"the file   {row}" for row in _lacking(catalog))]
        without = f" {faults[0].label}=None restores the rest without it." if faults[0].kind == "class" else ""
        remedy = f"Nothing was changed.{without}"
        error_of_kind = KindError(faults[0].message, details=details, remedy=remedy, path=catalog.path)
        error_of_kind.wanted = key_of(faults[0].label)[0] if faults[0].kind == "kind" else ""
        raise error_of_kind
    rows = [(f.label, f.message + (f"   -> {f.remedy}" if f.remedy else "")) for f in faults]
    rows += [("the file", row) for row in _lacking(catalog)]
    number = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    raise error(
        f"{number} between {catalog.path} and the live run; nothing was changed",
        details=columns(rows, indent=0, gap=3),
        path=catalog.path,
    )


def _lacking(catalog: Catalog) -> list[str]:
    """What a reader of a fault should know first: that the file is a part of something, or lacks others."""
    found = [finding for finding in catalog.findings if finding.code in _PARTIAL]
    return [f"{finding.message}   -> {finding.remedy}" for finding in found]


def _finish(catalog: Catalog, target: Target, policy: Policy, draft: _Draft, extra: Mapping[str, Any]) -> Plan:
    if policy.device is not None:
        everyone: list[TargetModule | TargetObject] = [*target.modules, *target.objects]
        moved = [item.label for item in everyone if item.role in ROLES and ROLES[item.role].placement == "device"]
        draft.moves += [MoveModule(label, policy.device) for label in moved]
    changes: dict[str, Any] = {name: tuple(found) for name, found in draft.changes.items()}
    steps: list[Step] = [*draft.moves, *draft.copies, *draft.loads, *draft.optimizers, *draft.rng]
    made = Plan(
        path=catalog.path,
        steps=tuple(steps),
        restored=tuple(sorted(draft.restored, key=_order_of)),
        moved=tuple(_moved(draft.copies)),
        cast=tuple(_cast(draft.copies)),
        notes=tuple(draft.notes),
        sources=tuple(draft.sources),
        findings=(*catalog.findings, *draft.findings),
        extra=extra,
        twins=tuple(draft.twins),
    )
    return replace(made, **changes)


def _order_of(label: str) -> int:
    """Roles in the order of the table, which ends with rng; other keywords stand before that."""
    words = list(ROLES)
    role = key_of(label)[0]
    return words.index(role) if role in ROLES else len(words) - 1


def _moved(copies: Sequence[Copy]) -> list[Change]:
    return [
        Change(c.label, c.name, c.node.device, c.slot.device, c.node.numel * dtype_bytes(c.node.dtype))
        for c in copies
        if c.node.device != c.slot.device
    ]


def _cast(copies: Sequence[Copy]) -> list[Change]:
    return [Change(c.label, c.name, c.node.dtype, c.slot.dtype) for c in copies if c.node.dtype != c.slot.dtype]
