"""What an inert tree tells at a glance: who wrote it, how far the run was, how many steps its optimizer has done.

No more than two levels of it are looked at, whatever its size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeGuard

from unmoor.values.nodes import TensorNode
from unmoor.values.progress import MISSING

from .dialects import dialect_of

__all__ = ["Told", "is_scalar", "tree_tells"]

_OPTIMIZERS: Final = ("optimizer", "optim", "opt", "optimizer_state_dict", "optimizer_states", "optim_state_dict")
_MONITORED: Final = "ModelCheckpoint"
_MOST: Final = 64


class Told(NamedTuple):
    """`values` are the tree itself where it is a mapping, `metrics` tensors of one element by what they measure."""

    dialect: str
    values: Mapping[Any, Any]
    metrics: Mapping[str, TensorNode]
    counter: Any


def tree_tells(tree: Any) -> Told:
    """What the tree of a checkpoint tells. `counter` is Adam's own count of steps, a number or a tensor, or None."""
    dialect = dialect_of(tree, None)
    if not isinstance(tree, Mapping):
        return Told(dialect, {}, {}, None)
    monitored = dict(_monitored(tree.get("callbacks"))) if dialect == "lightning" else {}
    return Told(dialect, tree, monitored, next(_counters(tree), None))


def _monitored(callbacks: Any) -> Iterator[tuple[str, TensorNode]]:
    """The metric that a ModelCheckpoint of Lightning watches, as it was when the checkpoint was saved."""
    for key, state in list(callbacks.items())[:_MOST] if isinstance(callbacks, Mapping) else ():
        if type(key) is str and key.startswith(_MONITORED) and isinstance(state, Mapping):
            name, score = state.get("monitor"), state.get("current_score")
            if type(name) is str and is_scalar(score):
                yield name, score


def _counters(tree: Mapping[Any, Any]) -> Iterator[Any]:
    """Steps of the first parameter that has any, of each optimizer."""
    places = [tree, *(tree[key] for key in _OPTIMIZERS if key in tree)]
    for place in places:
        for state in place[:_MOST] if isinstance(place, list) else [place]:
            yield from _steps_of(state)


def _steps_of(state: Any) -> Iterator[Any]:
    """The count of steps in an optimizer's state dict; none where it is of another kind."""
    rows = state.get("state") if isinstance(state, Mapping) and "param_groups" in state else None
    if isinstance(rows, Mapping):
        for number, row in enumerate(rows.values()):
            step = row.get("step", MISSING) if isinstance(row, Mapping) else MISSING
            if type(step) in (int, float) or is_scalar(step):
                yield step
                return
            if number > _MOST:
                return


def is_scalar(value: Any) -> TypeGuard[TensorNode]:
    """Whether a value is a tensor of one element."""
    return type(value) is TensorNode and value.numel == 1 and value.storage is not None
