"""Checkpoints of plain PyTorch scripts, under the names and nestings that scripts give them. One row each."""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import unmoor
from tests.real.compare import differences

from .resuming import end, other
from .training import AFTER, BEFORE, start

State = dict[str, Any]

NESTINGS: dict[str, Callable[[State, State, State], Any]] = {
    "tutorial": lambda m, o, s: {
        "epoch": 3,
        "model_state_dict": m,
        "optimizer_state_dict": o,
        "lr_sched": s,
        "loss": 0.4,
    },
    "imagenet": lambda m, o, s: {
        "epoch": 3,
        "arch": "n",
        "state_dict": m,
        "best_acc1": 0.1,
        "optimizer": o,
        "scheduler": s,
    },
    "references": lambda m, o, s: {"model": m, "optimizer": o, "lr_scheduler": s, "epoch": 3, "args": {"lr": 0.01}},
    "short": lambda m, o, s: {"net": m, "opt": o, "sched": s, "it": 3},
    "weights": lambda m, o, s: {"weights": m, "optim": o, "schedule": s},
    "params": lambda m, o, s: {"params": m, "optimizer_state": o, "scheduler_state": s},
    "data parallel": lambda m, o, s: {"model": prefixed(m, "module."), "optimizer": o, "scheduler": s},
    "compiled": lambda m, o, s: {"model": prefixed(m, "_orig_mod."), "optimizer": o, "scheduler": s},
    "both": lambda m, o, s: {"model": prefixed(m, "module._orig_mod."), "optimizer": o, "scheduler": s},
    "backbone": lambda m, o, s: {"state_dict": prefixed(m, "model."), "optimizer": o, "scheduler": s},
    "nested": lambda m, o, s: {
        "state": {"model": m, "training": {"optimizer": o, "scheduler": s}},
        "meta": {"step": 3},
    },
    "in lists": lambda m, o, s: {"model": m, "optimizers": [o], "schedulers": [s]},
    "by name": lambda m, o, s: {"models": {"net": m}, "optimizers": {"net": o}, "schedulers": {"net": s}},
    "tuple": lambda m, o, s: (m, o, s, 3),
    "list": lambda m, o, s: [3, m, o, s],
    "models first": lambda m, o, s: {"generator": m, "g_optimizer": o, "g_scheduler": s},
}
"""How a script calls what it saves: name -> tree of the state dicts of model, optimizer and scheduler."""


def prefixed(state: State, prefix: str) -> State:
    """A model state dict as a wrapper names it."""
    return OrderedDict((prefix + name, value) for name, value in state.items())


@pytest.mark.parametrize("name", NESTINGS)
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_the_next_steps_are_equal_under_any_names(name: str, legacy: bool, tmp_path: Path) -> None:
    """Model, optimizer and scheduler are found by what they are, and the run goes on as it would have."""
    run = start(dropout=0.0).train(BEFORE)
    tree = NESTINGS[name](run.model.state_dict(), run.optimizer.state_dict(), run.scheduler.state_dict())
    torch.save(tree, tmp_path / "run.pt", _use_new_zipfile_serialization=not legacy)
    wanted = end(run.train(AFTER), rng=False)
    resumed = other(0.0, "cpu")
    unmoor.restore(
        tmp_path / "run.pt", model=resumed.model, optimizer=resumed.optimizer, scheduler=resumed.scheduler, rng=False
    )
    assert not list(differences(wanted, end(resumed.train(AFTER), rng=False)))


def test_weights_beside_the_other_parts_are_read_where_at_names_them(tmp_path: Path) -> None:
    """Tensors among other keys are no model unless the caller says so; the report tells that none was restored."""
    run = start(dropout=0.0).train(BEFORE)
    torch.save({**run.model.state_dict(), "optimizer": run.optimizer.state_dict()}, tmp_path / "run.pt")
    resumed = other(0.0, "cpu")
    report = unmoor.restore(tmp_path / "run.pt", model=resumed.model, optimizer=resumed.optimizer)
    assert report.restored == ("optimizer",)
    assert [change.label for change in report.not_restored] == ["model", "rng"]
    report = unmoor.restore(tmp_path / "run.pt", model=resumed.model, optimizer=resumed.optimizer, at={"model": ""})
    assert report.restored == ("model", "optimizer")
    assert not list(differences(dict(run.model.state_dict()), dict(resumed.model.state_dict())))
