"""What a tensor costs, by their number: restore and save of many small ones against plain torch.

    python -m benchmarks.many [--largest 100000] [--elements 512] [--rounds 5] [--folder /dev/shm]

A model of parameters of `--elements` floats with AdamW's state: three tensors a parameter are counted, its `step` is
not. Each way works on the same run, the ways in turn, each in a fresh process, page cache warm, after having done so
once with a tiny run; "first call" has not, so that it pays for what is imported on first use. A restore goes into a
fresh model and a fresh AdamW; its clock stops after every restored tensor was written in place once (add_(0)). Below
each table is where the processor's time goes in ours, stage by stage; what no stage takes is `rest`.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import unmoor
from benchmarks import common

SIZES = (100, 1_000, 10_000, 100_000)
FIRST = "unmoor, first call"

#: What is timed apart: module, its name there, what it is called here.
STAGES = {
    "restore": [
        ("unmoor.wiring.restoring", "describe_path", "describe"),
        ("unmoor.wiring.restoring", "survey", "survey"),
        ("unmoor.wiring.restoring", "plan_restore", "plan"),
        ("unmoor.wiring.restoring", "plan_text", "report"),
        ("unmoor.wiring.carrying", "Run.sinks", "sinks"),
        ("unmoor.wiring.carrying", "stream", "stream"),
        ("unmoor.wiring.carrying", "Run.set_optimizers", "optimizers"),
        ("unmoor.wiring.carrying", "_counts", "report"),
        ("unmoor.wiring.carrying", "report_text", "report"),
    ],
    "save": [
        ("unmoor.wiring.saving", "pickle_tree", "pickle"),
        ("unmoor.wiring.saving", "_manifest", "manifest"),
        ("unmoor.wiring.saving", "write_draft", "write and check"),
        ("unmoor.wiring.saving", "receipt_of", "report"),
    ],
}


def build(tensors: int, elements: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model of a third as many parameters, and a fresh AdamW."""
    torch.manual_seed(0)
    model = nn.ParameterList([nn.Parameter(torch.randn(elements)) for _ in range(max(1, tensors // 3))])
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def restore(path: str, tensors: int, elements: int, *, torchs: bool = False) -> dict[str, float]:
    model, optimizer = build(tensors, elements)
    clock = common.Clock()
    if torchs:
        tree = torch.load(f"{path}/torch.pt")
        model.load_state_dict(tree["model"])
        optimizer.load_state_dict(tree["optimizer"])
        del tree
    else:
        unmoor.restore(f"{path}/unmoor.pt", model=model, optimizer=optimizer)
    common.touch(common.state_tensors(model, optimizer))
    return {"seconds": clock()}


def save(path: str, tensors: int, elements: int, *, torchs: bool = False) -> dict[str, float]:
    model, optimizer = build(tensors, elements)
    common.step(model, optimizer)
    clock = common.Clock()
    if torchs:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{path}/saved.pt")
    else:
        unmoor.save(f"{path}/saved.pt", model=model, optimizer=optimizer)
    return {"seconds": clock()}


VERBS: dict[str, Callable[..., dict[str, float]]] = {"restore": restore, "save": save}


def timed(verb: str, path: str, tensors: int, elements: int) -> dict[str, float]:
    """The processor's time of each stage of one call."""
    spent: dict[str, float] = {}
    for module, name, stage in STAGES[verb]:
        _wrap(importlib.import_module(module), name, stage, spent)
    _wrap(unmoor, verb, "whole", spent)  # without the making of the model and the touching of it
    VERBS[verb](path, tensors, elements)
    whole = spent.pop("whole")
    return {**spent, "rest": whole - sum(spent.values())}


def _wrap(owner: Any, name: str, stage: str, spent: dict[str, float]) -> None:
    outer, _, inner = name.rpartition(".")
    owner = getattr(owner, outer) if outer else owner
    call = getattr(owner, inner)

    def counting(*arguments: Any, **options: Any) -> Any:
        begin = time.process_time()
        try:
            return call(*arguments, **options)
        finally:
            spent[stage] = spent.get(stage, 0.0) + time.process_time() - begin

    setattr(owner, inner, counting)


def write(folder: str, tensors: int, elements: int) -> None:
    """The run that is restored, as both write it."""
    Path(folder).mkdir()
    model, optimizer = build(tensors, elements)
    common.step(model, optimizer)
    unmoor.save(f"{folder}/unmoor.pt", model=model, optimizer=optimizer)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/torch.pt")


def one(way: str, path: str, tensors: int) -> dict[str, float]:
    """One way once, in this process."""
    verb, kind = way.split("/")
    elements = int(Path(path, "elements").read_text())
    if kind != FIRST:
        VERBS[verb](f"{path}/tiny", 3, elements, torchs=kind == "torch")
    if kind == "stages":
        return timed(verb, f"{path}/{tensors}", tensors, elements)
    return VERBS[verb](f"{path}/{tensors}", tensors, elements, torchs=kind == "torch")


KINDS = ("torch", "unmoor", FIRST, "stages")
WAYS = {f"{verb}/{kind}": verb for verb in VERBS for kind in KINDS}


def report(verb: str, sizes: list[int], found: dict[int, dict[str, list[dict[str, float]]]]) -> str:
    """Both tables of a verb."""
    rows: list[list[str]] = [[verb, "torch", "spread", "unmoor", "spread", "of torch", "first call", "of torch"]]
    for size in sizes:
        torchs, ours, first = (found[size][f"{verb}/{kind}"] for kind in KINDS[:3])
        base, own, cold = (common.median(figures, "seconds") for figures in (torchs, ours, first))
        figures = [_short(base), _spread(torchs), _short(own), _spread(ours), f"{own / base:.2f}"]
        rows.append([f"{size:,} tensors", *figures, _short(cold), f"{cold / base:.2f}"])
    stages = list(dict.fromkeys([stage for _, _, stage in STAGES[verb]] + ["rest"]))
    cost: list[list[str]] = [[f"{verb}, processor", *stages, "µs a tensor"]]
    for size in sizes:
        each = [min(row.get(stage, 0.0) for row in found[size][f"{verb}/stages"]) for stage in stages]
        cost.append([f"{size:,} tensors", *map(_short, each), f"{sum(each) / size * 1e6:.0f}"])
    return f"{common.table(rows)}\n\n{common.table(cost)}\n"


def _short(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _spread(figures: list[dict[str, float]]) -> str:
    values = [row["seconds"] for row in figures]
    return f"{_short(min(values))} to {_short(max(values))}"


def main() -> None:
    if common.child_main({way: _child(way) for way in WAYS}):
        return
    asked = common.options(sys.argv[1:], largest=SIZES[-1], elements=512, rounds=5, folder="/dev/shm", verbs="")
    sizes = [size for size in SIZES if size <= asked["largest"]]
    verbs = asked["verbs"].split(",") if asked["verbs"] else list(VERBS)
    found = {}
    with tempfile.TemporaryDirectory(dir=asked["folder"]) as folder:
        Path(folder, "elements").write_text(str(asked["elements"]))
        write(f"{folder}/tiny", 3, asked["elements"])
        for size in sizes:
            write(f"{folder}/{size}", size, asked["elements"])
            ways = [way for way, verb in WAYS.items() if verb in verbs]
            found[size] = common.in_turn("benchmarks.many", ways, folder, size, asked["rounds"])
    print(f"{asked['elements']} floats a tensor, {asked['rounds']} rounds, medians, torch {torch.__version__}\n")
    for verb in verbs:
        print(report(verb, sizes, found))


def _child(way: str) -> Callable[[str, int], dict[str, float]]:
    return lambda path, tensors: one(way, path, tensors)


if __name__ == "__main__":
    main()
