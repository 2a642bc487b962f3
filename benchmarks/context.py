"""What `unmoor.device_context` costs a training step in which nothing fails: `python -m benchmarks.context`.

A small MLP on the CPU, whose step takes about half a millisecond, so that a cost would show. Steps with and without the
context take turns, one by one, so that drift of the machine hits both alike; the figure is the median of the ratios of
neighbouring steps. The context alone, around nothing, is timed as well. The bound is 1 % of a step.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

import unmoor

PAIRS, EMPTY = 6000, 200_000


def run() -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    batch = {"x": torch.randn(64, 64), "labels": torch.randint(0, 10, (64,))}
    loss = nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad()
        loss(model(batch["x"]), batch["labels"]).backward()
        optimizer.step()

    return model, optimizer, step


def timed(step: Callable[[], None]) -> int:
    begin = time.perf_counter_ns()
    step()
    return time.perf_counter_ns() - begin


def main() -> None:
    torch.set_num_threads(1)
    model, optimizer, step = run()

    def without() -> None:
        step()

    def within() -> None:
        with unmoor.device_context(model, optimizer):
            step()

    for _ in range(300):
        without()
        within()
    gc.disable()
    ratios, plain = [], []
    for i in range(PAIRS):
        first, second = (without, within) if i % 2 else (within, without)
        took = {first: timed(first), second: timed(second)}
        plain.append(took[without])
        ratios.append(took[within] / took[without])
        if i % 500 == 0:
            gc.collect()
    begin = time.perf_counter_ns()
    for _ in range(EMPTY):
        with unmoor.device_context(model, optimizer):
            pass
    alone, usual = (time.perf_counter_ns() - begin) / EMPTY, statistics.median(plain)
    print(f"a step without the context   {usual / 1e3:8.0f} us (median of {PAIRS})")
    print(f"the same in a new context    {statistics.median(ratios):8.4f} of it (median of the ratios of pairs)")
    print(f"a context around nothing     {alone / 1e3:8.2f} us, {alone / usual:.4f} of a step")


if __name__ == "__main__":
    main()
