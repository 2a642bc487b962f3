"""State of parameters that are spread over ranks: which of it lies beside its parameter, and what cannot be placed."""

from __future__ import annotations

from collections.abc import Sequence

from unmoor.values.boxes import Box
from unmoor.values.nodes import TensorNode
from unmoor.values.optimizers import COUNTERS, FAMILIES
from unmoor.values.plan import Copy
from unmoor.values.target import TargetOptimizer, TargetParam
from unmoor.values.text import format_shape, listing

from .policy import Fault

__all__ = ["boxes_of", "own_loading", "spread_faults"]


def boxes_of(param: TargetParam, family: str, key: str, node: TensorNode) -> tuple[Box, ...] | None:
    """The parts that this rank holds of a state of its parameter; None where it has all of it, as of a counter."""
    if param.boxes is None or node.shape != param.shape or key in COUNTERS:
        return None
    counts = node.shape == () and family in FAMILIES and key not in FAMILIES[family].elementwise
    return None if counts else param.boxes


def own_loading(target: TargetOptimizer) -> list[Fault]:
    """A class whose state dict has a form of its own: it cannot be told which parts of that a rank holds."""
    if not target.whole:
        return []
    names = [param.name or f"parameter {position}" for position, param in target.params() if param.boxes is not None]
    if not names:
        return []
    text = f"the state dict of {target.class_name} has a form of its own, and {listing(names)} are spread over ranks"
    return [Fault("mismatch", target.label, text, f"{target.label}=None starts it fresh")]


def spread_faults(target: TargetOptimizer, placed: Sequence[tuple[Copy, int]]) -> list[Fault]:
    """State of another shape than its parameter's: nothing tells which rank has what of it.

    `placed` are the copies of state, each with the position of its parameter.
    """
    flat = {position for run in target.joined for position in run}
    shapes = {p: param.shape for p, param in target.params() if param.boxes is not None and p not in flat}
    odd = [
        f"{copy.name} ({format_shape(copy.node.shape)}, of a parameter {format_shape(shapes[position])})"
        for copy, position in placed
        if position in shapes and copy.slot.boxes is None and copy.node.shape != ()
    ]
    text = f"state {listing(odd)} is not shaped like its parameter, which is spread over ranks: nothing tells which of "
    text += f"it each rank has under {target.class_name}"
    return [Fault("mismatch", target.label, text, f"{target.label}=None starts it fresh")] if odd else []
