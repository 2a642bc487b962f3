"""Schedulers: the lr goes on where it was, whatever was built first; another schedule is told, not swallowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD, lr_scheduler

import unmoor

from .files import refused, tiny, train


def _sgd(lr: float = 0.1, **options: Any) -> tuple[torch.nn.Sequential, SGD]:
    model = tiny()
    return model, SGD(model.parameters(), lr=lr, **options)


def _lr(optimizer: SGD) -> float:
    return float(optimizer.param_groups[0]["lr"])


def _words(report: unmoor.Report) -> str:
    """The report as text, without its line breaks."""
    return " ".join(str(report).split())


def test_swapped_optimizer_and_scheduler_are_told_by_their_content(tmp_path: Path) -> None:
    """C27: saved under each other's key, both are restored by what they are, and the report says so."""
    model, optimizer = _sgd(momentum=0.9)
    scheduler = lr_scheduler.StepLR(optimizer, 2)
    train(model, optimizer, 3, scheduler=scheduler)
    tree = {"model": model.state_dict(), "optimizer": scheduler.state_dict(), "scheduler": optimizer.state_dict()}
    torch.save({**tree, "epoch": 3}, tmp_path / "ck.pt")
    other, fresh = _sgd(momentum=0.9)
    again = lr_scheduler.StepLR(fresh, 2)
    report = unmoor.restore(tmp_path / "ck.pt", model=other, optimizer=fresh, scheduler=again)
    assert again.state_dict() == scheduler.state_dict()
    assert not {"state", "param_groups"} & vars(again).keys()
    assert _lr(fresh) == _lr(optimizer) == pytest.approx(0.01)
    buffers = [[state["momentum_buffer"] for state in o.state.values()] for o in (optimizer, fresh)]
    assert all(map(torch.equal, *buffers))
    told = {finding.place: finding for finding in report.findings if finding.code == "roles-swapped"}
    assert told.keys() == {"optimizer", "scheduler"}
    assert "'scheduler' in the file, the scheduler's; told by its content" in _words(report)


def test_a_file_in_order_says_nothing_of_swapped_roles(tmp_path: Path) -> None:
    """C27: parts under keys of their own, or under a word of their role, are no swap."""
    model, optimizer = _sgd()
    scheduler = lr_scheduler.StepLR(optimizer, 2)
    tree = {"net": model.state_dict(), "optim": optimizer.state_dict(), "lr_scheduler": scheduler.state_dict()}
    torch.save(tree, tmp_path / "ck.pt")
    report = unmoor.restore(tmp_path / "ck.pt", model=model, optimizer=optimizer, scheduler=scheduler)
    assert [finding.code for finding in report.findings] == []


def test_resumes_at_the_right_lr_without_last_epoch(tmp_path: Path) -> None:
    """C73: at epoch 25 the lr is 0.025 and each group holds the initial_lr 0.1; no last_epoch is passed anywhere."""
    model, optimizer = _sgd()
    scheduler = lr_scheduler.StepLR(optimizer, 10, 0.5)
    train(model, optimizer, 25, scheduler=scheduler)
    unmoor.save(tmp_path / "run.pt", model=model, optimizer=optimizer, scheduler=scheduler)
    other, fresh = _sgd(lr=0.7)
    again = lr_scheduler.StepLR(fresh, 10, 0.5)
    unmoor.restore(tmp_path / "run.pt", model=other, optimizer=fresh, scheduler=again)
    assert (_lr(fresh), fresh.param_groups[0]["initial_lr"], again.last_epoch) == (0.025, 0.1, 25)
    for _ in range(6):
        train(model, optimizer, 1, scheduler=scheduler)
        train(other, fresh, 1, scheduler=again)
        assert _lr(fresh) == _lr(optimizer)
    assert _lr(fresh) == 0.0125


@pytest.fixture
def one_cycle(tmp_path: Path) -> Path:
    """Eight steps of a OneCycleLR of ten, saved as others save."""
    model, optimizer = _sgd(momentum=0.9)
    scheduler = lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
    train(model, optimizer, 8, scheduler=scheduler)
    torch.save({"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}, tmp_path / "ck.pt")
    return tmp_path / "ck.pt"


def _cycle(steps: int) -> tuple[torch.nn.Sequential, SGD, lr_scheduler.OneCycleLR]:
    model, optimizer = _sgd(momentum=0.9)
    return model, optimizer, lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)


def test_live_schedule_keeps_its_length(one_cycle: Path) -> None:
    """C74: hyperparameters="live" gives the lr of a 30-step schedule at step 8, and all its steps can be taken."""
    model, optimizer, scheduler = _cycle(30)
    report = unmoor.restore(one_cycle, optimizer=optimizer, scheduler=scheduler, hyperparameters="live")
    straight = _cycle(30)
    train(*straight[:2], 8, scheduler=straight[2])
    assert (scheduler.total_steps, scheduler.last_epoch) == (30, 8)
    assert (_lr(optimizer), optimizer.param_groups[0]["momentum"]) == (
        _lr(straight[1]), straight[1].param_groups[0]["momentum"],
    )  # fmt: skip
    assert scheduler.state_dict() == straight[2].state_dict()
    kept = {change.name: (change.before, change.after) for change in report.plan.kept if change.label == "scheduler"}
    assert kept == {"total_steps": ("10", "30")}
    assert "total_steps=30 (the file: 10)" in str(report)
    train(model, optimizer, 22, scheduler=scheduler)


def test_a_saved_schedule_that_would_end_too_soon_is_an_error_before_training(one_cycle: Path) -> None:
    """C74: with the saved settings only 2 of 10 steps remain where 30 were asked for; the error says so."""
    _, optimizer, scheduler = _cycle(30)
    with refused(unmoor.MismatchError, optimizer) as caught:
        unmoor.restore(one_cycle, optimizer=optimizer, scheduler=scheduler)
    text = str(caught.value)
    assert "total_steps is 10 in the file and 30 in the live scheduler: only 2 of the saved 10 steps remain" in text
    assert 'hyperparameters="live" keeps the 30 steps' in text
    assert scheduler.total_steps == 30


def test_a_schedule_of_the_saved_length_goes_on(one_cycle: Path) -> None:
    """C74: the two steps that remain can be taken, and after them the report of a save at the end says it is over."""
    model, optimizer, scheduler = _cycle(10)
    assert not unmoor.restore(one_cycle, optimizer=optimizer, scheduler=scheduler).findings
    train(model, optimizer, 2, scheduler=scheduler)
    ended = one_cycle.with_name("ended.pt")
    unmoor.save(ended, optimizer=optimizer, scheduler=scheduler)
    report = unmoor.restore(ended, optimizer=optimizer, scheduler=scheduler)
    assert [finding.code for finding in report.findings] == ["schedule-finished"]
    assert "(10 of 10 steps): the next step() raises" in _words(report)


def _warm_then_cosine(optimizer: SGD) -> lr_scheduler.SequentialLR:
    warm = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20)
    return lr_scheduler.SequentialLR(optimizer, [warm, lr_scheduler.CosineAnnealingLR(optimizer, 80, 3e-5)], [20])


ORDERS = ("both, then restore", "optimizer, restore, scheduler, restore", "scheduler restored first", "one by one")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("writer", ["unmoor", "torch"])
def test_lr_is_right_whatever_was_built_first(tmp_path: Path, order: str, writer: str) -> None:
    """C75: 0.00021666226 after the restore and 0.00021172580 one step later, in any order of building."""
    model, optimizer = _sgd(lr=3e-4)
    scheduler = _warm_then_cosine(optimizer)
    train(model, optimizer, 50, scheduler=scheduler)
    path = tmp_path / "ck.pt"
    if writer == "unmoor":
        unmoor.save(path, optimizer=optimizer, scheduler=scheduler)
    else:
        torch.save({"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}, path)
    other, fresh = _sgd(lr=3e-4)
    if order == ORDERS[1]:
        unmoor.restore(path, optimizer=fresh)
    again = _warm_then_cosine(fresh)
    if order == ORDERS[0]:
        unmoor.restore(path, optimizer=fresh, scheduler=again)
    else:
        unmoor.restore(path, scheduler=again)
    if order == ORDERS[2]:
        unmoor.restore(path, optimizer=fresh)
    assert _lr(fresh) == pytest.approx(0.00021666226, abs=5e-12)
    train(other, fresh, 1, scheduler=again)
    assert _lr(fresh) == pytest.approx(0.00021172580, abs=5e-12)


@pytest.mark.parametrize("passed", [("model", "scheduler"), ("model", "optimizer", "scheduler")])
def test_lr_comes_from_the_scheduler_where_the_file_has_no_optimizer(tmp_path: Path, passed: tuple[str, ...]) -> None:
    """C77: the last lr of the schedule is written into the groups, now and five steps later 0.1, and reported."""
    model, optimizer = _sgd(lr=1.0)
    scheduler = lr_scheduler.MultiStepLR(optimizer, [5], gamma=0.1)
    train(model, optimizer, 10, scheduler=scheduler)
    torch.save({"model": model.state_dict(), "scheduler": scheduler.state_dict()}, tmp_path / "ck.pt")
    other, fresh = _sgd(lr=1.0)
    again = lr_scheduler.MultiStepLR(fresh, [5], gamma=0.1)
    live = {"model": other, "optimizer": fresh, "scheduler": again}
    report = unmoor.restore(tmp_path / "ck.pt", **{role: live[role] for role in passed})
    assert _lr(fresh) == again.get_last_lr()[0] == pytest.approx(0.1)
    assert ("lr", "1", "0.1") in [(change.name, change.before, change.after) for change in report.plan.options]
    assert "from the schedule: the file holds no optimizer that fits" in _words(report)
    train(other, fresh, 5, scheduler=again)
    assert _lr(fresh) == pytest.approx(0.1)
