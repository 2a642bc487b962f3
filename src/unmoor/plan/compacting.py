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
                _alone(group, f"{key}#{number}", new, made)
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
    steps = sorted({step for node in (one, other) for step, size in _dimensions(node)} | {1}, reverse=True)
    if 0 in steps or any(big % small for big, small in pairwise(steps)):
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
    """Whether the group is one tensor with gaps between its elements."""
    windows = {(node.offset, node.shape, node.stride, node.dtype) for node in group.nodes}
    (node, *_) = group.nodes
    packed = DTYPES[node.dtype].packing > 1
    return len(windows) == 1 and bool(node.numel) and _reach(node) > node.numel and not packed


def _alone(group: _Group, key: str, new: dict[int, TensorNode], made: dict[str, Made]) -> None:
    first = group.nodes[0]
    if first.storage is None:
        return
    nbytes = nbytes_of(first.dtype, first.numel)
    storage = Storage(key, first.dtype, nbytes, first.storage.device, None, None)
    source = replace(first, bits=frozenset(), parameter=False, requires_grad=False)
    made[key] = Made(source, first.dtype)
    for node in group.nodes:
        new[id(node)] = replace(node, storage=storage, offset=0, stride=contiguous(node.shape))


def _apart(group: _Group, key: str, new: dict[int, TensorNode]) -> None:
    """The tensors on what is the same storage under another name: it is written as far as they reach."""
    made: Mapping[int, Storage] = {
        id(node.storage): replace(node.storage, key=key) for node in group.nodes if node.storage is not None
    }
    shared = next(iter(made.values()))
    new |= {id(node): replace(node, storage=shared) for node in group.nodes}
