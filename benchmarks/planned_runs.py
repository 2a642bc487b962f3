"""The whole verb over live runs, by the number of tensors: printed by `python -m benchmarks.plan`.

A run is a model and its AdamW after a step, saved by `unmoor.save`; planned for it are a fresh model and the optimizer
as it stands. Beside the stages stands what torch takes to load the same two state dicts, which moves their data too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

import unmoor
from unmoor.describe import describe_path
from unmoor.live.survey import survey
from unmoor.plan.policy import Policy
from unmoor.plan.restore import plan_restore
from unmoor.report.restore import plan_text

from .common import step

FEW = 8
"""Numbers in each tensor: what is timed is their number."""


class Parameters(nn.Module):
    """As many parameters as asked for, side by side."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.held = nn.ParameterList([nn.Parameter(torch.randn(FEW)) for _ in range(count)])


class Block(nn.Module):
    """Ten parameters, as a transformer's block nests them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(FEW)
        self.attention = nn.Sequential(nn.Linear(FEW, FEW), nn.Linear(FEW, FEW))
        self.feed = nn.ModuleDict({"up": nn.Linear(FEW, FEW), "down": nn.Linear(FEW, FEW)})


def blocks(count: int) -> nn.Module:
    return nn.ModuleDict({"model": nn.ModuleDict({"layers": nn.ModuleList(Block() for _ in range(count // 10))})})


def linears(count: int) -> nn.Module:
    """Linear layers in sequences within sequences."""
    halves = [nn.Sequential(*(nn.Linear(FEW, FEW) for _ in range(20))) for _ in range(count // 40)]
    return nn.Sequential(nn.Sequential(*halves))


SHAPES: dict[str, Callable[[int], nn.Module]] = {
    "parameters": Parameters,
    "blocks": blocks,
    "linear layers": linears,
}
STAGES = ("describe", "survey", "plan", "text", "verb without describe", "torch load_state_dict")


def run(shape: str, tensors: int) -> dict[str, Any]:
    """A model with AdamW state of about as many tensors together."""
    model = SHAPES[shape](tensors // 4)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    step(model, optimizer)
    return {"model": model, "optimizer": optimizer}


def measure(shape: str, tensors: int, seconds: Callable[[Callable[[], Any]], float]) -> dict[str, float]:
    """CPU seconds of each stage, and of torch's own loading."""
    live = run(shape, tensors)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "run.pt")
        unmoor.save(path, **live)
        found = {"describe": seconds(lambda: describe_path(path)), **_stages(path, live, seconds)}
        found["verb without describe"] = seconds(lambda: unmoor.plan(path, **live)) - found["describe"]
        states = {role: held.state_dict() for role, held in live.items()}
        found["torch load_state_dict"] = seconds(lambda: [live[role].load_state_dict(states[role]) for role in states])
    return found


def _stages(path: str, live: dict[str, Any], seconds: Callable[[Callable[[], Any]], float]) -> dict[str, float]:
    catalog = describe_path(path)
    target, _ = survey(live, {}, None)
    plan = plan_restore(catalog, target, Policy())
    return {
        "survey": seconds(lambda: survey(live, {}, None)),
        "plan": seconds(lambda: plan_restore(catalog, target, Policy())),
        "text": seconds(lambda: plan_text(plan)),
    }


def rows(shape: str, sizes: list[int], seconds: Callable[[Callable[[], Any]], float]) -> list[tuple[str, ...]]:
    """The table of one shape of run, the growth from size to size in its last column."""
    found = [measure(shape, size, seconds) for size in sizes]
    return [
        (f"a run of {shape}", *(f"{size:,} tensors" for size in sizes), "growth"),
        *(
            (
                stage,
                *(f"{one[stage]:.4f} s" for one in found),
                ", ".join(f"{b[stage] / max(a[stage], 1e-6):.1f}" for a, b in pairwise(found)),
            )
            for stage in STAGES
        ),
    ]
