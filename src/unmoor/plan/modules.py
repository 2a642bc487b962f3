"""A model state dict to a live module: names proved, shapes and dtypes held, tied weights kept tied."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from unmoor.values.catalog import Part
from unmoor.values.nodes import CompositeTensor, TensorNode
from unmoor.values.plan import Change, Copy, LoadState
from unmoor.values.target import Slot, TargetModule
from unmoor.values.text import count, format_shape, key_text, listing

from .module_match import averaged_fault, match_module
from .names import NameMatch, Reading
from .objects import needs_code
from .policy import Fault, Policy
from .repeats import without_repeats
from .rounding import rounding_faults
from .selection import Chosen
from .slots import make_slot
from .templates import Template
from .ways import different_ways

__all__ = ["ModulePlan", "module_fit", "plan_module", "saved_tensors"]


@dataclass(slots=True)
class ModulePlan:
    """The steps for one module, and what there is to tell about them."""

    copies: list[Copy] = field(default_factory=list)
    loads: list[LoadState] = field(default_factory=list)
    twins: list[tuple[Copy, Copy]] = field(default_factory=list)
    renamed: list[Change] = field(default_factory=list)
    fresh: list[Change] = field(default_factory=list)
    missing: list[Change] = field(default_factory=list)
    unexpected: list[Change] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    names: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    not_restored: list[Change] = field(default_factory=list)


_EXTRA: Final = "_extra_state"


def saved_tensors(part: Part, target: TargetModule | None = None) -> dict[str, TensorNode]:
    """Name -> tensor of a model state dict, or of a list of tensors by position.

    Without the tensors that are extra states, where the module of `target` has such states itself.
    """
    node = part.node
    pairs: Any = (
        node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list | tuple) else ()
    )
    found = {str(name): value for name, value in pairs if isinstance(value, TensorNode)}
    if target is None or not target.extra_state:
        return found
    return {name: value for name, value in found.items() if name in target.slots or not name.endswith(_EXTRA)}


def module_fit(part: Part, target: TargetModule, policy: Policy) -> bool:
    """Whether the names and shapes of the part are proved to be the module's."""
    saved = saved_tensors(part, target)
    match = _match(saved, target, policy)
    return match.complete and averaged_fault(target, match, saved, policy) is None


def _match(saved: Mapping[str, TensorNode], target: TargetModule, policy: Policy) -> NameMatch:
    return match_module({name: node.shape for name, node in saved.items()}, target, policy)


def plan_module(
    target: TargetModule, part: Part, policy: Policy, chosen: Chosen, arrays: Collection[int] = ()
) -> ModulePlan:
    """Plan one module, or what is chosen of it; faults are gathered, nothing is raised.

    `arrays` are ids of tensor nodes that come back as numpy arrays.
    """
    plan = ModulePlan()
    saved = saved_tensors(part, target)
    whole = _match(saved, target, policy)
    match = _chosen_part(whole, chosen)
    _check_match(target, part, saved, match, policy, plan, chosen)
    if plan.faults:
        return plan
    plan.names = {saved_name: live for live, saved_name in whole.reading.pairs.items()}
    _plan_tensors(target, part, saved, match, plan)
    plan.faults += rounding_faults(target.label, plan.copies, policy)
    plan.faults += _unfilled(target, plan)
    _drop_twin_copies(plan)
    _plan_extra(target, part, match.reading, plan, chosen, arrays)
    _tell(target, match, plan, chosen)
    return plan


def _chosen_part(match: NameMatch, chosen: Chosen) -> NameMatch:
    """The match of the names that are asked for; what else the file has is none of this restore's business."""
    if chosen.everything:
        return match
    pairs = {live: saved for live, saved in match.reading.pairs.items() if chosen.asks(live)}
    return replace(
        match,
        reading=replace(match.reading, pairs=pairs),
        missing=tuple(filter(chosen.asks, match.missing)),
        unexpected=tuple(filter(chosen.asks, match.unexpected)),
        mismatched=tuple(filter(chosen.asks, match.mismatched)),
    )


def _check_match(
    target: TargetModule,
    part: Part,
    saved: Mapping[str, TensorNode],
    match: NameMatch,
    policy: Policy,
    plan: ModulePlan,
    chosen: Chosen,
) -> None:
    label = target.label
    plan.faults += _unfillable(target, part, chosen)
    if match.rivals:
        ways = "; ".join(reading.how for reading in match.rivals)
        text = f"the saved names fit the live ones in {len(match.rivals)} ways: {ways}"
        remedy = " or ".join(r.remedy for r in match.rivals if r.remedy) or "rename={...}"
        remedy += ' says which, with unexpected="ignore" for the rest'
        plan.faults.append(Fault("ambiguous", label, text, remedy))
        return
    told = averaged_fault(target, match, saved, policy)
    different = [told] if told else [] if match.complete else different_ways(label, saved, target.slots, target.ways)
    if different and (policy.missing, policy.unexpected) != ("fresh", "ignore"):
        plan.faults += different
        return
    if match.near and (match.missing or match.unexpected):
        plan.faults += [_near_fault(target, saved, near) for near in match.near[:2]]
    if target.slots and len(match.reading.pairs) == len(match.mismatched):
        plan.faults.append(_nothing_matches(target, saved, match))
        return
    missing = tuple(name for name in match.missing if target.slots[name].layout == "strided")
    if missing and policy.missing == "error":
        plan.faults.append(_names_fault(label, "the file lacks", missing, 'missing="fresh" leaves it as it is'))
    if match.unexpected and policy.unexpected == "error":
        plan.faults.append(
            _names_fault(label, "the live model lacks", match.unexpected, 'unexpected="ignore" drops it')
        )
    if policy.mismatched == "error":
        plan.faults += [_shape_fault(target, name, saved[match.reading.pairs[name]]) for name in match.mismatched]


def _unfillable(target: TargetModule, part: Part, chosen: Chosen) -> list[Fault]:
    """Saved and live tensors that no values can be streamed into or out of."""
    pairs = part.node.items() if isinstance(part.node, Mapping) else ()
    special = {
        name: slot
        for name, slot in target.slots.items()
        if slot.layout != "strided" or slot.shape == (-1,) or slot.device == "meta"
    }
    odd = {name for name, slot in special.items() if slot.layout != "strided"}
    rows = (
        ("mismatch", [n for n, node in pairs if isinstance(node, CompositeTensor) and n not in odd], _NOT_STRIDED),
        *_unstreamable(special),
        ("mismatch", [n for n, slot in special.items() if slot.shape == (-1,) and n not in odd], _LAZY),
        ("device", [n for n, slot in special.items() if slot.device == "meta"], _META),
        ("device", list(target.unsaved_meta), _UNSAVED),
    )
    return [
        Fault(kind, target.label, f"{listing(names)} {text}", remedy)
        for kind, found, (text, remedy) in rows
        if (names := list(filter(chosen.asks, found)))
    ]


def _unstreamable(slots: Mapping[str, Slot]) -> Iterator[tuple[str, list[str], tuple[str, str]]]:
    layouts = dict.fromkeys(slot.layout for slot in slots.values() if slot.layout != "strided")
    for layout in layouts:
        names = [name for name, slot in slots.items() if slot.layout == layout]
        yield "mismatch", names, (f"of the live model is of layout {layout} and cannot be filled in place", _GIVES)


_GIVES: Final = "unmoor.load gives the tensor itself"
_NOT_STRIDED: Final = ("is not a strided tensor and cannot be filled in place", _GIVES)
_LAZY: Final = ("of the live model has no shape yet", "run one forward pass first, then restore")
_META: Final = (
    "of the live model is on the meta device, which holds no data",
    'model_device="cpu" or another device makes it there',
)
_UNSAVED: Final = (
    "of the live model is a buffer on the meta device that no state dict holds: nothing would fill it",
    "make it on a real device before the restore",
)


def _unfilled(target: TargetModule, plan: ModulePlan) -> list[Fault]:
    """Tensors that would get memory on the way from the meta device, and no values."""
    if not target.meta:
        return []
    filled = {copy.slot.alias or copy.slot.id for copy in plan.copies}
    empty = [n for n in target.slots if n in target.meta and _owner(target, n) not in filled]
    if not empty or any(target.slots[name].device == "meta" for name in empty):
        return []
    text = f"{listing(empty)} of the live model is on the meta device, and nothing of the file would fill it"
    return [Fault("device", target.label, text, "restore it too, or give it values first: model.to_empty(device=...)")]


def _owner(target: TargetModule, name: str) -> str:
    return target.slots[name].alias or target.slots[name].id


def _names_fault(label: str, what: str, names: tuple[str, ...], remedy: str) -> Fault:
    return Fault("mismatch", label, f"{what} {listing(list(names))}", remedy)


def _shape_fault(target: TargetModule, name: str, node: TensorNode) -> Fault:
    text = f"{name}    saved {format_shape(node.shape)}, live {format_shape(target.slots[name].shape)}"
    return Fault("mismatch", target.label, text, 'mismatched="fresh" leaves it as it is')


def _shape_change(target: TargetModule, name: str, node: TensorNode) -> Change:
    return Change(
        target.label, name, f"saved {format_shape(node.shape)}", f"live {format_shape(target.slots[name].shape)} kept"
    )


def _nothing_matches(target: TargetModule, saved: Mapping[str, TensorNode], match: NameMatch) -> Fault:
    ours, theirs = list(target.slots), list(saved)
    if match.reading.pairs:
        name, other = next(iter(match.reading.pairs.items()))
        text = f"{len(match.reading.pairs)} names do, none with its shape ({name}: saved "
        text += f"{format_shape(saved[other].shape)}, live {format_shape(target.slots[name].shape)})"
    else:
        text = f"the file has {listing(theirs, 2) or 'none there'}, the live model {listing(ours, 2)}"
    remedy = "" if match.near or match.reading.pairs else "rename={...} says how saved names become live ones"
    return Fault("mismatch", target.label, f"0 of {len(ours)} tensors matched: {text}", remedy)


def _near_fault(target: TargetModule, saved: Mapping[str, TensorNode], near: Reading) -> Fault:
    wrong = [n for n, s in near.pairs.items() if saved[s].shape != target.slots[n].shape]
    fit = len(near.pairs) - len(wrong)
    text = f"saved names {near.how} fit the live ones ({fit} of {len(target.slots)} with their shapes)"
    return Fault("mismatch", target.label, text, near.remedy)


def _plan_tensors(
    target: TargetModule, part: Part, saved: Mapping[str, TensorNode], match: NameMatch, plan: ModulePlan
) -> None:
    label, slots, wrong = target.label, target.slots, frozenset(match.mismatched)
    above = f"{key_text(part.keys)}." if part.keys else ""
    for live, name in match.reading.pairs.items():
        node, slot, why = saved[name], slots[live], ""
        if live in wrong:
            plan.fresh.append(_shape_change(target, live, node))
            continue
        if node.quantizer is not None or node.dtype.startswith("q"):
            text = f"{name} is quantized and cannot be filled in place"
            plan.faults.append(Fault("mismatch", label, text, _GIVES))
            continue
        if not slot.dense:
            node, slot, why = without_repeats(node, slot)
        if why:
            plan.faults.append(Fault("mismatch", label, f"{name}: {why}", "clone() the live tensor, or skip it"))
            continue
        plan.copies.append(Copy(label, live, above + name, node, slot))


def _drop_twin_copies(plan: ModulePlan) -> None:
    """One copy for each live memory; a second stored tensor for the same memory becomes a pair to be proved equal."""
    if not any(copy.slot.alias for copy in plan.copies):
        return
    owners: dict[str, Copy] = {}
    kept: list[Copy] = []
    for copy in plan.copies:
        owner = owners.setdefault(copy.slot.alias or copy.slot.id, copy)
        if owner is copy:
            kept.append(copy)
        elif not _same_place(owner.node, copy.node):
            plan.twins.append((owner, copy))
    plan.copies = kept


def _same_place(a: TensorNode, b: TensorNode) -> bool:
    return (a.storage, a.offset, a.shape, a.stride, a.dtype) == (b.storage, b.offset, b.shape, b.stride, b.dtype)


def _plan_extra(
    target: TargetModule, part: Part, reading: Reading, plan: ModulePlan, chosen: Chosen, arrays: Collection[int]
) -> None:
    """Extra states of submodules, by the same reading as the tensors (their names end in `_extra_state`)."""
    if not isinstance(part.node, Mapping) or not target.extra_state:
        return
    values = {n: v for n, v in part.node.items() if isinstance(n, str) and n.endswith(_EXTRA)}
    stems = _stems(reading) if values.keys() - target.extra_state else {}
    for name in filter(chosen.asks, sorted(target.extra_state)):
        found = name if name in values else stems.get(name.removesuffix(_EXTRA), "") + _EXTRA
        if found in values:
            _plan_state(target, replace(part, keys=(*part.keys, found), node=values[found]), name, plan, arrays)
        else:
            plan.missing.append(Change(target.label, name, "not in the file", "left as it is"))


def _plan_state(target: TargetModule, part: Part, name: str, plan: ModulePlan, arrays: Collection[int]) -> None:
    """One extra state: any value. A tensor in it is made where it was, on the CPU or beside the live model."""
    plan.faults += needs_code(target.label, part)

    def make(suffix: str, node: TensorNode) -> Slot:
        device = "cpu" if node.device == "cpu" else target.device
        return make_slot(f"{target.label}/extra/{name}", device)(suffix, node)

    template = Template(target.label, name, part.keys, make, arrays)
    plan.loads.append(LoadState(target.label, template(part.node), name))
    plan.copies += template.copies


def _stems(reading: Reading) -> dict[str, str]:
    """Live name of a submodule, with its dot -> its name in the file, by the first tensor below it that tells."""
    found: dict[str, str] = {}
    for live, saved in reading.pairs.items():
        end = live.rfind(".") + 1
        while live[:end] not in found and saved.endswith(live[end:]):
            found[live[:end]] = saved[: len(saved) - len(live) + end]
            end = live.rfind(".", 0, max(end - 1, 0)) + 1
    return found


def _tell(target: TargetModule, match: NameMatch, plan: ModulePlan, chosen: Chosen) -> None:
    label, pairs = target.label, match.reading.pairs
    plan.renamed += [Change(label, live, saved, live) for live, saved in pairs.items() if live != saved]
    plan.missing += [Change(label, n, "not in the file", "left as it is") for n in match.missing]
    told = {*pairs, *match.missing}
    left = [] if chosen.everything else [n for n in (*target.slots, *target.extra_state) if not chosen.asks(n)]
    plan.not_restored += [Change(label, n, f"left out by {chosen.word}", "left as it is") for n in left]
    told.update(left)
    absent = [(n, slot) for n, slot in target.slots.items() if n not in told]
    restored = {target.slots[n].alias or target.slots[n].id for n in pairs} if absent else set()
    tied = [n for n, slot in absent if (slot.alias or slot.id) in restored]
    late = "not in the file (saved before torch 0.4.1)"
    plan.fresh += [
        Change(label, n, late, "left as it is") for n, slot in absent if (slot.alias or slot.id) not in restored
    ]
    plan.unexpected += [Change(label, n, "in the file", "nothing takes it") for n in match.unexpected]
    plan.unexpected += [Change(label, n, "in the file", "outside the names that fit") for n in match.reading.outside]
    notes = []
    if match.reading.how != "as saved":
        notes.append(f"{len(pairs)} of {len(target.slots)} names match {match.reading.how}")
    if target.meta:
        notes.append(f"{count(len(target.meta), 'tensor')} of the meta device made on {target.device}")
    if tied:
        notes.append(f"{listing(tied)} is tied to a name that the file has")
    plan.note = "; ".join(notes)
