"""Random number states to the streams of this process: exactly, or not at all and said so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from unmoor.values.catalog import Catalog, Part
from unmoor.values.plan import Change, Copy, SetRng
from unmoor.values.target import Stream

from .policy import Fault, Policy
from .slots import make_slot
from .templates import Template

__all__ = ["RngPlan", "plan_rng"]

_LABEL: Final = "rng"


@dataclass(slots=True)
class RngPlan:
    """The steps for all streams, and what there is to tell about them."""

    copies: list[Copy] = field(default_factory=list)
    steps: list[SetRng] = field(default_factory=list)
    not_restored: list[Change] = field(default_factory=list)
    note: str = ""
    faults: list[Fault] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _State:
    """One saved state: which stream it belongs to and where it stands."""

    kind: str
    name: str
    index: int
    keys: tuple[Any, ...]
    node: Any


def plan_rng(catalog: Catalog, streams: Sequence[Stream], policy: Policy) -> RngPlan:
    """Plan all streams. With policy.rng "none" nothing is touched; with "exact" a state left over is a fault."""
    plan = RngPlan()
    saved = list(_saved_states(catalog, plan))
    if policy.rng == "none":
        if saved:
            plan.not_restored.append(Change(_LABEL, "", f"{len(saved)} states in the file", "rng=False: left alone"))
        return plan
    by_stream: dict[tuple[str, str], list[_State]] = {}
    for state in saved:
        by_stream.setdefault((state.kind, state.name), []).append(state)
    told = {change.name for change in plan.not_restored}
    for stream in streams:
        states = by_stream.pop((stream.kind, stream.name), [])
        _plan_stream(stream, states, plan)
        if not states and (saved or stream.kind == "generator") and _word(stream.kind, stream.name) not in told:
            plan.not_restored.append(_change(stream.kind, stream.name, "not in the file", "left as it is"))
    for (kind, name), states in by_stream.items():
        plan.not_restored.append(_without_stream(kind, name, len(states)))
    if not saved and not plan.not_restored:
        plan.not_restored.append(Change(_LABEL, "", "the file holds none", "this process's generators were left alone"))
    if policy.rng == "exact" and plan.not_restored:
        plan.faults += [
            Fault("mismatch", _LABEL, f"{c.name or 'all'}: {c.before}, {c.after}", "rng=True restores the others")
            for c in plan.not_restored
        ]
    plan.note = ", ".join(dict.fromkeys(_word(step.kind, step.name) for step in plan.steps))
    return plan


def _word(kind: str, name: str) -> str:
    """What a stream is called in a report."""
    return {"torch-cpu": "torch", "torch-device": name, "generator": name}.get(kind, kind)


def _change(kind: str, name: str, before: str, after: str) -> Change:
    return Change(_LABEL, _word(kind, name), before, after)


def _without_stream(kind: str, name: str, number: int) -> Change:
    """Saved states that no stream of this process can take."""
    if kind == "torch-device":
        return _change(kind, name, f"{number} saved, 0 visible", f"{number} not used")
    why = "no generator of that name was passed" if kind == "generator" else "this process has no such stream"
    return _change(kind, name, f"{number} saved", why)


def _plan_stream(stream: Stream, states: Sequence[_State], plan: RngPlan) -> None:
    for state in states:
        if state.index >= stream.count:
            continue
        template = Template(
            _LABEL,
            f"{state.kind}/{state.name}",
            state.keys,
            make_slot(f"rng/{state.kind}/{state.name}/{state.index}", "cpu"),
        )
        plan.steps.append(SetRng(state.kind, state.name, state.index, template(state.node)))
        plan.copies += template.copies
    left = sum(state.index >= stream.count for state in states)
    lacking = stream.count - len({state.index for state in states}) + left
    rows = ((left, "not used"), (lacking, "without a saved state, left alone"))
    after = ", ".join(f"{number} {what}" for number, what in rows if number > 0)
    if states and after:
        before = f"{len(states)} saved, {stream.count} visible"
        plan.not_restored.append(_change(stream.kind, stream.name, before, after))


def _saved_states(catalog: Catalog, plan: RngPlan) -> Iterator[_State]:
    recorded = (catalog.manifest or {}).get("roles", {}).get(_LABEL)
    tree = catalog.tree
    if recorded is not None and isinstance(tree, Mapping) and isinstance(tree.get(_LABEL), Mapping):
        yield from _own_states(tree[_LABEL])
        return
    yield from _found_states(catalog, plan)


def _own_states(tree: Mapping[str, Any]) -> Iterator[_State]:
    """The states that unmoor.save wrote."""
    if "torch" in tree:
        yield _State("torch-cpu", "cpu", 0, (_LABEL, "torch"), tree["torch"])
    for kind, states in tree.get("devices", {}).items():
        for index, state in enumerate(states):
            yield _State("torch-device", kind, index, (_LABEL, "devices", kind, index), state)
    for kind in ("numpy", "python"):
        if kind in tree:
            yield _State(kind, kind, 0, (_LABEL, kind), tree[kind])
    for name, entry in tree.get("generators", {}).items():
        yield _State("generator", name, 0, (_LABEL, "generators", name), entry)


_FOREIGN: Final = {"torch-cpu": ("torch-cpu", "cpu"), "numpy": ("numpy", "numpy"), "python": ("python", "python")}


def _found_states(catalog: Catalog, plan: RngPlan) -> Iterator[_State]:
    """States that others wrote, by their structure. Several for one stream are an ambiguity: none is taken."""
    parts: dict[str, list[Part]] = {}
    for part in catalog.part("rng"):
        parts.setdefault(part.kind, []).append(part)
    for kind, found in parts.items():
        if kind == "cuda":
            yield from _cuda_states(found)
        elif kind in _FOREIGN and len(found) == 1:
            yield _State(*_FOREIGN[kind], 0, found[0].keys, found[0].node)
        elif kind in _FOREIGN:
            places = ", ".join(part.path for part in found[:4])
            plan.not_restored.append(
                _change(kind, "", f"{len(found)} states ({places})", "which one is meant cannot be told")
            )


def _cuda_states(parts: Sequence[Part]) -> Iterator[_State]:
    for place, part in enumerate(parts):
        if isinstance(part.node, list | tuple):
            for index, state in enumerate(part.node):
                yield _State("torch-device", "cuda", index, (*part.keys, index), state)
        else:
            yield _State("torch-device", "cuda", place, part.keys, part.node)
