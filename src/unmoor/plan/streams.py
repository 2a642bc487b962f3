"""Random number states to the streams of this process: exactly, or not at all and said so."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from unmoor.values.catalog import Catalog, Part
from unmoor.values.plan import Change, Copy, SetRng
from unmoor.values.target import Stream
from unmoor.values.text import count, listing

from .choose import find_at
from .policy import Fault, Policy
from .slots import make_slot
from .templates import Template

__all__ = ["RngPlan", "plan_rng"]

_LABEL: Final = "rng"
_GLOBAL_NUMPY: Final = "MT19937"


@dataclass(slots=True)
class RngPlan:
    """The steps for all streams, and what there is to tell about them."""

    copies: list[Copy] = field(default_factory=list)
    steps: list[SetRng] = field(default_factory=list)
    not_restored: list[Change] = field(default_factory=list)
    note: str = ""
    faults: list[Fault] = field(default_factory=list)
    files: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _State:
    """One saved state: which stream it belongs to and where it stands."""

    kind: str
    name: str
    index: int
    keys: tuple[Any, ...]
    node: Any


def plan_rng(catalog: Catalog, streams: Sequence[Stream], policy: Policy, *, rank: int = 0) -> RngPlan:
    """Plan all streams. With policy.rng "none" nothing is touched; with "exact" a state left over is a fault.

    Of the states that several processes saved, those of `rank` are this one's.
    """
    plan = RngPlan()
    own, others = _of_rank(catalog, rank, plan)
    saved = list(_saved_states(own, streams, policy, plan))
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
        if not states and stream.asked:
            message = (
                f"rng= asks for the generator {stream.name!r}, and the file holds no {stream.flavour} state for it"
            )
            remedy = f'leave it out of rng=, or say where it stands: at={{"rng[{stream.name}]": ...}}'
            plan.faults.append(Fault("mismatch", _LABEL, message, remedy))
    for (kind, name), states in by_stream.items():
        plan.not_restored.append(_without_stream(kind, name, len(states)))
    if not saved and not plan.not_restored:
        plan.not_restored.append(Change(_LABEL, "", "the file holds none", "this process's generators were left alone"))
    if policy.rng == "exact" and plan.not_restored:
        plan.faults += [
            Fault("mismatch", _LABEL, f"{c.name or 'all'}: {c.before}, {c.after}", "rng=True restores the others")
            for c in plan.not_restored
        ]
    plan.not_restored += others
    plan.note = ", ".join(dict.fromkeys(_word(step.kind, step.name) for step in plan.steps))
    return plan


def _of_rank(catalog: Catalog, rank: int, plan: RngPlan) -> tuple[Catalog, list[Change]]:
    """The catalog with no random states but those of this rank, and what there is to tell of other ranks'."""
    ranks = {part.detail["rank"]: str(part.detail["file"]) for part in catalog.part("rng") if "rank" in part.detail}
    others = [file for other, file in ranks.items() if other != rank]
    told: list[Change] = []
    if others:
        before = f"saved by {count(len(ranks), 'rank')}, this process is rank {rank}"
        after = f"those of the others are not used: {listing(others)}" if rank in ranks else "left alone"
        (told if rank in ranks else plan.not_restored).append(Change(_LABEL, "", before, after))
    parts = (part for part in catalog.parts if part.role != "rng" or part.detail.get("rank", rank) == rank)
    kept = replace(catalog, parts=tuple(parts))
    plan.files += dict.fromkeys(str(part.detail["file"]) for part in kept.part("rng") if "file" in part.detail)
    return kept, told


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


def _saved_states(catalog: Catalog, streams: Sequence[Stream], policy: Policy, plan: RngPlan) -> Iterator[_State]:
    recorded = (catalog.manifest or {}).get("roles", {}).get(_LABEL)
    tree = catalog.tree
    if recorded is not None and isinstance(tree, Mapping) and isinstance(tree.get(_LABEL), Mapping):
        yield from _own_states(tree[_LABEL])
        return
    taken = set()
    for stream in streams:
        for part in _claimed(catalog, stream, policy):
            taken.add(part.keys)
            yield _State("generator", stream.name, 0, part.keys, {"flavour": stream.flavour, "state": part.node})
    yield from _found_states(catalog, taken, plan)


_FLAVOURS: Final = {"torch": "torch-cpu", "python": "python", "numpy": "numpy", "numpy-legacy": "numpy"}
"""Kind of a live generator -> kind of the saved states that it can take."""


def _claimed(catalog: Catalog, stream: Stream, policy: Policy) -> list[Part]:
    """The state in a file of others that is meant for a generator of the caller's: by `at`, or under its name."""
    if stream.kind != "generator":
        return []
    fitting = [part for part in catalog.part("rng") if part.kind == _FLAVOURS[stream.flavour] and part.keys]
    place = policy.at.get(f"{_LABEL}[{stream.name}]")
    if place is not None:
        keys = find_at(catalog, place)
        return [part for part in fitting if part.keys == keys]
    named = [part for part in fitting if stream.name in (str(part.keys[-1]), part.path)]
    return named if len(named) == 1 else []


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


def _found_states(catalog: Catalog, taken: Collection[tuple[Any, ...]], plan: RngPlan) -> Iterator[_State]:
    """States that others wrote, by their structure. Several for one stream are an ambiguity: none is taken."""
    parts: dict[str, list[Part]] = {}
    for part in catalog.part("rng"):
        if part.keys in taken:
            continue
        if part.kind == "numpy" and part.detail.get("generator") != _GLOBAL_NUMPY:
            what = f"the state of a {part.detail.get('generator')} generator"
            plan.not_restored.append(_change("generator", part.path, what, f"pass yours: rng={{{part.path!r}: ...}}"))
            continue
        parts.setdefault(part.kind, []).append(part)
    for kind, found in parts.items():
        if kind not in _FOREIGN:
            yield from _device_states(kind, found)
        elif len(found) == 1:
            yield _State(*_FOREIGN[kind], 0, found[0].keys, found[0].node)
        else:
            places = ", ".join(part.path for part in found[:4])
            plan.not_restored.append(
                _change(kind, "", f"{len(found)} states ({places})", "which one is meant cannot be told")
            )


def _device_states(kind: str, parts: Sequence[Part]) -> Iterator[_State]:
    for place, part in enumerate(parts):
        if isinstance(part.node, list | tuple):
            for index, state in enumerate(part.node):
                yield _State("torch-device", kind, index, (*part.keys, index), state)
        else:
            yield _State("torch-device", kind, place, part.keys, part.node)
