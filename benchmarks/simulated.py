"""One rank of many, made of values alone: what it plans, and what it would read. No process group, no tensor data."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import NamedTuple

from benchmarks.plan import OPTIONS, STATE, File, names, seconds
from unmoor.execute.takers import bytes_of
from unmoor.plan.policy import Policy
from unmoor.plan.restore import plan_restore
from unmoor.values.boxes import Box
from unmoor.values.catalog import Catalog, Part
from unmoor.values.plan import Plan
from unmoor.values.strides import contiguous
from unmoor.values.target import Slot, Target, TargetGroup, TargetModule, TargetOptimizer, TargetParam

__all__ = ["Planned", "rank_plan", "simulated_run"]

ROWS, COLUMNS = 2048, 64


class Planned(NamedTuple):
    """Seconds to plan and to decide the reads; bytes that are read, and bytes of the rank's own parts."""

    planned: float
    scheduled: float
    read: int
    own: int


def rank_plan(tensors: int, rank: int, ranks: int) -> Planned:
    """The plan of one rank of many: a model and Adam's state, `tensors` tensors in one file, their rows shared out."""
    catalog, target = simulated_run(tensors, rank, ranks)
    policy = Policy()
    made: list[Plan] = []
    read: list[int] = []
    planned = seconds(lambda: made.append(plan_restore(catalog, target, policy)), rounds=2)
    copies = made[-1].copies()
    scheduled = seconds(lambda: read.append(bytes_of(copies)), rounds=2)
    return Planned(planned, scheduled, read[-1], sum(_nbytes(copy.slot) for copy in copies))


def simulated_run(tensors: int, rank: int, ranks: int) -> tuple[Catalog, Target]:
    """The file, and the run as that rank has it."""
    return _catalog(tensors // 4), _target(tensors // 4, rank, ranks)


def _nbytes(slot: Slot) -> int:
    return 4 * (prod(slot.shape) if slot.boxes is None else sum(box.numel for box in slot.boxes))


def _shape(position: int) -> tuple[int, ...]:
    return (ROWS,) if position % 2 else (ROWS, COLUMNS)


@cache
def _catalog(params: int) -> Catalog:
    """A file with a model of `params` tensors and Adam's state for each, by name."""
    file = File()
    own = names(params)
    model = {name: file.tensor("model", ("model", name), _shape(i)) for i, name in enumerate(own)}
    state = {
        i: {k: file.tensor("optimizer", ("optimizer", "state", i, k), () if k == "step" else _shape(i)) for k in STATE}
        for i in range(params)
    }
    group = {**OPTIONS, "params": list(range(params)), "param_names": own}
    optimizer = {"state": state, "param_groups": [group]}
    detail = {"family": "Adam", "params": params, "groups": 1, "with_state": params}
    parts = (
        Part("model", "state_dict", ("model",), params, 0, {}, node=model),
        Part("optimizer", "state_dict", ("optimizer",), 3 * params, 0, {}, detail, optimizer),
    )
    tree = {"model": model, "optimizer": optimizer}
    return Catalog("run.pt", "torch-zip", "plain", tuple(file.entries), parts, (), (),
                   storages=tuple(file.storages), tree=tree)  # fmt: skip


def _boxes(shape: tuple[int, ...], rank: int, ranks: int) -> tuple[Box, ...]:
    """The rows of a rank, as torch.chunk shares them out; none where they do not reach it."""
    size = -(-shape[0] // ranks)
    first, last = min(rank * size, shape[0]), min((rank + 1) * size, shape[0])
    return (Box((first, *(0 for _ in shape[1:])), (last - first, *shape[1:])),) if first < last else ()


def _target(params: int, rank: int, ranks: int) -> Target:
    slots = {
        name: Slot(
            f"model/{name}",
            _shape(i),
            "float32",
            contiguous(_shape(i)),
            "cpu",
            dense=True,
            boxes=_boxes(_shape(i), rank, ranks),
        )
        for i, name in enumerate(names(params))
    }
    module = TargetModule("model", "model", "Net", slots, frozenset(slots))
    held = tuple(
        TargetParam(name, s.shape, "float32", "cpu", s.stride, dense=True, boxes=s.boxes) for name, s in slots.items()
    )
    optimizer = TargetOptimizer("optimizer", "optimizer", "Adam", "Adam", (TargetGroup(dict(OPTIONS), held),))
    return Target((module,), (optimizer,), devices={"cpu": 1}, rank=rank)
