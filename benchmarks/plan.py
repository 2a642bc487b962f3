"""How long planning takes, by the number of tensors: `python -m benchmarks.plan`.

Files and runs are described values made here, without tensor data and without torch's part: what is timed is
`plan_restore` alone, as `restore` calls it, in this process, the best of five by the processor's clock, so that other
work on the machine does not count. The last column is the growth for ten times the tensors: 10 is linear.

Then the whole verb over live runs, stage by stage (`benchmarks/planned_runs.py`).
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from unmoor.plan.policy import Policy
from unmoor.plan.restore import plan_restore
from unmoor.values.catalog import Catalog, Part, TensorEntry
from unmoor.values.nodes import Span, Storage, TensorNode
from unmoor.values.pausing import collector_paused
from unmoor.values.target import Slot, Target, TargetGroup, TargetModule, TargetOptimizer, TargetParam

from . import planned_runs
from .common import options, table

SIZES = (1_000, 10_000, 100_000)
WIDE, NARROW = (64, 64), (64,)
STATE = ("step", "exp_avg", "exp_avg_sq")
OPTIONS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False}


def names(count: int) -> list[str]:
    """Names as a large model has them, a matrix and a vector in turn."""
    return [f"layers.{i // 8}.block{i // 2 % 4}.{('weight', 'bias')[i % 2]}" for i in range(count)]


def shape(position: int) -> tuple[int, ...]:
    return NARROW if position % 2 else WIDE


class File:
    """A described checkpoint in the making."""

    def __init__(self) -> None:
        self.entries: list[TensorEntry] = []
        self.storages: list[Storage] = []

    def tensor(self, role: str, keys: tuple[Any, ...], size: tuple[int, ...]) -> TensorNode:
        """One more tensor, on a storage of its own."""
        count = 1
        for n in size:
            count *= n
        span = Span(64 * len(self.storages), count * 4)
        storage = Storage(str(len(self.storages)), "float32", count * 4, "cpu", span, 1)
        node = TensorNode(storage, 0, size, (64, 1) if len(size) == 2 else (1,) * len(size), "float32", "cpu")
        path = ".".join(map(str, keys))
        self.storages.append(storage)
        self.entries.append(
            TensorEntry(
                path, role, size, "float32", node.stride, "cpu", count * 4, storage.key, span, keys=keys, node=node
            )
        )
        return node


def catalog(params: int, *, adam: bool, prefix: str, segment: str, named: bool) -> Catalog:
    """A file with a model of `params` tensors, and with Adam's state for each of them."""
    file = File()
    own = [prefix + name.replace("block", f"{segment}block") for name in names(params)]
    model = {name: file.tensor("model", ("model", name), shape(i)) for i, name in enumerate(own)}
    tree: dict[str, Any] = {"model": model, "step": 1000}
    parts = [Part("model", "state_dict", ("model",), params, 0, {}, node=model)]
    if adam:
        group: dict[str, Any] = {**OPTIONS, "params": list(range(params))}
        if named:
            group["param_names"] = own
        state = {
            i: {
                k: file.tensor("optimizer", ("optimizer", "state", i, k), () if k == "step" else shape(i))
                for k in STATE
            }
            for i in range(params)
        }
        tree["optimizer"] = {"state": state, "param_groups": [group]}
        detail = {"family": "Adam", "params": params, "groups": 1, "with_state": params}
        parts.append(Part("optimizer", "state_dict", ("optimizer",), 3 * params, 0, {}, detail, tree["optimizer"]))
    return Catalog(
        "run.pt",
        "torch-zip",
        "plain",
        tuple(file.entries),
        tuple(parts),
        (),
        (),
        storages=tuple(file.storages),
        tree=tree,
    )


def target(params: int, *, adam: bool) -> Target:
    """A live model of `params` tensors, and a fresh Adam over it."""
    slots = {
        name: Slot(f"model/{name}", shape(i), "float32", (64, 1) if i % 2 == 0 else (1,), "cpu", dense=True)
        for i, name in enumerate(names(params))
    }
    module = TargetModule("model", "model", "Net", slots, frozenset(slots))
    held = tuple(TargetParam(name, s.shape, "float32", "cpu", s.stride, dense=True) for name, s in slots.items())
    optimizer = TargetOptimizer("optimizer", "optimizer", "Adam", "Adam", (TargetGroup(dict(OPTIONS), held),))
    return Target((module,), (optimizer,) if adam else (), devices={"cpu": 1})


WAYS: dict[str, dict[str, Any]] = {
    "model": {"adam": False, "prefix": "", "segment": "", "named": True},
    "model under 'module.'": {"adam": False, "prefix": "module.", "segment": "", "named": True},
    "model, wrappers inside names": {"adam": False, "prefix": "", "segment": "_orig_mod.", "named": True},
    "model and Adam, by name": {"adam": True, "prefix": "", "segment": "", "named": True},
    "model and Adam under 'module.'": {"adam": True, "prefix": "module.", "segment": "", "named": True},
    "model and Adam, by position": {"adam": True, "prefix": "", "segment": "", "named": False},
}
"""What is planned: the file's names against the live ones, with and without an optimizer."""


def seconds(call: Callable[[], Any], rounds: int = 5) -> float:
    """The best of some calls: what the machine's other work takes is not the planner's."""
    best = float("inf")
    for _ in range(rounds):
        gc.collect()
        begin = time.process_time()
        with collector_paused():
            call()
        best = min(best, time.process_time() - begin)
    return best


def measure(way: dict[str, Any], tensors: int) -> float:
    params = tensors // 4 if way["adam"] else tensors
    file, live, policy = catalog(params, **way), target(params, adam=way["adam"]), Policy()
    return seconds(lambda: plan_restore(file, live, policy))


def main() -> None:
    largest = options(sys.argv[1:], largest=SIZES[-1])["largest"]
    sizes = [size for size in SIZES if size <= largest]
    rows = [("planning", *(f"{size:,} tensors" for size in sizes), "growth")]
    for name, way in WAYS.items():
        found = [measure(way, size) for size in sizes]
        growth = [f"{b / a:.1f}" for a, b in pairwise(found)]
        rows.append((name, *(f"{s:.4f} s" for s in found), ", ".join(growth)))
    print(table(rows), flush=True)
    for shape in planned_runs.SHAPES:
        print(f"\n{table(planned_runs.rows(shape, sizes, seconds))}", flush=True)


if __name__ == "__main__":
    main()
