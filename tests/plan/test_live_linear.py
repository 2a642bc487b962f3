"""Surveying a live run and planning for it takes calls in proportion to the number of tensors: counted, not timed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.planned_runs import Parameters, blocks, linears
from torch import nn

from unmoor.describe import describe_path
from unmoor.live.survey import survey
from unmoor.plan.policy import Policy
from unmoor.plan.restore import plan_restore

SIZES = (1_000, 2_000, 4_000)

Run = dict[str, Any]


def calls(do: Callable[[], Any]) -> int:
    """How many functions a call enters, of Python and of C."""
    number = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        do()
    finally:
        sys.setprofile(before)
    return number


def _with_adam(model: nn.Module, *, stepped: bool = True) -> Run:
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    if stepped:
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    return {"model": model, "optimizer": optimizer}


def _groups(tensors: int) -> Run:
    """A group for every ten parameters."""
    model = linears(tensors // 4)
    held = list(model.parameters())
    return {
        "model": model,
        "optimizer": torch.optim.AdamW([{"params": held[i : i + 10]} for i in range(0, len(held), 10)]),
    }


def _tied(tensors: int) -> Run:
    """Every other layer has the weight of the one before."""
    model = linears(tensors)
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    for first, second in zip(layers[::2], layers[1::2], strict=True):
        second.weight = first.weight
    return {"model": model}


def _norms(tensors: int) -> Run:
    """Five tensors a layer, three of them buffers."""
    return {"model": nn.Sequential(*(nn.BatchNorm1d(4) for _ in range(tensors // 5)))}


KINDS: dict[str, Callable[[int], Run]] = {
    "parameters side by side": lambda n: _with_adam(Parameters(n // 4)),
    "blocks": lambda n: _with_adam(blocks(n // 4)),
    "linear layers, a fresh optimizer": lambda n: _with_adam(linears(n), stepped=False),
    "inside DataParallel": lambda n: _with_adam(nn.DataParallel(linears(n // 4))),
    "many groups": _groups,
    "tied weights": _tied,
    "batch norms": _norms,
    "two models": lambda n: {"model": {"a": linears(n // 2), "b": linears(n // 2)}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_calls_grow_with_the_number_of_tensors(kind: str, tmp_path: Path) -> None:
    """Twice the tensors take twice the calls, within a tenth."""
    counts = []
    for size in SIZES:
        run, path = KINDS[kind](size), str(tmp_path / f"{size}.pt")
        tree = {
            role: {key: one.state_dict() for key, one in held.items()} if isinstance(held, dict) else held.state_dict()
            for role, held in run.items()
        }
        torch.save(tree, path)
        catalog = describe_path(path)

        def plan(run: Run = run, catalog: Any = catalog) -> None:
            target, _ = survey(run, {}, None)
            plan_restore(catalog, target, Policy())

        plan()
        counts.append(calls(plan))
    for less, more in pairwise(counts):
        assert more < 2.2 * less, counts
