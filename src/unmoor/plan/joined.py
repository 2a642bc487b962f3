"""State for parameters that a live optimizer has as one FlatParameter: all of them have it alike, or none has any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unmoor.values.nodes import TensorNode
from unmoor.values.plan import Copy
from unmoor.values.target import TargetOptimizer
from unmoor.values.text import listing

from .policy import Fault

__all__ = ["joined_faults", "joined_twins", "state_copies"]

_REMEDY = "wrap with FullyShardedDataParallel(..., use_orig_params=True)"


def joined_faults(
    target: TargetOptimizer, state: Mapping[int, Mapping[str, Any]], copies: Sequence[Copy]
) -> list[Fault]:
    """FlatParameters of which only a part has state, and state that is no number for each element."""
    if not target.joined:
        return []
    names = {position: param.name or f"parameter {position}" for position, param in target.params()}
    shapes = {position: param.shape for position, param in target.params()}
    flat = {position for run in target.joined for position in run}
    faults = []
    for run in target.joined:
        without = [names[position] for position in run if not state.get(position)]
        if without and len(without) < len(run):
            text = f"one FlatParameter holds {listing([names[p] for p in run])}, and the file has no state for "
            faults.append(Fault("mismatch", target.label, text + listing(without), _REMEDY))
    placed = state_copies(target, copies)
    odd = [copy.name for copy, p in placed if p in flat and copy.node.shape not in ((), shapes[p])]
    if odd:
        text = f"state {listing(odd)} has not one value for each element, as a FlatParameter needs it"
        faults.append(Fault("mismatch", target.label, text, _REMEDY))
    return faults


def joined_twins(target: TargetOptimizer, copies: Sequence[Copy]) -> list[tuple[Copy, Copy]]:
    """Counters of one FlatParameter, pair by pair: they must be equal in the file."""
    if not target.joined:
        return []
    first: dict[tuple[int, str], Copy] = {}
    owner = {position: run[0] for run in target.joined for position in run}
    pairs = []
    for copy in copies:
        position = _position(target, copy)
        if position not in owner or copy.node.shape != ():
            continue
        one = first.setdefault((owner[position], copy.slot.id.rpartition("/")[2]), copy)
        if one is not copy and not _same(one.node, copy.node):
            pairs.append((one, copy))
    return pairs


def state_copies(target: TargetOptimizer, copies: Sequence[Copy]) -> list[tuple[Copy, int]]:
    """The copies of state that is made anew, each with the position of its parameter."""
    return [(copy, position) for copy in copies if (position := _position(target, copy)) >= 0]


def _position(target: TargetOptimizer, copy: Copy) -> int:
    """The position that a copy of state is for; -1 for any other copy."""
    head = f"{target.label}/state/"
    number = copy.slot.id.removeprefix(head).partition("/")[0] if copy.slot.id.startswith(head) else ""
    return int(number) if number.isdigit() else -1


def _same(one: TensorNode, other: TensorNode) -> bool:
    return (one.storage, one.offset, one.dtype) == (other.storage, other.offset, other.dtype)
