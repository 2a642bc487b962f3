"""The wrong file, or a file of another program: told for what it is, or read for what was asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import unmoor

from .files import refused, same_bits, tiny, train


def _normed(seed: int = 0) -> nn.Sequential:
    return nn.Sequential(tiny(seed)[0], nn.BatchNorm1d(4))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run's folder in which the optimizer's file holds the model's weights."""
    for name in ("model000100.pt", "ema_0.9999_000100.pt", "opt000100.pt"):
        torch.save(_normed().state_dict(), tmp_path / name)
    return tmp_path


def test_refuses_a_model_state_dict_as_optimizer(folder: Path) -> None:
    """C28: the error says what the file holds, with a count and names, what was expected and what lies beside it."""
    model = _normed(5)
    optimizer = torch.optim.AdamW(model.parameters())
    with refused(unmoor.KindError, model, optimizer) as caught:
        unmoor.restore(folder / "opt000100.pt", model=model, optimizer=optimizer)
    held = "a model state dict (7 tensors such as 0.weight, 1.num_batches_tracked), not optimizer state"
    assert str(caught.value).splitlines() == [
        f"optimizer= was given {folder}/opt000100.pt, which holds {held}",
        "  expected   a dict with 'state' and 'param_groups'",
        "  found      all 7 of its names are in the live model",
        "  nearby     ema_0.9999_000100.pt (model), model000100.pt (model)",
        "             no optimizer state is among them",
        "Nothing was changed. See docs/errors.md#param-groups.",
    ]


def test_names_the_file_that_was_probably_meant(folder: Path) -> None:
    """C28: where optimizers lie beside the file, the one of the same step is named."""
    model = _normed(5)
    optimizer = torch.optim.AdamW(model.parameters())
    for name in ("opt000050.pt", "optim000100.pt", "opt000200.pt"):
        torch.save(optimizer.state_dict(), folder / name)
    with refused(unmoor.KindError, model, optimizer) as caught:
        unmoor.restore(folder / "model000100.pt", optimizer=optimizer)
    assert "Its optimizer is probably optim000100.pt." in str(caught.value)


@pytest.mark.parametrize(
    ("role", "expected"),
    [("model", "a dict from dotted names to tensors"), ("scheduler", "a dict with 'last_epoch' or '_step_count'")],
)
def test_refuses_an_optimizer_state_as_anything_else(folder: Path, role: str, expected: str) -> None:
    """C28: the other way round, an optimizer's state for a model or a scheduler, is told in the same words."""
    model = _normed(5)
    optimizer = torch.optim.AdamW(model.parameters())
    torch.save(optimizer.state_dict(), folder / "opt000050.pt")
    live = {"model": model, "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}
    with refused(unmoor.KindError, *live.values(), optimizer) as caught:
        unmoor.restore(folder / "opt000050.pt", **{role: live[role]})
    text = str(caught.value)
    assert f"{role}= was given {folder}/opt000050.pt, which holds an optimizer state (Adam, 4 parameters)" in text
    assert expected in text
    assert ("Its model is probably model000100.pt." in text) == (role == "model")


@pytest.fixture
def lightning(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A checkpoint in Lightning's layout after three steps, and the objects it was made of."""
    model = tiny()
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    train(model, optimizer, 3, scheduler=scheduler)
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tree = {
        "epoch": 2,
        "global_step": 3,
        "pytorch-lightning_version": "2.5.0",
        "state_dict": {**weights, "criterion.weight": torch.ones(2)},
        "loops": {"fit_loop": {"state_dict": {}}},
        "callbacks": {},
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [scheduler.state_dict()],
        "hparams_name": "kwargs",
        "hyper_parameters": {"lr": 1e-3},
    }
    torch.save(tree, tmp_path / "epoch=2.ckpt")
    return tmp_path / "epoch=2.ckpt", {"model": model, "optimizer": optimizer, "scheduler": scheduler}


def _live() -> dict[str, Any]:
    model = tiny(5)
    optimizer = torch.optim.Adam(model.parameters())
    return {"model": model, "optimizer": optimizer, "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 10)}


@pytest.mark.parametrize("as_lists", [False, True], ids=["objects", "lists"])
def test_takes_model_optimizer_and_scheduler_out_of_a_lightning_file(
    lightning: tuple[Path, dict[str, Any]], as_lists: bool
) -> None:
    """C30: weights under 'state_dict' with their prefix, lists of optimizers and schedulers, and the plain values."""
    path, saved = lightning
    live = _live()
    given = {**live, "optimizer": [live["optimizer"]], "scheduler": [live["scheduler"]]} if as_lists else live
    report = unmoor.restore(path, **given)
    for role, item in live.items():
        assert same_bits(item.state_dict(), saved[role].state_dict()), role
    assert {float(state["step"]) for state in live["optimizer"].state.values()} == {3.0}
    assert live["scheduler"].last_epoch == 3
    assert (report.extra["epoch"], report.extra["global_step"]) == (2, 3)
    assert "4 of 4 names match without 'model.'" in str(report)
    assert [change.name for change in report.plan.unexpected] == ["criterion.weight"]
    assert unmoor.describe(path).dialect == "lightning"


def test_the_model_alone_leaves_the_rest_in_the_report(lightning: tuple[Path, dict[str, Any]]) -> None:
    """C30: what was not asked for is named, with its place in the file."""
    path, _ = lightning
    report = unmoor.restore(path, model=tiny(5))
    left = {change.label: change.name for change in report.not_restored}
    assert left["optimizer"] == "optimizer_states.0"
    assert left["scheduler"] == "lr_schedulers.0"
