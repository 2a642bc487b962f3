"""What plain PyTorch does with state of the wrong kind, and what unmoor says instead (facts F5 and F6)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import unmoor
from tests.cases.files import refused, tiny, train, trained


def _plain_load(path: Path) -> Any:
    return torch.load(path, weights_only=True)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    train(model, optimizer, 1)


def test_f5_state_of_another_optimizer_class_is_refused_before_anything_changes(tmp_path: Path) -> None:
    """F5: PyTorch loads Adam's state into SGD without a word and fails at the next step, or never; unmoor refuses it.

    The error names both classes, what the file holds, what the live one needs, and how to start it fresh.
    """
    _, adam = trained()
    torch.save(adam.state_dict(), tmp_path / "opt.pt")

    model = tiny(5)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sgd.load_state_dict(_plain_load(tmp_path / "opt.pt"))
    assert "momentum" not in sgd.param_groups[0]
    with pytest.raises(KeyError, match="momentum"):
        _step(model, sgd)

    model = tiny(5)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with refused(unmoor.MismatchError, model, sgd) as caught:
        unmoor.restore(tmp_path / "opt.pt", optimizer=sgd)
    text = str(caught.value)
    assert "nothing was changed" in text
    assert "the file holds Adam-like state (exp_avg, exp_avg_sq, step" in text
    assert "the live optimizer is SGD" in text
    assert "optimizer=None starts it fresh" in text


def test_f5_the_other_way_round(tmp_path: Path) -> None:
    """F5: PyTorch answers SGD's momentum given to Adam with KeyError: 'step', which names neither class.

    The error names both, what the file holds and what the live class needs.
    """
    _, sgd = trained(make=torch.optim.SGD, lr=0.1, momentum=0.9)
    torch.save(sgd.state_dict(), tmp_path / "opt.pt")

    model = tiny(5)
    adam = torch.optim.Adam(model.parameters())
    with pytest.raises(KeyError, match="step"):
        adam.load_state_dict(_plain_load(tmp_path / "opt.pt"))

    model = tiny(5)
    adam = torch.optim.Adam(model.parameters())
    with refused(unmoor.MismatchError, model, adam) as caught:
        unmoor.restore(tmp_path / "opt.pt", optimizer=adam)
    text = str(caught.value)
    assert "the file holds SGD-like state (momentum_buffer" in text
    assert "the live optimizer is Adam (needs step, exp_avg, exp_avg_sq" in text


def test_f5_state_of_another_shape_is_refused_before_anything_changes(tmp_path: Path) -> None:
    """F5: PyTorch loads moments of another shape too, and fails at the step with two sizes and no name.

    The error names the parameter, the state and both shapes.
    """
    _, adam = trained()
    torch.save(adam.state_dict(), tmp_path / "opt.pt")

    wider = tiny(5, sizes=(3, 6, 2))
    optimizer = torch.optim.Adam(wider.parameters())
    optimizer.load_state_dict(_plain_load(tmp_path / "opt.pt"))
    with pytest.raises(RuntimeError, match="size of tensor"):
        _step(wider, optimizer)

    wider = tiny(5, sizes=(3, 6, 2))
    optimizer = torch.optim.Adam(wider.parameters())
    with refused(unmoor.MismatchError, wider, optimizer) as caught:
        unmoor.restore(tmp_path / "opt.pt", optimizer=optimizer)
    text = str(caught.value)
    assert "has shape 4x3, the live parameter has 6x3" in text
    assert "nothing was changed" in text


def test_f6_a_model_state_dict_as_optimizer_is_named(tmp_path: Path) -> None:
    """F6: PyTorch answers a model state dict given to an optimizer with KeyError: 'param_groups'.

    The error says what the file holds, with a count and names, what was expected, and which file was meant.
    """
    model, adam = trained()
    torch.save(model.state_dict(), tmp_path / "model000003.pt")
    torch.save(adam.state_dict(), tmp_path / "opt000003.pt")

    with pytest.raises(KeyError, match="param_groups"):
        adam.load_state_dict(_plain_load(tmp_path / "model000003.pt"))

    live = tiny(5)
    optimizer = torch.optim.Adam(live.parameters())
    with refused(unmoor.KindError, live, optimizer) as caught:
        unmoor.restore(tmp_path / "model000003.pt", optimizer=optimizer)
    text = str(caught.value)
    assert "which holds a model state dict (4 tensors such as 0.weight), not optimizer state" in text
    assert "expected   a dict with 'state' and 'param_groups'" in text
    assert "Its optimizer is probably opt000003.pt." in text


def test_f6_a_whole_checkpoint_as_optimizer_gives_its_optimizer(tmp_path: Path) -> None:
    """F6: PyTorch answers a whole checkpoint with the same KeyError; unmoor takes the optimizer out of it.

    The report says that the model in the file was not asked for.
    """
    model, adam = trained()
    torch.save({"model": model.state_dict(), "optimizer": adam.state_dict()}, tmp_path / "run.pt")

    with pytest.raises(KeyError, match="param_groups"):
        adam.load_state_dict(_plain_load(tmp_path / "run.pt"))

    live = tiny(0)
    optimizer = torch.optim.Adam(live.parameters())
    report = unmoor.restore(tmp_path / "run.pt", optimizer=optimizer)
    assert report.restored == ("optimizer",)
    assert [(c.label, c.after) for c in report.not_restored if c.label == "model"] == [("model", "not asked for")]
    assert optimizer.state_dict()["state"][0]["step"] == 3
