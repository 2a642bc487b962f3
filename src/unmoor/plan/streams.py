"""Random number states to the streams of this process: exactly, or not at all and said so."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from unmoor.values.catalog import Catalog, Part
from unmoor.values.plan import Change, Copy, SetRng
from unmoor.values.ranks import ranks_text
from unmoor.values.target import Stream
from unmoor.values.text import count, listing

from .choose import find_at
from .of_rank import every_rank
from .policy import Fault, Policy
from .slots import make_slot
from .stream_ranks import SavedState, placed, same_everywhere, spawn_key
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


def plan_rng(catalog: Catalog, streams: Sequence[Stream], policy: Policy, *, rank: int = 0, world: int = 1) -> RngPlan:
    """Plan all streams. With policy.rng "none" nothing is touched; with "exact" a state left over is a fault.

    Of the states that several ranks saved, those of `rank` are this one's; where it did not exist, see `stream_ranks`.
    """
    plan = RngPlan()
    everyone = _by_rank(catalog, streams, policy, rank, plan)
    saved = everyone[rank if rank in everyone else min(everyone)]
    if policy.rng == "none":
        if saved:
            plan.not_restored.append(Change(_LABEL, "", f"{len(saved)} states in the file", "rng=False: left alone"))
        return plan
    by_stream: dict[tuple[str, str], list[SavedState]] = {}
    for state in saved:
        by_stream.setdefault((state.kind, state.name), []).append(state)
    told = {change.name for change in plan.not_restored}
    for stream in streams:
        states = by_stream.pop((stream.kind, stream.name), [])
        _plan_stream(stream, states, plan, _new_rank(rank, stream, everyone))
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
    if policy.rng == "exact":
        plan.faults += _inexact(plan, rank, everyone)
    plan.not_restored += _unused(catalog, everyone, rank, world)
    plan.note = _note(plan, rank, world, everyone)
    return plan


_NO_NUMPY: Final = "a state for a rank that did not exist is derived by numpy, which is not here"

ByRank = Mapping[int, Sequence[SavedState]]
"""Rank that saved -> its states. Where nothing tells ranks apart, all are rank 0's."""


def _by_rank(catalog: Catalog, streams: Sequence[Stream], policy: Policy, rank: int, plan: RngPlan) -> ByRank:
    """The saved states by rank. Of those that `rank` takes, `plan` hears which cannot be used, and their files."""
    if _is_recorded(catalog):
        trees = every_rank(catalog, (_LABEL,))
        different = {id(tree): tree for tree in trees if isinstance(tree, Mapping)}
        states = {key: list(_own_states(tree)) for key, tree in different.items()}
        return {number: states[id(tree)] for number, tree in enumerate(trees) if id(tree) in states}
    numbers = sorted({int(part.detail["rank"]) for part in catalog.part("rng") if "rank" in part.detail}) or [0]
    chosen = rank if rank in numbers else numbers[0]
    found = {}
    for number in numbers:
        parts = [part for part in catalog.parts if part.role != "rng" or part.detail.get("rank", number) == number]
        own = replace(catalog, parts=tuple(parts))
        found[number] = list(_saved_states(own, streams, policy, plan if number == chosen else RngPlan()))
        if number == chosen:
            files = (str(part.detail["file"]) for part in own.part("rng") if "file" in part.detail)
            plan.files += dict.fromkeys(files)
    return found


def _new_rank(rank: int, stream: Stream, everyone: ByRank) -> int | None:
    """The rank for which the state of a stream is derived; None where it is taken as it was saved."""
    if rank in everyone:
        return None
    who = (stream.kind, stream.name)
    states = [[state for state in everyone[number] if (state.kind, state.name) == who] for number in sorted(everyone)]
    return None if same_everywhere(stream, states) else rank


def _inexact(plan: RngPlan, rank: int, everyone: ByRank) -> list[Fault]:
    """What rng="exact" does not let through."""
    faults = [
        Fault("mismatch", _LABEL, f"{c.name or 'all'}: {c.before}, {c.after}", "rng=True restores the others")
        for c in plan.not_restored
    ]
    derived = _words(step for step in plan.steps if step.spawn_key)
    if derived:
        message = f"{derived}: {count(len(everyone), 'rank')} saved, and rank {rank} was none of them"
        faults.append(Fault("mismatch", _LABEL, message, "rng=True derives its states from those of rank 0"))
    return faults


def _unused(catalog: Catalog, everyone: ByRank, rank: int, world: int) -> list[Change]:
    """What there is to tell of the states of ranks that are there no more."""
    others = [number for number in everyone if number >= world and number != rank and everyone[number]]
    if not others:
        return []
    files = {int(p.detail["rank"]): str(p.detail["file"]) for p in catalog.part("rng") if "rank" in p.detail}
    whose = listing([files[number] for number in others]) if files else ranks_text(others)
    before = f"saved by {count(len(everyone), 'rank')}, this process is rank {rank}"
    return [Change(_LABEL, "", before, f"those of the others are not used: {whose}")]


def _note(plan: RngPlan, rank: int, world: int, everyone: ByRank) -> str:
    if not plan.steps:
        return ""
    derived, exact = _words(s for s in plan.steps if s.spawn_key), _words(s for s in plan.steps if not s.spawn_key)
    if rank in everyone:
        return exact
    made = f"{derived} derived for rank {rank} from the states of rank 0" if derived else ""
    same = f"{exact} as on rank 0" if exact else ""
    return "; ".join([*filter(None, (made, same)), f"saved by {count(len(everyone), 'rank')}, now {world}"])


def _words(steps: Iterable[SetRng]) -> str:
    return ", ".join(dict.fromkeys(_word(step.kind, step.name) for step in steps))


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


def _plan_stream(stream: Stream, states: Sequence[SavedState], plan: RngPlan, new: int | None) -> None:
    """Put the states where they belong; for a rank that is `new`, states derived from them."""
    if states and new is not None and not stream.derives:
        plan.not_restored.append(_change(stream.kind, stream.name, _NO_NUMPY, "left as it is"))
        return
    places = placed(states, stream)
    for index, state in places:
        if index >= stream.count:
            continue
        slot = make_slot(f"rng/{state.kind}/{state.name}/{state.index}", "cpu")
        template = Template(_LABEL, f"{state.kind}/{state.name}", state.keys, slot)
        key = () if new is None else spawn_key(new, stream, index)
        plan.steps.append(SetRng(state.kind, state.name, index, template(state.node), key))
        plan.copies += template.copies
    left = sum(index >= stream.count for index, _ in places)
    lacking = stream.count - len({index for index, _ in places}) + left
    rows = ((left, "not used"), (lacking, "without a saved state, left alone"))
    after = ", ".join(f"{number} {what}" for number, what in rows if number > 0)
    if states and after:
        before = f"{len(states)} saved, {stream.count} visible"
        plan.not_restored.append(_change(stream.kind, stream.name, before, after))


def _is_recorded(catalog: Catalog) -> bool:
    """Whether unmoor.save wrote the states, and where they stand is known."""
    recorded = (catalog.manifest or {}).get("roles", {}).get(_LABEL)
    return recorded is not None and isinstance(catalog.tree, Mapping) and isinstance(catalog.tree.get(_LABEL), Mapping)


def _saved_states(catalog: Catalog, streams: Sequence[Stream], policy: Policy, plan: RngPlan) -> Iterator[SavedState]:
    """The states in a file of others."""
    taken = set()
    for stream in streams:
        for part in _claimed(catalog, stream, policy):
            taken.add(part.keys)
            yield SavedState("generator", stream.name, 0, part.keys, {"flavour": stream.flavour, "state": part.node})
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


def _own_states(tree: Mapping[str, Any]) -> Iterator[SavedState]:
    """The states that unmoor.save wrote."""
    if "torch" in tree:
        yield SavedState("torch-cpu", "cpu", 0, (_LABEL, "torch"), tree["torch"])
    current = tree.get("current", {})
    devices = tree.get("devices")
    for kind, states in devices.items() if isinstance(devices, Mapping) else ():
        own = current.get(kind) if isinstance(current, Mapping) else None
        for index, state in enumerate(states if isinstance(states, list) else ()):
            keys = (_LABEL, "devices", kind, index)
            yield SavedState("torch-device", kind, index, keys, state, None if own is None else own == index)
    for kind in ("numpy", "python"):
        if kind in tree:
            yield SavedState(kind, kind, 0, (_LABEL, kind), tree[kind])
    for name, entry in tree.get("generators", {}).items():
        yield SavedState("generator", name, 0, (_LABEL, "generators", name), entry)


_FOREIGN: Final = {"torch-cpu": ("torch-cpu", "cpu"), "numpy": ("numpy", "numpy"), "python": ("python", "python")}


def _found_states(catalog: Catalog, taken: Collection[tuple[Any, ...]], plan: RngPlan) -> Iterator[SavedState]:
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
            yield SavedState(*_FOREIGN[kind], 0, found[0].keys, found[0].node)
        else:
            places = ", ".join(part.path for part in found[:4])
            plan.not_restored.append(
                _change(kind, "", f"{len(found)} states ({places})", "which one is meant cannot be told")
            )


def _device_states(kind: str, parts: Sequence[Part]) -> Iterator[SavedState]:
    """The states of devices, by index. In the file of one rank of several, as many as there are ranks of a machine.

    Each of those ranks worked on the device of its own number.
    """
    for place, part in enumerate(parts):
        if isinstance(part.node, list | tuple):
            own = part.detail["rank"] % len(part.node) if "rank" in part.detail and part.node else None
            for index, state in enumerate(part.node):
                mine = None if own is None else own == index
                yield SavedState("torch-device", kind, index, (*part.keys, index), state, mine)
        else:
            yield SavedState("torch-device", kind, place, part.keys, part.node)
