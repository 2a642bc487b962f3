"""torchtitan keeps of a scheduler how far it came, and nothing else: the live schedule is taken there."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

import unmoor

from .resuming import OTHER
from .training import AFTER, BEFORE, adamw, seed, unbuffered

SCHEDULES: dict[str, Any] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (step + 1)),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, BEFORE + AFTER),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=BEFORE + AFTER + 1),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.5, 2), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
}
"""Class -> how it is built."""


def started(number: int, name: str) -> tuple[torch.nn.Module, torch.optim.Optimizer, Any]:
    seed(number)
    model = unbuffered()
    optimizer = adamw(model)
    return model, optimizer, SCHEDULES[name](optimizer)


def rates(optimizer: torch.optim.Optimizer, scheduler: Any, steps: int) -> list[float]:
    """The learning rates of the next steps, of which none changes anything."""
    found = []
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
        found.append(optimizer.param_groups[0]["lr"])
    return found


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_goes_on_from_its_position_alone(name: str, tmp_path: Path) -> None:
    """Of a state that holds last_epoch only, the live schedule is taken there, and its next rates are equal."""
    model, optimizer, scheduler = started(1, name)
    rates(optimizer, scheduler, BEFORE)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**state, "lr_scheduler": {"last_epoch": scheduler.last_epoch}}, tmp_path / "run.pt")
    wanted = rates(optimizer, scheduler, AFTER)

    model, optimizer, scheduler = started(OTHER, name)
    options = set(optimizer.param_groups[0])
    report = unmoor.restore(tmp_path / "run.pt", model=model, optimizer=optimizer, scheduler=scheduler)
    assert report.restored == ("model", "optimizer", "scheduler")
    assert scheduler.last_epoch == BEFORE
    assert set(optimizer.param_groups[0]) == options
    assert rates(optimizer, scheduler, AFTER) == wanted
