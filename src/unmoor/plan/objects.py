"""State of schedulers, scalers, metrics and other objects: inert trees handed to their load_state_dict."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from unmoor.values.catalog import Part
from unmoor.values.nodes import Opaque
from unmoor.values.plan import Change, Copy, LoadState
from unmoor.values.target import TargetObject

from .policy import Fault
from .slots import make_slot
from .templates import Template

__all__ = ["ObjectPlan", "plan_object"]


@dataclass(slots=True)
class ObjectPlan:
    """The steps for one object, and what there is to tell about them."""

    copies: list[Copy] = field(default_factory=list)
    load: LoadState | None = None
    faults: list[Fault] = field(default_factory=list)
    fresh: list[Change] = field(default_factory=list)


def plan_object(target: TargetObject, part: Part, arrays: Collection[int]) -> ObjectPlan:
    """Plan one object. A state that needs code to exist is a fault: the object could not take it."""
    plan = ObjectPlan()
    if target.role == "scaler" and part.node == {}:
        plan.fresh.append(Change(target.label, "", "the scaler was disabled when saved", "left as it is"))
        return plan
    needed = sorted(set(_opaque_names(part.node)))
    if needed:
        plan.faults.append(
            Fault(
                "mismatch",
                target.label,
                f"{part.path or 'the file'} holds objects that need code to exist: {', '.join(needed[:4])}",
                f"load it with unmoor.load(path, trust=[...]) and set it yourself, or {target.label}=None",
            )
        )
        return plan
    template = Template(
        target.label, target.label, part.keys, make_slot(f"{target.label}/state", target.device), arrays
    )
    plan.load = LoadState(target.label, template(part.node))
    plan.copies = template.copies
    return plan


def _opaque_names(value: Any) -> Iterator[str]:
    """The class of every object in a tree that would need code to exist."""
    seen: set[int] = set()
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, Opaque):
            yield item.name
        elif isinstance(item, Mapping | list | tuple | set | frozenset) and id(item) not in seen:
            seen.add(id(item))
            left += item.values() if isinstance(item, Mapping) else item
