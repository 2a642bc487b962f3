"""Tensors that keep far more storage than they reach, each on a storage of its own size. Pure.

Tensors that have elements in common stay on one storage, and one tensor under several names stays one. Those that only
lie in the same storage come apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from unmoor.values.dtypes import DTYPES, nbytes_of
from unmoor.values.nodes import Storage, TensorNode
from unmoor.values.strides import contiguous

from .taken import Made, Taken, replaced, with_tree

__all__ = ["compacted"]


@dataclass(slots=True)
class _Group:
    """Tensors of one storage that have elements in common, `low` to `high` bytes of it."""

    low: int
    high: int
    nodes: list[TensorNode] = field(default_factory=list)


def compacted(taken: Taken) -> Taken:
    """The tree with a storage of its own for each group of tensors of which others reach nothing."""
    nodes: dict[str, list[TensorNode]] = {}
    for entry in taken.tensors:
        node = entry.node
        if node is not None and node.storage is not None and node.quantizer is None and entry.layout == "strided":
            own = nodes.setdefault(node.storage.key, [])
            if not any(node is other for other in own[-1:]):
                own.append(node)
    new: dict[int, TensorNode] = {}
    made: dict[str, Made] = {}
    shares: dict[str, str] = {}
    for key, own in nodes.items():
        distinct = list({id(node): node for node in own}.values())
        groups = _groups(distinct)
        for number, group in enumerate(groups):
            if _is_loose(group):
                _boxed(group, f"{key}#{number}", new, made)
            elif len(groups) > 1:
                _apart(group, f"{key}#{number}", new)
                shares[f"{key}#{number}"] = key
    if not new:
        return taken
    return with_tree(
        taken, replaced(taken.tree, new), new, made={**taken.made, **made}, shares={**taken.shares, **shares}
    )


def _groups(nodes: Sequence[TensorNode]) -> list[_Group]:
    """The tensors in groups that share elements; what cannot be told apart counts as shared."""
    done: list[_Group] = []
    active: list[_Group] = []
    for node in sorted(nodes, key=lambda node: nbytes_of(node.dtype, node.offset)):
        low, high = _span(node)
        done += [group for group in active if group.high <= low]
        active = [group for group in active if group.high > low]
        whole = _Group(low, high, [node])
        for group in [group for group in active if any(_overlap(node, one) for one in group.nodes)]:
            active.remove(group)
            whole = _Group(min(whole.low, group.low), max(whole.high, group.high), [*group.nodes, *whole.nodes])
        active.append(whole)
    return [*done, *active]


def _span(node: TensorNode) -> tuple[int, int]:
    first = nbytes_of(node.dtype, node.offset)
    if 0 in node.shape:
        return first, first
    return first, nbytes_of(node.dtype, node.offset + _reach(node))


def _reach(node: TensorNode) -> int:
    return 1 + sum((size - 1) * step for size, step in zip(node.shape, node.stride, strict=True)) if node.numel else 0


def _overlap(one: TensorNode, other: TensorNode) -> bool:
    """Whether two tensors of one storage may have an element in common."""
    (low, high), (first, last) = _span(one), _span(other)
    if high <= first or last <= low:
        return False
    if one.dtype != other.dtype:
        return True
    steps = _grid((one, other))
    if steps is None:
        return True
    boxes = [_box(node, steps) for node in (one, other)]
    if boxes[0] is None or boxes[1] is None:
        return True
    return all(a < d and c < b for (a, b), (c, d) in zip(*boxes, strict=True))


def _dimensions(node: TensorNode) -> list[tuple[int, int]]:
    return [(step, size) for step, size in zip(node.stride, node.shape, strict=True) if size > 1]


def _box(node: TensorNode, steps: Sequence[int]) -> list[tuple[int, int]] | None:
    """The tensor as a box in the grid that `steps` span, from and to along each; None where it is none there."""
    sizes = dict(_dimensions(node))
    if len(sizes) < len(_dimensions(node)):
        return None
    left, box = node.offset, []
    room = 0
    for step in steps:
        first, left = divmod(left, step)
        end = first + sizes.get(step, 1)
        if room and end > room // step:
            return None
        box.append((first, end))
        room = step
    return box


def _is_loose(group: _Group) -> bool:
    """Whether the group, as a box of the grid in which its tensors lie, takes less room than all that lies between."""
    frame = _frame(group.nodes)
    return frame is not None and nbytes_of(frame.dtype, frame.numel) < group.high - group.low


def _grid(nodes: Sequence[TensorNode]) -> list[int] | None:
    """The steps of the grid that tensors span, the widest first; None where their steps make none."""
    steps = sorted({step for node in nodes for step, _ in _dimensions(node)} | {1}, reverse=True)
    return None if 0 in steps or any(big % small for big, small in pairwise(steps)) else steps


def _frame(nodes: Sequence[TensorNode]) -> TensorNode | None:
    """The smallest box of the grid that holds the tensors; None where they make no grid, or have several dtypes."""
    if len({node.dtype for node in nodes}) > 1 or DTYPES[nodes[0].dtype].packing > 1 or not nodes[0].numel:
        return None
    steps = _grid(nodes)
    boxes = [_box(node, steps) for node in nodes] if steps is not None else [None]
    if steps is None or any(box is None for box in boxes):
        return None
    ends = [(min(b[i][0] for b in boxes if b), max(b[i][1] for b in boxes if b)) for i in range(len(steps))]
    shape = tuple(last - first for first, last in ends)
    offset = sum(first * step for (first, _), step in zip(ends, steps, strict=True))
    first = nodes[0]
    return TensorNode(first.storage, offset, shape, tuple(steps), first.dtype, first.device)


def _boxed(group: _Group, key: str, new: dict[int, TensorNode], made: dict[str, Made]) -> None:
    """The tensors on a storage of the size of their box, in the order of its grid."""
    frame = _frame(group.nodes)
    if frame is None or frame.storage is None:
        return
    packed = dict(zip(frame.stride, contiguous(frame.shape), strict=True))
    storage = Storage(key, frame.dtype, nbytes_of(frame.dtype, frame.numel), frame.device, None, None)
    made[key] = Made(frame, frame.dtype)
    begin = _digits(frame.offset, frame.stride)
    for node in group.nodes:
        away = zip(_digits(node.offset, frame.stride), begin, packed.values(), strict=True)
        offset = sum((here - first) * step for here, first, step in away)
        stride = tuple(
            packed.get(step, 1) if size > 1 else 1 for step, size in zip(node.stride, node.shape, strict=True)
        )
        new[id(node)] = replace(node, storage=storage, offset=offset, stride=stride)


def _digits(offset: int, steps: Sequence[int]) -> list[int]:
    """Where an element lies in a grid, along each step."""
    made = []
    for step in steps:
        digit, offset = divmod(offset, step)
        made.append(digit)
    return made


def _apart(group: _Group, key: str, new: dict[int, TensorNode]) -> None:
    """The tensors on what is the same storage under another name: it is written as far as they reach."""
    made: Mapping[int, Storage] = {
        id(node.storage): replace(node.storage, key=key) for node in group.nodes if node.storage is not None
    }
    shared = next(iter(made.values()))
    new |= {id(node): replace(node, storage=shared) for node in group.nodes}
