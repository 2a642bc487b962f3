"""The names of a saved optimizer's parameters where it holds none: told by the order of the file's own model.

An optimizer lists its parameters in the order of the model, group by group. Which parameter went into which group is
told by shapes; it is taken only where they leave one way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["told_by_order"]

Shape = tuple[int, ...]
_Reached = tuple[int, ...]
"""How many parameters of each group were met so far."""

_OPEN: Final = 64
"""How many ways are followed at once; beyond that nothing is proved."""


def told_by_order(
    groups: Sequence[Sequence[Shape | None]], params: Sequence[tuple[str, Shape]]
) -> list[list[str]] | None:
    """For each group the names of its parameters; None where shapes allow no way, or several.

    `groups` are the shapes of the saved state in order, None where a parameter had none. `params` are the parameters of
    the file's model in order; where they are more than the groups hold, some were not optimized.
    """
    total = sum(map(len, groups))
    if len(params) < total:
        return None
    spare = len(params) - total
    steps: list[dict[_Reached, tuple[int, _Reached, int]]] = []
    front: dict[_Reached, int] = {(0,) * len(groups): 1}
    for met, (_, shape) in enumerate(params, 1):
        step: dict[_Reached, tuple[int, _Reached, int]] = {}
        for reached, ways in front.items():
            for group in _choices(groups, reached, shape, spare=met - sum(reached) <= spare):
                after = reached if group < 0 else (*reached[:group], reached[group] + 1, *reached[group + 1 :])
                known = step.get(after)
                step[after] = (ways, reached, group) if known is None else (2, known[1], known[2])
        if not step or len(step) > _OPEN:
            return None
        steps.append(step)
        front = {reached: ways for reached, (ways, _, _) in step.items()}
    end = tuple(map(len, groups))
    return _walk_back(steps, end, params) if front.get(end) == 1 else None


def _choices(groups: Sequence[Sequence[Shape | None]], reached: _Reached, shape: Shape, *, spare: bool) -> list[int]:
    """The groups that a parameter of this shape may belong to next; -1 for none of them."""
    found = [-1] if spare else []
    for group, (shapes, at) in enumerate(zip(groups, reached, strict=True)):
        if at < len(shapes) and shapes[at] in (None, shape):
            found.append(group)
    return found


def _walk_back(
    steps: Sequence[dict[_Reached, tuple[int, _Reached, int]]], end: _Reached, params: Sequence[tuple[str, Shape]]
) -> list[list[str]]:
    names: list[list[str]] = [[] for _ in end]
    for step, (name, _) in zip(reversed(steps), reversed(params), strict=True):
        _, before, group = step[end]
        if group >= 0:
            names[group].append(name)
        end = before
    return [own[::-1] for own in names]
