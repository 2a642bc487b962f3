"""What a save in the background costs the run: how long it holds it up, and how much slower steps are meanwhile.

    python -m benchmarks.background [--mb 512] [--tensors 100] [--rounds 3] [--folder /dev/shm]

The hold-up is the time of the call. It is set against one copy of the same bytes in memory that is there already, by
torch with the same threads. Steps are of two kinds: a small one of many operations, which needs the interpreter's lock,
and a product of matrices, which needs the processors. Each process measures steps with and without a save in turn.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

import unmoor
from benchmarks import common
from unmoor.wiring import writing_apart

LATER = 4
WINDOW = 1.5
"""Seconds of steps without a save, before each with one."""


class Run:
    """A model whose state is what is saved, in `BENCH_TENSORS` parameters; its gradients are never needed."""

    def __init__(self, nbytes: int) -> None:
        number = int(os.environ.get("BENCH_TENSORS", "100"))
        each = max(1, nbytes // number // 4)
        self.model = torch.nn.ParameterList(torch.nn.Parameter(torch.full((each,), 1.0 * i)) for i in range(number))

    def copies(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The state, and memory for a copy of it that has been written to."""
        state = [parameter.detach() for parameter in self.model]
        return state, [torch.ones_like(tensor) for tensor in state]


def _copy_seconds(run: Run) -> float:
    state, room = run.copies()
    found = []
    for _ in range(5):
        clock = common.Clock()
        torch._foreach_copy_(room, state)
        found.append(clock())
    return statistics.median(found)


def _held_up(path: str, nbytes: int, call: Callable[[Run, str], Callable[[], Any]]) -> dict[str, float]:
    run = Run(nbytes)
    call(Run(1), f"{path}/warm")()
    copy, found = _copy_seconds(run), []
    for i in range(1 + LATER):
        clock = common.Clock()
        wait = call(run, f"{path}/{i % 2}")
        found.append(clock())
        wait()
    _clear(path)
    first, later = found[0], statistics.median(found[1:])
    return {"first": first, "later": later, "first of copy": first / copy, "later of copy": later / copy, "copy": copy}


def _clear(path: str) -> None:
    for folder, _, names in os.walk(path, topdown=False):
        for name in names:
            os.unlink(os.path.join(folder, name))


def with_unmoor(run: Run, path: str) -> Callable[[], Any]:
    return unmoor.save(f"{path}.pt", model=run.model, rng=False, background=True).wait


def with_torch(run: Run, path: str) -> Callable[[], Any]:
    torch.save({"model": run.model.state_dict()}, f"{path}.t")
    return lambda: None


def with_dcp(run: Run, path: str) -> Callable[[], Any]:
    return dcp.async_save(run.model.state_dict(), checkpoint_id=path, no_dist=True).result


_stagers: dict[Run, DefaultStager] = {}


def with_dcp_cached(run: Run, path: str) -> Callable[[], Any]:
    """Its own stager, kept for the next save; memory that is pinned needs an accelerator."""
    if run not in _stagers:
        _stagers[run] = DefaultStager(StagingOptions(False, True, False, False))
    state = run.model.state_dict()
    return dcp.async_save(state, checkpoint_id=path, async_stager=_stagers[run], no_dist=True).result


def with_thread(run: Run, path: str) -> Callable[[], Any]:
    """As unmoor writes where it can start no process."""
    writing_apart._started = lambda *_: None
    return with_unmoor(run, path)


def _small() -> Callable[[], Any]:
    layers = [torch.nn.Linear(16, 16) for _ in range(6)]
    model, batch = torch.nn.Sequential(*layers), torch.randn(8, 16)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().sum().backward()
        optimizer.step()

    return step


def _large() -> Callable[[], Any]:
    one = torch.randn(1024, 1024)
    return lambda: one @ one


def _steps(step: Callable[[], Any], goes_on: Callable[[], bool]) -> list[float]:
    found = []
    while goes_on():
        begin = time.perf_counter()
        step()
        found.append(time.perf_counter() - begin)
    return found


def _slowed(
    path: str, nbytes: int, call: Callable[[Run, str], Callable[[], Any]], make: Callable[[], Any], threads: int
) -> dict[str, float]:
    torch.set_num_threads(threads)
    run, step = Run(nbytes), make()
    call(Run(1), f"{path}/warm")()
    _steps(step, _until(0.5))
    alone, beside, seconds = [], [], []
    for i in range(3):
        alone += _steps(step, _until(WINDOW))
        clock, wait = common.Clock(), call(run, f"{path}/{i % 2}")
        beside += _steps(step, partial(_goes_on, wait.__self__))
        seconds.append(clock())
        wait()
    _clear(path)
    return {
        "alone": statistics.median(alone) * 1e3,
        "beside": statistics.median(beside) * 1e3,
        "median": statistics.median(beside) / statistics.median(alone),
        "95th": _late(beside) / _late(alone),
        "mean": statistics.mean(beside) / statistics.mean(alone),
        "seconds": statistics.median(seconds),
    }


def _goes_on(pending: Any) -> bool:
    return not pending.done()


def _until(seconds: float) -> Callable[[], bool]:
    end = time.perf_counter() + seconds
    return lambda: time.perf_counter() < end


def _late(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def _too_often(path: str, nbytes: int, mode: str) -> dict[str, float]:
    """Twelve saves, one after every tenth of the time that one takes."""
    run, step = Run(nbytes), _small()
    clock = common.Clock()
    unmoor.save(f"{path}/0.pt", model=run.model, rng=False, background=True).wait()
    interval, skipped, held = clock() / 10, 0, 0.0
    for _ in range(12):
        _steps(step, _until(interval))
        clock = common.Clock()
        pending = unmoor.save(f"{path}/0.pt", model=run.model, rng=False, background=mode)
        held, skipped = held + clock(), skipped + pending.skipped
    pending.wait()
    _clear(path)
    return {"skipped": float(skipped), "written": 12.0 - skipped, "held": held}


CALLS = {
    "unmoor.save, background=True": with_unmoor,
    "torch.save": with_torch,
    "dcp.async_save": with_dcp,
    "dcp.async_save, staging cached": with_dcp_cached,
}
BESIDE = {"unmoor": with_unmoor, "unmoor, in a thread": with_thread, "dcp.async_save": with_dcp}
STEPS = {"small": _small, "large": _large}

HOLD_UPS = {name: partial(_held_up, call=call) for name, call in CALLS.items()}
SLOWED = {
    f"{kind} step, {threads} threads: {name}": partial(_slowed, call=call, make=make, threads=threads)
    for kind, make in STEPS.items()
    for threads in (1, 2)
    for name, call in BESIDE.items()
}
POLICIES = {f'background="{mode}"': partial(_too_often, mode=mode) for mode in ("wait", "skip")}


SHOWN: list[dict[str, str]] = [
    {"first": ".3f", "later": ".3f", "first of copy": ".2f", "later of copy": ".2f"},
    {"alone": ".2f", "median": ".2f", "95th": ".2f", "mean": ".2f", "seconds": ".2f"},
    {"written": ".0f", "skipped": ".0f", "held": ".2f"},
]
"""Times of steps are milliseconds alone, then ratios beside a save; `seconds` is how long that takes to be written."""


def _row(name: str, figures: list[dict[str, float]], shown: dict[str, str]) -> list[str]:
    cells = ((f"{common.median(figures, key):{form}}", common.spread(figures, key)) for key, form in shown.items())
    return [name, *(f"{value} ({spread})" for value, spread in cells)]


def _table(head: str, found: dict[str, list[dict[str, float]]], shown: dict[str, str]) -> str:
    return common.table([[head, *shown], *(_row(name, figures, shown) for name, figures in found.items())])


def main() -> None:
    warnings.simplefilter("ignore")
    if common.child_main({**HOLD_UPS, **SLOWED, **POLICIES}):
        return
    asked = common.options(sys.argv[1:], mb=512, tensors=100, rounds=3, folder="/dev/shm")
    os.environ["BENCH_TENSORS"] = str(asked["tensors"])
    nbytes = asked["mb"] << 20
    with tempfile.TemporaryDirectory(dir=asked["folder"]) as folder:
        found = [
            common.in_turn("benchmarks.background", list(ways), folder, nbytes, asked["rounds"])
            for ways in (HOLD_UPS, SLOWED, POLICIES)
        ]
    print(f"{asked['mb']} MiB in {asked['tensors']} tensors, {asked['folder']}, {asked['rounds']} rounds, medians\n")
    for head, figures, shown in zip(
        ("hold-up (s)", "steps beside a save", "saved ten times too often"), found, SHOWN, strict=True
    ):
        print(_table(head, figures, shown) + "\n")


if __name__ == "__main__":
    main()
