"""Which saved parameter is which live one: by name where there are names, else by order proved by shape.

Two orders can be told of a file without names: the live optimizer's, and the one in which the file's own model lists
its parameters. Where they differ and shapes do not decide, nothing is guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from unmoor.values.finding import Finding
from unmoor.values.nodes import TensorNode
from unmoor.values.target import TargetOptimizer, TargetParam
from unmoor.values.text import count, format_shape, listing

from .file_model import FileModel
from .optimizer_names import Landing, LiveNames, land
from .optimizer_order import told_by_order
from .policy import Fault, Policy
from .saved_optimizer import ELEMENTWISE, FROZEN, SavedOptimizer

__all__ = ["ELEMENTWISE", "OptimizerMatch", "contradictions", "match_optimizer"]

_ONE_STATE: Final = "LBFGS"
"""The class of torch that keeps one state, under its first parameter, for the vector of all of them."""

_BY_FILE: Final = "matched by the order of the file's own model"
_REORDERED: Final = (
    'the parameters were reordered or the model changed: pass rename={...}, mismatched="fresh" to start those without '
    "state, or optimizer=None to start it fresh"
)


@dataclass(frozen=True, slots=True)
class OptimizerMatch:
    """Live position -> saved id, and how it was found.

    `unmatched` is saved name -> id for names that no live parameter bears, `missing` are live positions without a saved
    one, `frozen` is live name -> saved id for parameters that are in a live model and not in this optimizer; `judged`
    tells that a live model was there to tell. With `faults`, nothing was matched. `findings` tell what the match rests
    on.
    """

    ids: Mapping[int, Any]
    how: str = ""
    unmatched: Mapping[str, Any] = field(default_factory=dict)
    missing: tuple[int, ...] = ()
    frozen: Mapping[str, Any] = field(default_factory=dict)
    judged: bool = False
    faults: tuple[Fault, ...] = ()
    findings: tuple[Finding, ...] = ()

    def without(self, positions: Collection[int]) -> OptimizerMatch:
        """The same without some live positions."""
        if not positions:
            return self
        ids = {position: identity for position, identity in self.ids.items() if position not in positions}
        return replace(self, ids=ids, missing=tuple(i for i in self.missing if i not in positions))


def match_optimizer(
    target: TargetOptimizer,
    saved: SavedOptimizer,
    policy: Policy,
    *,
    file: FileModel,
    known: Mapping[str, str],
    renamed: Mapping[str, str],
    left: Collection[int] = (),
) -> OptimizerMatch:
    """`file` is what the file's own model tells; `renamed` is saved -> live model name.

    `known` is every name of a parameter of a live model -> the name that it goes by in an optimizer. `left` are
    positions that are left alone.
    """
    match = _match(target, saved, policy, file=file, known=known, renamed=renamed).without(left)
    live = [param for _, param in target.params()]
    if not match.faults and policy.mismatched == "error":
        faults = [Fault("mismatch", target.label, text, _REORDERED) for text in contradictions(live, saved, match.ids)]
        match = replace(match, faults=tuple(faults))
    if not match.faults and target.family == _ONE_STATE and any(saved.state.values()):
        match = replace(match, faults=_order_of_one(target, saved, match))
    kept = {name: (FROZEN, name) for group in saved.frozen for name in group["params"]}
    if match.faults or known or not kept:
        return replace(match, judged=bool(known))
    taken = {*match.ids.values(), *match.unmatched}
    still = {name: identity for name, identity in kept.items() if identity not in taken}
    unmatched = {name: identity for name, identity in match.unmatched.items() if name not in still}
    return replace(match, frozen={**match.frozen, **still}, unmatched=unmatched)


def _order_of_one(target: TargetOptimizer, saved: SavedOptimizer, match: OptimizerMatch) -> tuple[Fault, ...]:
    """The fault of a class whose one state is for all its parameters in their order, where the live ones are others."""
    if [match.ids.get(position) for position, _ in target.params()] == saved.flat:
        return ()
    text = (
        f"{target.class_name} keeps one state for all its parameters in their order, and the live ones are others or "
    )
    text += "in another order"
    remedy = f"build it over the same parameters in the same order, or {target.label}=None to start it fresh"
    return (Fault("mismatch", target.label, text, remedy),)


def _match(
    target: TargetOptimizer,
    saved: SavedOptimizer,
    policy: Policy,
    *,
    file: FileModel,
    known: Mapping[str, str],
    renamed: Mapping[str, str],
) -> OptimizerMatch:
    live = [param for _, param in target.params()]
    named = all(param.name for param in live) and len({param.name for param in live}) == len(live)
    if saved.names is not None and named and policy.order == "proved":
        ids = dict(zip(saved.names, saved.flat, strict=True))
        ids |= {name: (FROZEN, name) for group in saved.frozen for name in group["params"]}
        return _by_name(target.label, live, saved, ids, policy, known, renamed)
    sizes = [len(ids) for ids in saved.ids]
    same = sizes == [len(group.params) for group in target.groups]
    by_file = _file_reading(target, saved, file.order if named else None) if same else None
    told = _told(saved, file) if named and policy.order != "live" else None
    if same and by_file is not None:
        return _by_order(target.label, live, saved, policy, by_file, told, file)
    if told is not None:
        return _by_told(target, live, saved, policy, told, known, same=same)
    if not same:
        return OptimizerMatch({}, faults=(_size_fault(target, sizes),))
    return _by_position(target, saved, policy, named=named)


def _by_name(
    label: str,
    live: Sequence[TargetParam],
    saved: SavedOptimizer,
    ids: Mapping[str, Any],
    policy: Policy,
    known: Mapping[str, str],
    renamed: Mapping[str, str],
) -> OptimizerMatch:
    """`ids` is saved name -> saved id."""
    names = LiveNames({param.name: param.shape for param in live}, known)
    shapes = {name: saved.shape(identity) for name, identity in ids.items()}
    landings = land(shapes, names, renamed=renamed, rename=policy.rename)
    if len(landings) != 1:
        return OptimizerMatch({}, faults=(_nowhere(label, list(ids), live, landings),))
    landing = landings[0]
    twice = _landed_twice(label, landing)
    if twice:
        return OptimizerMatch({}, faults=twice)
    back = {to: ids[name] for name, to in landing.to.items()}
    positions = {param.name: i for i, param in enumerate(live)}
    found = {i: back[name] for name, i in positions.items() if name in back}
    if not found:
        return OptimizerMatch({}, faults=(_nowhere(label, list(ids), live, ()),))
    return OptimizerMatch(
        ids=found,
        how="matched by name" + ("" if landing.how == "as saved" else f", {landing.how}"),
        unmatched={name: identity for name, identity in ids.items() if name not in landing.to},
        missing=tuple(i for name, i in positions.items() if name not in back),
        frozen={to: identity for to, identity in back.items() if to not in positions},
    )


def _nowhere(label: str, names: list[str], live: Sequence[TargetParam], landings: Sequence[Landing]) -> Fault:
    ours = [param.name for param in live]
    if landings:
        ways = "; ".join(landing.how for landing in landings)
        text = (
            f"the parameter names in the file ({listing(names, 2)}) fit the live ones in {len(landings)} ways: {ways}"
        )
        return Fault("ambiguous", label, text, "rename={...} says which")
    text = f"none of the {len(names)} parameter names in the file ({listing(names, 2)}) is in the live optimizer"
    remedy = 'rename={...} says how saved names become live ones, order="live" matches by position'
    return Fault("mismatch", label, f"{text} ({listing(ours, 2)})", remedy)


def _landed_twice(label: str, landing: Landing) -> tuple[Fault, ...]:
    """Two saved parameters that are one live parameter: tied since, or made one by a renaming."""
    if len(set(landing.to.values())) == len(landing.to):
        return ()
    owners: dict[str, list[str]] = {}
    for name, to in landing.to.items():
        owners.setdefault(to, []).append(name)
    rows = [f"{' and '.join(names)} would both be {to}" for to, names in owners.items() if len(names) > 1]
    text = f"{listing(rows, 3)}: the saved optimizer has a state for each"
    return (Fault("ambiguous", label, text, 'drop one: rename={"its.name": "unused"}, unexpected="ignore"'),)


def _size_fault(target: TargetOptimizer, theirs: Sequence[int]) -> Fault:
    ours = [len(group.params) for group in target.groups]
    text = f"saved {_plain(theirs)}, live {_plain(ours)}; the file holds no names, and order and shapes do not tell "
    text += "which is which"
    named = all(param.name for _, param in target.params())
    remedy = "build it over the same parameters" + ("" if named else " and pass its model")
    return Fault("mismatch", target.label, text, f"{remedy}, or {target.label}=None to start it fresh")


def _plain(sizes: Sequence[int]) -> str:
    groups = count(len(sizes), "group")
    if len(sizes) > 1 and len(set(sizes)) == 1:
        return f"{groups} of {count(sizes[0], 'parameter')} each"
    return f"{groups} of {listing(list(map(str, sizes)), 8)} parameters"


def _file_reading(
    target: TargetOptimizer, saved: SavedOptimizer, file_order: Sequence[str] | None
) -> dict[int, Any] | None:
    """Position -> saved id if each saved group went through its parameters as the file's model lists them."""
    if file_order is None:
        return None
    groups = {param.name: g for g, group in enumerate(target.groups) for param in group.params}
    orders: list[list[str]] = [[] for _ in target.groups]
    for name in file_order:
        if name in groups:
            orders[groups[name]].append(name)
    positions = {param.name: i for i, param in target.params()}
    reading: dict[int, Any] = {}
    for order, ids in zip(orders, saved.ids, strict=True):
        if len(order) != len(ids):
            return None
        reading |= {positions[name]: identity for name, identity in zip(order, ids, strict=True)}
    return reading


def _told(saved: SavedOptimizer, file: FileModel) -> list[list[str]] | None:
    """The names in each saved group by the order of the file's own model, where shapes leave one way to deal them.

    Groups of one parameter each are as many as their parameters and go through them in that order.
    """
    if len(saved.ids) > 1 and all(len(ids) == 1 for ids in saved.ids):
        line = told_by_order([[saved.shape(i) for i in saved.flat]], file.params)
        return [[name] for name in line[0]] if line is not None else None
    return told_by_order([[saved.shape(i) for i in ids] for ids in saved.ids], file.params)


def _by_told(
    target: TargetOptimizer,
    live: Sequence[TargetParam],
    saved: SavedOptimizer,
    policy: Policy,
    told: Sequence[Sequence[str]],
    known: Mapping[str, str],
    *,
    same: bool,
) -> OptimizerMatch:
    """By names that the order of the file's model tells: groups of other sizes, or a model that has changed."""
    by_live = dict(enumerate(saved.flat))
    ids = dict(zip((name for group in told for name in group), saved.flat, strict=True))
    by_file = _positions(live, saved, told)
    differ = same and policy.order == "proved" and by_file != by_live
    if differ and not contradictions(live, saved, by_live):
        return OptimizerMatch({}, faults=(_order_fault(target.label, live, by_live, by_file),))
    match = _by_name(target.label, live, saved, ids, replace(policy, rename=None), known, {})
    alike = _number_alike([saved.shape(i) for i in saved.flat], saved.flat, saved)
    asked = policy.order == "file"
    findings = () if asked or not alike else (_unproved(target.label, _BY_FILE, alike, len(ids), 'order="file"'),)
    return replace(match, how=_BY_FILE + ("" if alike else ", shapes agree"), findings=findings)


def _positions(live: Sequence[TargetParam], saved: SavedOptimizer, told: Sequence[Sequence[str]]) -> dict[int, Any]:
    """Live position -> saved id for the parameters that the told names have a live one for."""
    places = {param.name: i for i, param in enumerate(live)}
    names = (name for group in told for name in group)
    found = {places[name]: i for name, i in zip(names, saved.flat, strict=True) if name in places}
    return dict(sorted(found.items()))


def _by_position(target: TargetOptimizer, saved: SavedOptimizer, policy: Policy, *, named: bool) -> OptimizerMatch:
    """By the live order alone, which shapes may prove and nothing else can."""
    live = [param for _, param in target.params()]
    if policy.order == "file":
        text = 'order="file" was asked for, and no model in the file tells the order of its parameters'
        return OptimizerMatch({}, faults=(Fault("mismatch", target.label, text, 'pass model=, or order="live"'),))
    reading = dict(enumerate(saved.flat))
    how = "matched by position, " + ("as asked" if policy.order == "live" else "shapes agree")
    alike = 0 if policy.order == "live" else _number_alike([param.shape for param in live], saved.flat, saved)
    if not alike:
        return OptimizerMatch(reading, how)
    asking = "build it over model.named_parameters()" if saved.names else "pass model= to match it with the file's own"
    more = 'order="live"' + ("" if named else f", or {asking}")
    return OptimizerMatch(reading, how, findings=(_unproved(target.label, "by position", alike, len(live), more),))


def _unproved(label: str, way: str, alike: int, total: int, remedy: str) -> Finding:
    text = f"state was matched {way.removeprefix('matched ')}, and {alike} of {total} parameters have the shape of "
    text += "another: nothing proves that their order is still the same"
    return Finding("order-not-proved", "warning", label, text, f"to say that it is: {remedy}")


def _number_alike(
    shapes: Sequence[tuple[int, ...] | None],
    ids: Sequence[Any],
    saved: SavedOptimizer,
    among: Sequence[tuple[int, ...]] = (),
) -> int:
    """How many parameters with state share their shape with another, or with several of `among`."""
    times = Counter(among or shapes)
    return sum(times[shape] > 1 and bool(saved.state.get(i)) for shape, i in zip(shapes, ids, strict=True))


def _by_order(
    label: str,
    live: Sequence[TargetParam],
    saved: SavedOptimizer,
    policy: Policy,
    by_file: Mapping[int, Any],
    told: Sequence[Sequence[str]] | None,
    file: FileModel,
) -> OptimizerMatch:
    """`told` are the names that the order of the file's model gives the saved parameters, None where it proves none."""
    by_live = dict(enumerate(saved.flat))
    if by_file == by_live:
        how = "matched by position, shapes agree"
        by_told = _positions(live, saved, told) if told is not None else None
        if by_told == by_live and not file.several:
            return OptimizerMatch(by_live, f"{how}, as does the order of the file's own model")
        if by_told is not None and contradictions(live, saved, by_live) and len(by_told) == len(by_live):
            return OptimizerMatch(by_told, f"{_BY_FILE}: shapes contradict the live order")
        shapes = [shape for _, shape in file.params]
        alike = _number_alike([param.shape for param in live], saved.flat, saved, shapes)
        if not alike or policy.order != "proved":
            return OptimizerMatch(by_live, how + (", as asked" if policy.order == "live" else ""))
        found = _unproved(label, "by position", alike, len(live), 'order="live"')
        return OptimizerMatch(by_live, how, findings=(found,))
    if policy.order == "file":
        return OptimizerMatch(by_file, _BY_FILE)
    if policy.order == "live":
        return OptimizerMatch(by_live, "matched by position in the live optimizer, as asked")
    wrong_live, wrong_file = contradictions(live, saved, by_live), contradictions(live, saved, by_file)
    if wrong_live and not wrong_file:
        return OptimizerMatch(by_file, f"{_BY_FILE}: shapes contradict the live order")
    if wrong_file and not wrong_live:
        how = "matched by position: shapes contradict the order of the file's own model"
        return OptimizerMatch(by_live, how)
    return OptimizerMatch({}, faults=(_order_fault(label, live, by_live, by_file),))


def contradictions(live: Sequence[TargetParam], saved: SavedOptimizer, reading: Mapping[int, Any]) -> list[str]:
    """Where a reading gives a parameter state of another shape, one line a parameter."""
    found = []
    state, nothing = saved.state, dict[str, Any]()
    for position, identity in reading.items():
        param = live[position]
        own = param.shape
        for key, value in state.get(identity, nothing).items():
            if key in ELEMENTWISE and isinstance(value, TensorNode) and value.shape != own:
                name = param.name or f"parameter {position}"
                shapes = f"has shape {format_shape(value.shape)}, the live parameter has {format_shape(param.shape)}"
                found.append(f"state {key!r} for {name} {shapes}")
                break
    return found


def _order_fault(
    label: str, live: Sequence[TargetParam], by_live: Mapping[int, Any], by_file: Mapping[int, Any]
) -> Fault:
    differing = [i for i in by_live if i not in by_file or by_live[i] != by_file[i]]
    rows = [
        f"{live[i].name}: state {by_live[i]} by live order, {by_file.get(i, 'none')} by the file's"
        for i in differing[:4]
    ]
    more = f" and {len(differing) - 4} more" if len(differing) > 4 else ""
    text = f"the file holds no names, and its model lists {len(differing)} of {len(live)} parameters in another order "
    text += f"than the live optimizer: {'; '.join(rows)}{more}"
    return Fault("ambiguous", label, text, 'order="live" or order="file" says which')
