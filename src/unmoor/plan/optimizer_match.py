"""Which saved parameter is which live one: by name where there are names, else by order proved by shape.

Two orders can be told of a file without names: the live optimizer's, and the one in which the file's own model lists
its parameters. Where they differ and shapes do not decide, nothing is guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from unmoor.values.finding import Finding
from unmoor.values.nodes import TensorNode
from unmoor.values.optimizers import FAMILIES
from unmoor.values.target import TargetOptimizer, TargetParam
from unmoor.values.text import count, format_shape, listing

from .names import match_names
from .policy import Fault, Policy
from .saved_optimizer import SavedOptimizer

__all__ = ["ELEMENTWISE", "OptimizerMatch", "contradictions", "match_optimizer"]

ELEMENTWISE: Final = frozenset(key for family in FAMILIES.values() for key in family.elementwise)
"""State keys whose tensors have the shape of their parameter."""

_REORDERED: Final = (
    "the parameters were reordered or the model changed: pass rename={...}, or optimizer=None to start it fresh"
)


@dataclass(frozen=True, slots=True)
class OptimizerMatch:
    """Live position -> saved id, and how it was found.

    `unmatched` are saved names that no live parameter bears, `missing` live positions without a saved one. With
    `faults`, nothing was matched. `findings` tell what the match rests on.
    """

    ids: Mapping[int, Any]
    how: str = ""
    unmatched: tuple[str, ...] = ()
    missing: tuple[int, ...] = ()
    faults: tuple[Fault, ...] = ()
    findings: tuple[Finding, ...] = ()


def match_optimizer(
    target: TargetOptimizer,
    saved: SavedOptimizer,
    policy: Policy,
    *,
    file_order: Sequence[str] | None,
    renamed: Mapping[str, str],
) -> OptimizerMatch:
    """`file_order` are live parameter names as the file's model lists them; `renamed` is saved -> live model name."""
    live = [param for _, param in target.params()]
    named = all(param.name for param in live) and len({param.name for param in live}) == len(live)
    if saved.names is not None and named and policy.order == "proved":
        return _by_name(target.label, live, saved, saved.names, policy, renamed)
    if [len(ids) for ids in saved.ids] != [len(group.params) for group in target.groups]:
        return OptimizerMatch({}, faults=(_size_fault(target, saved),))
    by_file = _file_reading(target, saved, file_order if named else None)
    if by_file is None:
        return _by_position(target, saved, policy, named=named)
    return _by_order(target.label, live, saved, policy, by_file)


def _by_name(
    label: str,
    live: Sequence[TargetParam],
    saved: SavedOptimizer,
    names: tuple[str, ...],
    policy: Policy,
    renamed: Mapping[str, str],
) -> OptimizerMatch:
    ids = dict(zip(names, saved.flat, strict=True))
    known = {renamed.get(name, name): name for name in names}
    match = match_names(dict.fromkeys(known), {param.name: param.shape for param in live})
    if match.rivals or (names and live and not match.reading.pairs):
        text = f"none of the {len(names)} parameter names in the file ({listing(names, 2)}) is in the live optimizer"
        text += f" ({listing([param.name for param in live], 2)})"
        return OptimizerMatch({}, faults=(Fault("mismatch", label, text, 'order="live" matches by position'),))
    positions = {param.name: i for i, param in enumerate(live)}
    found = {positions[name]: ids[known[other]] for name, other in match.reading.pairs.items()}
    faults = _shape_faults(label, live, saved, policy, found)
    return OptimizerMatch(
        ids=found,
        how="matched by name" + ("" if match.reading.how == "as saved" else f", {match.reading.how}"),
        unmatched=tuple(known[name] for name in (*match.unexpected, *match.reading.outside)),
        missing=tuple(positions[name] for name in match.missing),
        faults=faults,
    )


def _size_fault(target: TargetOptimizer, saved: SavedOptimizer) -> Fault:
    ours = [len(group.params) for group in target.groups]
    theirs = [len(ids) for ids in saved.ids]
    text = f"saved {count(len(theirs), 'group')} of {_plain(theirs)} parameters, live {count(len(ours), 'group')} of "
    text += f"{_plain(ours)}, and there are no names to match them by"
    remedy = "build it over the same parameters and pass its model, or optimizer=None to start it fresh"
    return Fault("mismatch", target.label, text, remedy)


def _plain(sizes: Sequence[int]) -> str:
    return " and ".join(map(str, sizes))


def _file_reading(
    target: TargetOptimizer, saved: SavedOptimizer, file_order: Sequence[str] | None
) -> dict[int, Any] | None:
    """Position -> saved id if each saved group went through its parameters as the file's model lists them."""
    if file_order is None:
        return None
    positions = {param.name: i for i, param in target.params()}
    reading: dict[int, Any] = {}
    for group, ids in zip(target.groups, saved.ids, strict=True):
        held = {param.name for param in group.params}
        order = [name for name in file_order if name in held]
        if len(order) != len(ids):
            return None
        reading |= {positions[name]: identity for name, identity in zip(order, ids, strict=True)}
    return reading


def _by_position(target: TargetOptimizer, saved: SavedOptimizer, policy: Policy, *, named: bool) -> OptimizerMatch:
    """By the live order alone, which shapes may prove and nothing else can."""
    live = [param for _, param in target.params()]
    if policy.order == "file":
        text = 'order="file" was asked for, and no model in the file tells the order of its parameters'
        return OptimizerMatch({}, faults=(Fault("mismatch", target.label, text, 'pass model=, or order="live"'),))
    reading = dict(enumerate(saved.flat))
    how = "matched by position, " + ("as asked" if policy.order == "live" else "shapes agree")
    faults = _shape_faults(target.label, live, saved, policy, reading)
    alike = _alike(target, saved) if policy.order == "proved" else 0
    if not alike or faults:
        return OptimizerMatch(reading, how, faults=faults)
    text = f"state was matched by position, and {alike} of {len(live)} parameters have the shape of another: nothing "
    text += "proves that their order is still the same"
    remedy = 'order="live" says that it is' + ("" if named else ", or pass model= to match it with the file's own")
    return OptimizerMatch(reading, how, findings=(Finding("order-not-proved", "warning", target.label, text, remedy),))


def _alike(target: TargetOptimizer, saved: SavedOptimizer) -> int:
    """How many parameters with state share their shape with another of their group."""
    number = 0
    for group, ids in zip(target.groups, saved.ids, strict=True):
        shapes = Counter(param.shape for param in group.params)
        number += sum(
            shapes[param.shape] > 1 and bool(saved.state.get(i)) for param, i in zip(group.params, ids, strict=True)
        )
    return number


def _by_order(
    label: str,
    live: Sequence[TargetParam],
    saved: SavedOptimizer,
    policy: Policy,
    by_file: Mapping[int, Any],
) -> OptimizerMatch:
    by_live = dict(enumerate(saved.flat))
    if by_file == by_live:
        how = "matched by position, shapes agree, as does the order of the file's own model"
        return _proved(label, live, saved, policy, by_live, how)
    if policy.order == "file":
        return _proved(label, live, saved, policy, by_file, "matched by the order of the file's own model")
    if policy.order == "live":
        return _proved(label, live, saved, policy, by_live, "matched by position in the live optimizer, as asked")
    wrong_live, wrong_file = contradictions(live, saved, by_live), contradictions(live, saved, by_file)
    if wrong_live and not wrong_file:
        how = "matched by the order of the file's own model: shapes contradict the live order"
        return OptimizerMatch(by_file, how)
    if wrong_file and not wrong_live:
        how = "matched by position: shapes contradict the order of the file's own model"
        return OptimizerMatch(by_live, how)
    return OptimizerMatch({}, faults=(_order_fault(label, live, by_live, by_file),))


def _proved(
    label: str,
    live: Sequence[TargetParam],
    saved: SavedOptimizer,
    policy: Policy,
    reading: Mapping[int, Any],
    how: str,
) -> OptimizerMatch:
    return OptimizerMatch(reading, how, faults=_shape_faults(label, live, saved, policy, reading))


def _shape_faults(
    label: str, live: Sequence[TargetParam], saved: SavedOptimizer, policy: Policy, reading: Mapping[int, Any]
) -> tuple[Fault, ...]:
    if policy.mismatched == "fresh":
        return ()
    return tuple(Fault("mismatch", label, text, _REORDERED) for text in contradictions(live, saved, reading))


def contradictions(live: Sequence[TargetParam], saved: SavedOptimizer, reading: Mapping[int, Any]) -> list[str]:
    """Where a reading gives a parameter state of another shape, one line a parameter."""
    found = []
    for position, identity in reading.items():
        param = live[position]
        for key, value in saved.state.get(identity, {}).items():
            if key in ELEMENTWISE and isinstance(value, TensorNode) and value.shape != param.shape:
                name = param.name or f"parameter {position}"
                shapes = f"has shape {format_shape(value.shape)}, the live parameter has {format_shape(param.shape)}"
                found.append(f"state {key!r} for {name} {shapes}")
                break
    return found


def _order_fault(
    label: str, live: Sequence[TargetParam], by_live: Mapping[int, Any], by_file: Mapping[int, Any]
) -> Fault:
    differing = [i for i in by_live if by_live[i] != by_file[i]]
    rows = [f"{live[i].name}: state {by_live[i]} by live order, {by_file[i]} by the file's" for i in differing[:4]]
    more = f" and {len(differing) - 4} more" if len(differing) > 4 else ""
    text = f"the file holds no names, and its model lists {len(differing)} of {len(live)} parameters in another order "
    text += f"than the live optimizer: {'; '.join(rows)}{more}"
    return Fault("ambiguous", label, text, 'order="live" or order="file" says which')
