"""A model state dict to a live module: names proved, shapes and dtypes held, tied weights kept tied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from unmoor.values.catalog import Part
from unmoor.values.dtypes import is_exact_cast
from unmoor.values.nodes import CompositeTensor, TensorNode
from unmoor.values.plan import Change, Copy, LoadState
from unmoor.values.target import TargetModule
from unmoor.values.text import format_shape, key_text, listing

from .names import NameMatch, Reading, match_names
from .policy import Fault, Policy

__all__ = ["ModulePlan", "module_fit", "plan_module", "saved_tensors"]

_FROM_LIVE = "num_batches_tracked"
"""A buffer that files of torch before 0.4.1 lack; torch keeps the live one, so does unmoor."""


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


def saved_tensors(part: Part) -> dict[str, TensorNode]:
    """Name -> tensor of a model state dict, or of a list of tensors by position."""
    node = part.node
    pairs: Any = (
        node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list | tuple) else ()
    )
    return {str(name): value for name, value in pairs if isinstance(value, TensorNode)}


def module_fit(part: Part, target: TargetModule, policy: Policy) -> bool:
    """Whether the names and shapes of the part are proved to be the module's."""
    return _match(part, target, policy).complete


def _match(part: Part, target: TargetModule, policy: Policy) -> NameMatch:
    """The match of all live names, or of those that a file must have where it lacks no other."""
    live = {name: slot.shape for name, slot in target.slots.items()}
    saved: dict[str, tuple[int, ...] | None] = {name: node.shape for name, node in saved_tensors(part).items()}
    found = []
    for dispensable in _dispensable(target):
        needed = {name: shape for name, shape in live.items() if name not in dispensable}
        found.append(match_names(saved, needed, policy.rename))
        if found[-1].complete:
            return found[-1]
    return next((m for m in found if m.reading.pairs and not m.missing and not m.rivals), found[0])


def _dispensable(target: TargetModule) -> Iterator[frozenset[str]]:
    """Names that a file may lack: none, all but one name of a tied memory, buffers that old files do not have."""
    groups: dict[str, list[str]] = {}
    for name, slot in target.slots.items():
        groups.setdefault(slot.alias or slot.id, []).append(name)
    tied = [names for names in groups.values() if len(names) > 1]
    late = frozenset(name for name in target.slots if name.endswith(_FROM_LIVE))
    but_first = frozenset(name for names in tied for name in names[1:])
    but_last = frozenset(name for names in tied for name in names[:-1])
    ways = (but_first, but_last, late, but_first | late, but_last | late)
    yield from dict.fromkeys((frozenset(), *ways))


def plan_module(target: TargetModule, part: Part, policy: Policy) -> ModulePlan:
    """Plan one module; faults are gathered, nothing is raised."""
    plan = ModulePlan()
    saved = saved_tensors(part)
    match = _match(part, target, policy)
    _check_match(target, part, saved, match, policy, plan)
    if plan.faults:
        return plan
    plan.names = {saved_name: live for live, saved_name in match.reading.pairs.items()}
    wrong = set(match.mismatched)
    for live, name in match.reading.pairs.items():
        if live in wrong:
            plan.fresh.append(_shape_change(target, live, saved[name]))
        else:
            _plan_tensor(target, part, live, name, saved[name], plan)
    plan.faults += _rounded(target, policy, plan)
    _drop_twin_copies(plan)
    _plan_extra(target, part, match.reading, plan)
    _tell(target, match, plan)
    return plan


def _check_match(
    target: TargetModule,
    part: Part,
    saved: Mapping[str, TensorNode],
    match: NameMatch,
    policy: Policy,
    plan: ModulePlan,
) -> None:
    label = target.label
    plan.faults += _unfillable(target, part)
    if match.rivals:
        ways = "; ".join(reading.how for reading in match.rivals)
        text = f"the saved names fit the live ones in {len(match.rivals)} ways: {ways}"
        remedy = " or ".join(r.remedy for r in match.rivals if r.remedy) or "rename={...}"
        plan.faults.append(Fault("ambiguous", label, text, f"{remedy} says which"))
        return
    if match.near and (match.missing or match.unexpected):
        plan.faults += [_near_fault(target, saved, near) for near in match.near[:2]]
    if target.slots and not set(match.reading.pairs) - set(match.mismatched):
        plan.faults.append(_nothing_matches(target, saved, match))
        return
    if match.missing and policy.missing == "error":
        plan.faults.append(_names_fault(label, "the file lacks", match.missing, 'missing="fresh" leaves it as it is'))
    if match.unexpected and policy.unexpected == "error":
        plan.faults.append(
            _names_fault(label, "the live model lacks", match.unexpected, 'unexpected="ignore" drops it')
        )
    if policy.mismatched == "error":
        plan.faults += [_shape_fault(target, name, saved[match.reading.pairs[name]]) for name in match.mismatched]


def _unfillable(target: TargetModule, part: Part) -> list[Fault]:
    """Saved and live tensors that no values can be streamed into or out of."""
    pairs = part.node.items() if isinstance(part.node, Mapping) else ()
    rows = (
        ("mismatch", [n for n, node in pairs if isinstance(node, CompositeTensor)], _NOT_STRIDED),
        ("mismatch", [n for n, slot in target.slots.items() if slot.shape == (-1,)], _LAZY),
        ("device", [n for n, slot in target.slots.items() if slot.device == "meta"], _META),
    )
    return [
        Fault(kind, target.label, f"{listing(names)} {text}", remedy) for kind, names, (text, remedy) in rows if names
    ]


_NOT_STRIDED: Final = ("is not a strided tensor and cannot be filled in place", "unmoor.load gives the tensor itself")
_LAZY: Final = ("of the live model has no shape yet", "run one forward pass first, then restore")
_META: Final = ("of the live model is on the meta device, which holds no data", "model.to_empty(device=...) first")


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
        text = f"the file has {listing(theirs, 2)}, the live model {listing(ours, 2)}"
    remedy = "" if match.near or match.reading.pairs else "rename={...} says how saved names become live ones"
    return Fault("mismatch", target.label, f"0 of {len(ours)} tensors matched: {text}", remedy)


def _near_fault(target: TargetModule, saved: Mapping[str, TensorNode], near: Reading) -> Fault:
    wrong = [n for n, s in near.pairs.items() if saved[s].shape != target.slots[n].shape]
    fit = len(near.pairs) - len(wrong)
    text = f"saved names {near.how} fit the live ones ({fit} of {len(target.slots)} with their shapes)"
    return Fault("mismatch", target.label, text, near.remedy)


def _plan_tensor(target: TargetModule, part: Part, live: str, name: str, node: TensorNode, plan: ModulePlan) -> None:
    slot = target.slots[live]
    if node.storage is None and node.numel:
        plan.faults.append(
            Fault("mismatch", target.label, f"{name} was saved on the meta device: the file holds no data for it", "")
        )
        return
    if node.quantizer is not None or node.dtype.startswith("q"):
        plan.faults.append(Fault("mismatch", target.label, f"{name} is quantized and cannot be filled in place", ""))
        return
    plan.copies.append(Copy(target.label, live, key_text((*part.keys, name)), node, slot))


def _rounded(target: TargetModule, policy: Policy, plan: ModulePlan) -> list[Fault]:
    """Tensors that would lose digits on the way to the live dtype, one fault for each pair of dtypes."""
    casts: dict[tuple[str, str], list[str]] = {}
    for copy in plan.copies if policy.cast != "any" else ():
        if not is_exact_cast(copy.node.dtype, copy.slot.dtype):
            casts.setdefault((copy.node.dtype, copy.slot.dtype), []).append(copy.name)
    return [
        Fault(
            "mismatch",
            target.label,
            f"{listing(names)}    saved {saved}, live {live}: values would be rounded",
            'cast="any" allows it',
        )
        for (saved, live), names in casts.items()
    ]


def _drop_twin_copies(plan: ModulePlan) -> None:
    """One copy for each live memory; a second stored tensor for the same memory becomes a pair to be proved equal."""
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


def _plan_extra(target: TargetModule, part: Part, reading: Reading, plan: ModulePlan) -> None:
    """Extra states of submodules, by the same reading as the tensors (their names end in `_extra_state`)."""
    if not isinstance(part.node, Mapping):
        return
    values = {n: v for n, v in part.node.items() if isinstance(n, str) and n.endswith("_extra_state")}
    for name in target.extra_state:
        found = name if name in values else _through(reading, name, values)
        if found is None:
            plan.missing.append(Change(target.label, name, "not in the file", "left as it is"))
        else:
            plan.loads.append(LoadState(target.label, values[found], name))


def _through(reading: Reading, name: str, values: Mapping[str, Any]) -> str | None:
    stem = name.removesuffix("_extra_state")
    for live, saved in reading.pairs.items():
        if live.startswith(stem) and saved.endswith(live[len(stem) :]):
            candidate = saved[: len(saved) - len(live) + len(stem)] + "_extra_state"
            if candidate in values:
                return candidate
    return None


def _tell(target: TargetModule, match: NameMatch, plan: ModulePlan) -> None:
    label, pairs = target.label, match.reading.pairs
    plan.renamed += [Change(label, live, saved, live) for live, saved in pairs.items() if live != saved]
    plan.missing += [Change(label, n, "not in the file", "left as it is") for n in match.missing]
    restored = {target.slots[n].alias or target.slots[n].id for n in pairs}
    absent = [(n, slot) for n, slot in target.slots.items() if n not in pairs and n not in match.missing]
    tied = [n for n, slot in absent if (slot.alias or slot.id) in restored]
    late = "not in the file (saved before torch 0.4.1)"
    plan.fresh += [Change(label, n, late, "left as it is") for n, _ in absent if n not in tied]
    plan.unexpected += [Change(label, n, "in the file", "nothing takes it") for n in match.unexpected]
    plan.unexpected += [Change(label, n, "in the file", "outside the names that fit") for n in match.reading.outside]
    notes = []
    if match.reading.how != "as saved":
        notes.append(f"{len(pairs)} of {len(target.slots)} names match {match.reading.how}")
    if tied:
        notes.append(f"{listing(tied)} is tied to a name that the file has")
    plan.note = "; ".join(notes)
