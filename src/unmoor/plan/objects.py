"""State of schedulers, scalers, metrics and other objects: inert trees handed to their load_state_dict."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from unmoor.values.catalog import Part
from unmoor.values.finding import Finding
from unmoor.values.nodes import Opaque, TensorNode
from unmoor.values.plan import Change, Copy, LoadState
from unmoor.values.target import Slot, Target, TargetObject

from .policy import Fault
from .positions import plan_position
from .slots import make_slot
from .templates import Template

__all__ = ["ObjectPlan", "needs_code", "plan_loader", "plan_object"]


@dataclass(slots=True)
class ObjectPlan:
    """The steps for one object, and what there is to tell about them."""

    copies: list[Copy] = field(default_factory=list)
    load: LoadState | None = None
    faults: list[Fault] = field(default_factory=list)
    fresh: list[Change] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    note: str = ""


def plan_object(target: TargetObject, part: Part, arrays: Collection[int]) -> ObjectPlan:
    """Plan one object. A state that needs code to exist is a fault: the object could not take it."""
    plan = ObjectPlan()
    if target.role == "scaler" and part.node == {}:
        plan.fresh.append(Change(target.label, "", "the scaler was disabled when saved", "left as it is"))
        return plan
    if not target.enabled:
        plan.fresh.append(Change(target.label, "", "the live scaler is disabled", "the saved state was not used"))
        return plan
    plan.faults += needs_code(target.label, part)
    if plan.faults:
        return plan
    template = Template(target.label, target.label, part.keys, _state_slot(target), arrays)
    plan.load = LoadState(target.label, template(part.node))
    plan.copies = template.copies
    return plan


def plan_loader(target: TargetObject, part: Part, everyone: Sequence[Any], mode: str, run: Target) -> ObjectPlan:
    """Plan a loader: its state as it is, made over for this world, or not at all. `everyone` are those of all ranks."""
    place = plan_position(target, part.node, everyone, mode, rank=run.rank, world=run.world)
    if place.state is None or place.faults:
        plan = ObjectPlan(faults=place.faults)
        if not place.faults:
            plan.fresh.append(Change(target.label, "", "not handed over", place.fresh))
        return plan
    plan = plan_object(target, replace(part, node=place.state), ())
    plan.findings, plan.note = place.findings, place.note
    return plan


def needs_code(label: str, part: Part) -> list[Fault]:
    """The fault of a state that holds objects which would need code to exist, if it does."""
    needed = sorted(set(opaque_names(part.node)))
    if not needed:
        return []
    message = f"{part.path or 'the file'} holds objects that need code to exist: {', '.join(needed[:4])}"
    remedy = f"load it with unmoor.load(path, trust=[...]) and set it yourself, or {label}=None"
    return [Fault("mismatch", label, message, remedy)]


def _state_slot(target: TargetObject) -> Callable[[str, TensorNode], Slot]:
    """Slots beside the tensors of the object's present state, which they replace; else where its role says."""

    def make(suffix: str, node: TensorNode) -> Slot:
        return make_slot(f"{target.label}/state", target.devices.get(suffix, target.device))(suffix, node)

    return make


_LEAVES: Final = frozenset((TensorNode, str, int, float, bool, bytes, type(None)))
"""What most of a tree consists of, and is looked at no further."""

_CONTAINERS: Final = (list, tuple, set, frozenset, Mapping)


def opaque_names(value: Any) -> Iterator[str]:
    """The class of every object in a tree that would need code to exist."""
    seen: set[int] = set()
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, Opaque):
            yield item.name
        elif id(item) not in seen and (type(item) is dict or isinstance(item, _CONTAINERS)):
            seen.add(id(item))
            inside = item.values() if type(item) is dict or isinstance(item, Mapping) else item
            if not _LEAVES.issuperset(map(type, inside)):
                left += [value for value in inside if type(value) not in _LEAVES]
