"""Files of one program each: who wrote it, and what of it plays which role, under the names that are in use."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import unmoor
from tests.cases.files import bits, same_bits, tiny, train
from tests.describe.makers import Call, save
from unmoor.describe.file import describe_file
from unmoor.report.inspect import inspect_text


class Parts:
    """The state dicts of one tiny run after three steps, and of its average."""

    def __init__(self) -> None:
        self.model, self.average = tiny(0), tiny(1)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        train(self.model, self.optimizer, 3, scheduler=self.scheduler)
        self.m, self.e = self.model.state_dict(), self.average.state_dict()
        self.o, self.s = self.optimizer.state_dict(), self.scheduler.state_dict()


def prefixed(state: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {prefix + name: tensor for name, tensor in state.items()}


SCALER = {"scale": 256.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000, "_growth_tracker": 3}

LAYOUTS: dict[str, tuple[Callable[[Parts], Any], str]] = {
    "model": (lambda p: {"model": p.m, "optimizer": p.o, "scheduler": p.s, "epoch": 3}, "plain"),
    "state dicts": (
        lambda p: {"model_state_dict": p.m, "optimizer_state_dict": p.o, "scheduler_state_dict": p.s, "loss": 0.5},
        "plain",
    ),
    "net": (lambda p: {"net": p.m, "optim": p.o, "sched": p.s, "acc": 91.2}, "plain"),
    "state": (lambda p: {"state": {"model": p.m, "optimizer": p.o, "lr_scheduler": p.s}, "args": {"lr": 1}}, "plain"),
    "deep": (lambda p: {"ckpt": {"a": {"network": p.m}, "b": [p.o, {"s": p.s}]}, "it": 3}, "plain"),
    "tuple": (lambda p: (p.m, p.o, p.s, 3), "plain"),
    "average": (lambda p: {"model": p.m, "ema": p.e, "optimizer": p.o, "lr_scheduler": p.s}, "plain"),
    "data parallel": (lambda p: {"state_dict": prefixed(p.m, "module."), "opt": p.o, "scheduler": p.s}, "plain"),
    "imagenet": (
        lambda p: {"arch": "a", "state_dict": p.m, "best_acc1": 1.0, "optimizer": p.o, "scheduler": p.s},
        "imagenet-example",
    ),
    "timm": (
        lambda p: {"epoch": 3, "arch": "a", "state_dict": p.m, "optimizer": p.o, "version": 2, "state_dict_ema": p.e,
                   "lr_scheduler": p.s, "args": argparse.Namespace(lr=1)},
        "timm",
    ),
    "nanogpt": (
        lambda p: {"model": prefixed(p.m, "_orig_mod."), "optimizer": p.o, "model_args": {}, "iter_num": 3, "s": p.s},
        "nanogpt",
    ),
    "lightning": (
        lambda p: {"epoch": 0, "global_step": 3, "pytorch-lightning_version": "2.6.6",
                   "state_dict": prefixed(p.m, "net."), "optimizer_states": [p.o], "lr_schedulers": [p.s],
                   "MixedPrecision": SCALER, "loops": {}},
        "lightning",
    ),
    "composer": (
        lambda p: {"state": {"model": p.m, "optimizers": {"Adam": p.o}, "schedulers": {"StepLR": p.s}}, "rng": []},
        "composer",
    ),
    "mmengine": (
        lambda p: {"meta": {"epoch": 3}, "state_dict": p.m, "message_hub": {}, "optimizer": p.o,
                   "param_schedulers": [p.s]},
        "mmengine",
    ),
}  # fmt: skip
"""Layout -> the tree that its program saves, and the name of that program."""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_run_goes_on_from_every_layout(layout: str, tmp_path: Path) -> None:
    """Model, optimizer and scheduler are found wherever a program puts them, and the next steps are equal."""
    parts, (make, dialect) = Parts(), LAYOUTS[layout]
    path = save(make(parts), tmp_path / "file.pt")
    assert describe_file(path).dialect == dialect
    model = tiny(5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 9)
    report = unmoor.restore(path, model=model, optimizer=optimizer, scheduler=scheduler)
    assert report.restored == ("model", "optimizer", "scheduler")
    train(model, optimizer, 3, scheduler=scheduler, seed=2)
    train(parts.model, parts.optimizer, 3, scheduler=parts.scheduler, seed=2)
    assert same_bits(model.state_dict(), parts.model.state_dict())
    assert bits(optimizer.state_dict()["state"]) == bits(parts.optimizer.state_dict()["state"])


@pytest.mark.parametrize("layout", ["average", "timm"])
def test_the_average_goes_to_ema(layout: str, tmp_path: Path) -> None:
    """The average under its usual names is what `ema=` takes."""
    parts, average = Parts(), tiny(5)
    unmoor.restore(save(LAYOUTS[layout][0](parts), tmp_path / "file.pt"), ema=average)
    assert same_bits(average.state_dict(), parts.e)


def test_the_scaler_of_lightning_is_found(tmp_path: Path) -> None:
    """Lightning keeps the scaler under the name of its precision plugin."""
    scaler = torch.amp.GradScaler("cpu")
    report = unmoor.restore(save(LAYOUTS["lightning"][0](Parts()), tmp_path / "a.ckpt"), scaler=scaler)
    assert report.restored == ("scaler",)
    assert scaler.state_dict()["scale"] == SCALER["scale"]


def test_modules_of_one_file_are_told_apart_by_the_keys_that_the_caller_gives(tmp_path: Path) -> None:
    """Two modules of equal shapes in one state dict: model={"gen": ..} takes the names that begin with gen."""
    one, two = tiny(1), tiny(2)
    tree = {"state_dict": {**prefixed(one.state_dict(), "gen."), **prefixed(two.state_dict(), "disc.")}}
    path = save(tree, tmp_path / "gan.ckpt")
    live = {"gen": tiny(5), "disc": tiny(6)}
    unmoor.restore(path, model=live)
    assert same_bits(live["gen"].state_dict(), one.state_dict())
    assert same_bits(live["disc"].state_dict(), two.state_dict())
    with pytest.raises(unmoor.AmbiguousError):
        unmoor.restore(path, model=tiny(7))


def test_the_structure_of_hippynn_is_told(tmp_path: Path) -> None:
    """The file of pickled objects of hippynn is told by its keys, and nothing of hippynn is needed."""
    tree = {"training_modules": Call(divmod, 1, 2), "database": None, "controller": Call(divmod, 3, 4)}
    catalog = describe_file(save(tree, tmp_path / "experiment_structure.pt"))
    assert catalog.dialect == "hippynn"
    assert "written by hippynn" in inspect_text(catalog).splitlines()[0]


def test_tensors_by_name_are_values_unless_a_model_takes_them(tmp_path: Path) -> None:
    """A dict of tensors under a key that says nothing is among the extra values, and no second model."""
    stats = {"mean": torch.ones(3), "std": torch.ones(3)}
    path = save({"model": tiny(0).state_dict(), "normalizer": stats, "epoch": 3}, tmp_path / "file.pt")
    assert "2 models" not in inspect_text(describe_file(path))
    report = unmoor.restore(path, model=tiny(5))
    assert same_bits(report.extra["normalizer"], stats)
    assert not [change for change in report.not_restored if change.label == "model"]


def test_such_tensors_are_a_model_where_one_asks_for_them(tmp_path: Path) -> None:
    """The same dict is the state of a module that has those names."""
    module = nn.Module()
    module.mean, module.std = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))
    stats = {"mean": torch.ones(3), "std": torch.full((3,), 2.0)}
    path = save({"model": tiny(0).state_dict(), "normalizer": stats}, tmp_path / "file.pt")
    report = unmoor.restore(path, model=module)
    assert module.std.tolist() == [2.0] * 3
    assert "normalizer" not in report.extra


def test_values_by_name_that_unmoor_saved_come_back(tmp_path: Path) -> None:
    """What save was given as a plain value is in the report of a restore, tensors and all."""
    stats = {"mean": torch.ones(3), "std": torch.ones(3)}
    model = tiny(0)
    unmoor.save(tmp_path / "run.pt", model=model, stats=stats)
    assert same_bits(unmoor.restore(tmp_path / "run.pt", model=tiny(5)).extra["stats"], stats)


DEVICES = ["cuda", "xpu", "npu", "hpu", "mlu", "musa"]


@pytest.mark.parametrize("kind", DEVICES)
def test_generators_of_accelerators_are_told_apart(kind: str, tmp_path: Path) -> None:
    """The key of a stream names its device: those of an XPU are no CUDA streams."""
    states = [torch.zeros(16, dtype=torch.uint8)]
    path = save({"torch_manual_seed": torch.get_rng_state(), f"torch_{kind}_manual_seed": states}, tmp_path / "r.pkl")
    kinds = {part.path: part.kind for part in describe_file(path).part("rng")}
    assert kinds[f"torch_{kind}_manual_seed"] == kind
    plan = unmoor.plan(path)
    (change,) = [c for c in plan.not_restored if c.name == kind]
    assert change.before == "1 saved, 0 visible"
