"""(Catalog, Target, Policy) -> Plan. Pure: every fault of the input is gathered and raised together.

Order of the steps: modules are moved; then data arrives; then objects take their states, then optimizers; RNG is last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from unmoor.errors import AmbiguousError, DeviceError, FitError, KindError, MismatchError
from unmoor.values.catalog import Catalog, Part
from unmoor.values.dtypes import dtype_bytes
from unmoor.values.finding import Finding
from unmoor.values.nodes import Opaque, TensorNode
from unmoor.values.plan import Change, Copy, MoveModule, Plan, Step
from unmoor.values.roles import ROLES
from unmoor.values.target import Slot, Target, TargetModule, TargetObject, TargetOptimizer
from unmoor.values.text import columns, format_bytes

from .choose import AnyTarget, array_nodes, choose, key_of, subtree
from .file_model import Planned, file_model
from .modules import module_fit, plan_module
from .objects import plan_object
from .optimizer import OptimizerPlan, plan_optimizer
from .pickled_state import with_states
from .policy import Fault, Policy
from .slots import make_slot
from .streams import plan_rng
from .templates import Template

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
    modules: dict[str, Planned] = field(default_factory=dict)

    def tell(self, name: str, changes: Sequence[Change]) -> None:
        self.changes.setdefault(name, []).extend(changes)


def plan_restore(catalog: Catalog, target: Target, policy: Policy) -> Plan:
    """Everything a restore of this file into this run does.

    Raises KindError, MismatchError, AmbiguousError or DeviceError with all faults as details; nothing was changed.
    """
    draft = _Draft()
    catalog = with_states(catalog)
    for module in target.modules:
        _add_module(catalog, module, target, policy, draft)
    for item in target.objects:
        _add_object(catalog, item, target, policy, draft)
    for optimizer in target.optimizers:
        _add_optimizer(catalog, optimizer, target, policy, draft)
    streams = plan_rng(catalog, target.streams, policy)
    draft.copies += streams.copies
    draft.rng += streams.steps
    draft.faults += streams.faults
    draft.tell("not_restored", streams.not_restored)
    if streams.note:
        draft.notes.append(("rng", streams.note))
        draft.restored.append("rng")
    if target.labels() and not [label for label in draft.restored if label != "rng"] and not draft.faults:
        draft.faults += [
            Fault("kind", c.label, c.before, "") for c in draft.changes.get("not_restored", ()) if c.label != "rng"
        ]
    _raise_faults(catalog, draft)
    extra = _add_extra(catalog, policy, draft)
    _tell_left_over(catalog, draft)
    return _finish(catalog, target, policy, draft, extra)


def _pick(catalog: Catalog, target: AnyTarget, run: Target, policy: Policy, draft: _Draft) -> Part | None:
    def fits(part: Part) -> bool:
        if isinstance(target, TargetModule):
            return module_fit(part, target, policy)
        return not isinstance(target, TargetOptimizer) or int(part.detail.get("params", 0)) == sum(
            1 for _ in target.params()
        )

    everyone: list[AnyTarget] = [*run.modules, *run.objects, *run.optimizers]
    rivals = [t for t in everyone if key_of(t.label)[0] == key_of(target.label)[0]]
    choice = choose(catalog, target, at=policy.at, fits=fits, rivals=rivals, alone=len(run.modules) == 1)
    if choice.fault is not None:
        draft.faults.append(choice.fault)
    elif choice.part is None:
        draft.tell("not_restored", [Change(target.label, "", choice.reason, "left as it is")])
    else:
        draft.used.append(choice.part)
    return choice.part


def _add_module(catalog: Catalog, module: TargetModule, target: Target, policy: Policy, draft: _Draft) -> None:
    part = _pick(catalog, module, target, policy, draft)
    if part is None:
        return
    plan = plan_module(module, part, policy)
    draft.faults += plan.faults
    draft.copies += plan.copies
    draft.loads += plan.loads
    draft.twins += plan.twins
    draft.modules[module.label] = (module, part, plan)
    for name in ("renamed", "fresh", "missing", "unexpected"):
        draft.tell(name, getattr(plan, name))
    if plan.note:
        draft.notes.append((module.label, plan.note))
    draft.restored.append(module.label)


def _add_object(catalog: Catalog, item: TargetObject, target: Target, policy: Policy, draft: _Draft) -> None:
    part = _pick(catalog, item, target, policy, draft)
    if part is None:
        return
    plan = plan_object(item, part, array_nodes(catalog))
    draft.faults += plan.faults
    draft.copies += plan.copies
    draft.tell("fresh", plan.fresh)
    if plan.load is not None:
        draft.loads.append(plan.load)
        draft.restored.append(item.label)


def _add_optimizer(catalog: Catalog, optimizer: TargetOptimizer, target: Target, policy: Policy, draft: _Draft) -> None:
    part = _pick(catalog, optimizer, target, policy, draft)
    if part is None:
        return
    plan = plan_optimizer(
        optimizer,
        part,
        policy,
        recorded=_recorded_names(catalog, optimizer.label),
        own_model=file_model(catalog, optimizer, tuple(draft.modules.values()), policy.rename),
        renamed={saved: live for _, _, module in draft.modules.values() for saved, live in module.names.items()},
    )
    _take_optimizer(optimizer, plan, draft)


def _take_optimizer(optimizer: TargetOptimizer, plan: OptimizerPlan, draft: _Draft) -> None:
    draft.faults += plan.faults
    draft.copies += plan.copies
    draft.findings += plan.findings
    for name in ("options", "kept", "fresh", "unexpected"):
        draft.tell(name, getattr(plan, name))
    if plan.step is not None:
        draft.optimizers.append(plan.step)
        draft.notes.append((optimizer.label, plan.note))
        draft.restored.append(optimizer.label)


def _recorded_names(catalog: Catalog, label: str) -> Sequence[str] | None:
    entry = (catalog.manifest or {}).get("roles", {}).get(label)
    return entry.get("names") if isinstance(entry, Mapping) else None


_ORDER: Final = (
    ("kind", KindError),
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
    if len(faults) == 1 and faults[0].kind == "kind":
        expected = (f"expected   {faults[0].remedy}",) if faults[0].remedy else ()
        error_of_kind = KindError(faults[0].message, details=expected, remedy="Nothing was changed.", path=catalog.path)
        error_of_kind.wanted = key_of(faults[0].label)[0]
        raise error_of_kind
    rows = [(f.label, f.message + (f"   -> {f.remedy}" if f.remedy else "")) for f in faults]
    number = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    raise error(
        f"{number} between {catalog.path} and the live run; nothing was changed",
        details=columns(rows, indent=0, gap=3),
        path=catalog.path,
    )


def _add_extra(catalog: Catalog, policy: Policy, draft: _Draft) -> dict[str, Any]:
    """The plain values of the file: the tree without the parts that play a role, tensors in it as Slots on the CPU."""
    tree = catalog.tree
    if not isinstance(tree, Mapping):
        return {}
    roles = {part.keys for part in catalog.parts if part.role != "extra"} | {part.keys for part in draft.used}
    own = (catalog.manifest or {}).get("roles", {})
    roles |= {tuple(entry["keys"]) for entry in own.values() if isinstance(entry, Mapping) and "keys" in entry}
    pruned = _prune(tree, (), roles)
    if pruned is _GONE:
        return {}
    template = Template("extra", "extra", (), _extra_slot(policy), array_nodes(catalog))
    made: dict[str, Any] = template(pruned)
    draft.copies += template.copies
    return made


def _extra_slot(policy: Policy) -> Callable[[str, TensorNode], Slot]:
    """Tensors among plain values stay on the CPU unless a map_location sends their tag elsewhere."""

    def make(suffix: str, node: TensorNode) -> Slot:
        wish = policy.extras
        device = wish if isinstance(wish, str) else "cpu" if wish is None else wish.get(node.device, "cpu")
        return make_slot("extra", device)(suffix, node)

    return make


_GONE: Final = object()


def _prune(node: Any, keys: tuple[Any, ...], roles: set[tuple[Any, ...]]) -> Any:
    if keys in roles:
        return _GONE
    if not any(role[: len(keys)] == keys for role in roles):
        return node
    if isinstance(node, Mapping):
        kept = {key: value for key, item in node.items() if (value := _prune(item, (*keys, key), roles)) is not _GONE}
        return kept or _GONE
    if isinstance(node, list | tuple):
        items = [value for i, item in enumerate(node) if (value := _prune(item, (*keys, i), roles)) is not _GONE]
        return items or _GONE
    return node


def _tell_left_over(catalog: Catalog, draft: _Draft) -> None:
    used = {part.keys for part in draft.used}
    for part in catalog.parts:
        if part.role in ("extra", "rng") or any(part.keys[: len(keys)] == keys for keys in used):
            continue
        if _is_in_object(catalog.tree, part.keys):  # it is among the extra values, whole
            continue
        size = f"{part.tensors} tensors, {format_bytes(part.nbytes)}" if part.tensors else "plain values"
        where = "" if part.path == part.role else f" at {part.path}"
        draft.tell("not_restored", [Change(part.role, part.path, f"in the file{where} ({size})", "not asked for")])


def _is_in_object(tree: Any, keys: tuple[Any, ...]) -> bool:
    """Whether a place lies within an object that stands in the file, where nothing can be taken out of it."""
    for key in keys:
        if isinstance(tree, Opaque):
            return True
        if not isinstance(tree, Mapping | list | tuple):
            return False
        tree = subtree(tree, (key,))
    return False


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
