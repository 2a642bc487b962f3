"""What an optimizer class keeps in a form of its own: beside torch's two keys, in their place, or under no parameter.

Its own load_state_dict knows what that means; here it only gets tensors where they belong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from unmoor.values.beside import FROZEN, NAMES
from unmoor.values.catalog import Catalog, Part
from unmoor.values.nodes import TensorNode
from unmoor.values.optimizers import COUNTERS
from unmoor.values.plan import Copy
from unmoor.values.target import Slot, TargetOptimizer
from unmoor.values.text import listing

from .choose import subtree
from .policy import Fault
from .saved_optimizer import SavedOptimizer
from .slots import as_stored, make_slot
from .templates import Template

__all__ = ["Own", "form_fault", "plan_own", "plan_whole", "whole_part"]

_TORCHS: Final = frozenset({"state", "param_groups", NAMES, FROZEN})


@dataclass(slots=True)
class Own:
    """`keys` are keys of the state dict beside torch's, `state` is that of no parameter, both with Slots."""

    keys: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[Any, Any] = field(default_factory=dict)
    copies: list[Copy] = field(default_factory=list)


def whole_part(catalog: Catalog, target: TargetOptimizer) -> Part | None:
    """The innermost place that leads to an optimizer's state and has the keys of the live class's own state dict."""
    for part in catalog.part("optimizer"):
        for length in range(len(part.keys), -1, -1):
            keys = part.keys[:length]
            node = subtree(catalog.tree, keys)
            if isinstance(node, Mapping) and target.own_keys <= node.keys():
                inside = [entry for entry in catalog.tensors if entry.keys[:length] == keys]
                nbytes = sum(entry.nbytes for entry in inside)
                return Part("optimizer", "object", keys, len(inside), nbytes, {}, node=node)
    return None


def form_fault(target: TargetOptimizer, part: Part) -> Fault | None:
    """A fault where the part does not have the form of the live class's state dict."""
    wanted = target.own_keys if target.whole else frozenset({"state", "param_groups"})
    node = part.node
    if isinstance(node, Mapping) and wanted <= node.keys():
        return None
    found = f"{listing([str(key) for key in node], 6)}" if isinstance(node, Mapping) else "no dict"
    text = f"the file holds {found}, the state dict of the live {target.class_name} has {listing(sorted(wanted), 6)}"
    inner = [str(key) for key, item in node.items() if _is_torchs(item)] if isinstance(node, Mapping) else []
    place = ".".join([*map(str, part.keys), *inner[:1]])
    remedy = f'at={{"{target.label}": "{place}"}} takes the optimizer within' if inner and not target.whole else ""
    return Fault("mismatch", target.label, text, remedy or f"{target.label}=None starts it fresh")


def _is_torchs(node: Any) -> bool:
    return isinstance(node, Mapping) and "param_groups" in node


def plan_whole(target: TargetOptimizer, part: Part) -> Own:
    """The whole state dict, for a class that has a form of its own."""
    template = Template(target.label, target.label, part.keys, _slots(target, part.node, f"{target.label}/state/own"))
    tree = template({key: value for key, value in part.node.items() if key not in (NAMES, FROZEN)})
    return Own(keys=tree, copies=template.copies)


def plan_own(target: TargetOptimizer, part: Part, saved: SavedOptimizer) -> Own:
    """Keys beside torch's for a class that loads by itself, and state of no parameter, which torch copies as it is."""
    extras = {key: value for key, value in part.node.items() if key not in _TORCHS} if not target.direct else {}
    if not (extras or saved.unassigned):
        return Own()
    first = Template(target.label, target.label, part.keys, _slots(target, part.node, f"{target.label}/state/own"))
    keys = first(extras)
    place = f"{target.label}/state/none"
    device = _first_device(target)
    second = Template(target.label, "state", (*part.keys, "state"), _as_saved(place, device))
    state = second(dict(saved.unassigned))
    return Own(keys, state, [*first.copies, *second.copies])


def _as_saved(place: str, device: str) -> Callable[[str, TensorNode], Slot]:
    def make(suffix: str, node: TensorNode) -> Slot:
        return replace(
            make_slot(place, "cpu" if node.device == "cpu" else device)(suffix, node), stride=as_stored(node)
        )

    return make


def _slots(target: TargetOptimizer, node: Any, place: str) -> Callable[[str, TensorNode], Slot]:
    """Beside the parameters; counters, and what was on the host while other state was not, on the host."""
    device, told = _first_device(target), _on_devices(node)

    def make(suffix: str, node: TensorNode) -> Slot:
        host = node.device == "cpu" and (told or suffix.rpartition(".")[2] in COUNTERS)
        return replace(make_slot(place, "cpu" if host else device)(suffix, node), stride=as_stored(node))

    return make


def _first_device(target: TargetOptimizer) -> str:
    return next((param.device for _, param in target.params()), "cpu")


def _on_devices(node: Any) -> bool:
    """Whether any tensor of a tree was saved elsewhere than on the CPU."""
    stack, seen = [node], set()
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, TensorNode) and item.device != "cpu":
            return True
        stack += item.values() if isinstance(item, Mapping) else item if isinstance(item, list | tuple) else ()
    return False
