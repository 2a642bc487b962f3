"""The live optimizer after a restore: the objects that others hold, and state that nothing has been saved of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import unmoor
from unmoor.report.inspect import inspect_text

from .files import same_bits, saved_run, tiny, train, trained


class Wrapper:
    """Keeps the groups of an optimizer under its own name, as wrappers and schedulers do."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.param_groups = optimizer.param_groups


class Hooked(torch.optim.Adam):
    """A class with a load_state_dict of its own, which replaces the groups as torch's does."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)


@pytest.mark.parametrize("make", [torch.optim.Adam, Hooked])
def test_groups_stay_the_objects_that_others_hold(tmp_path: Path, make: Any) -> None:
    """C24: a wrapper's param_groups are still the optimizer's after a restore, so what it sets is what is used."""
    path = saved_run(tmp_path / "ck.pt", *trained(lr=0.1))
    model = tiny(5)
    optimizer = make(model.parameters(), lr=0.5)
    wrapper, groups = Wrapper(optimizer), list(optimizer.param_groups)
    unmoor.restore(path, model=model, optimizer=optimizer)
    assert optimizer.param_groups is wrapper.param_groups
    assert all(ours is theirs for ours, theirs in zip(groups, optimizer.param_groups, strict=True))
    assert wrapper.param_groups[0]["lr"] == 0.1
    wrapper.param_groups[0]["lr"] = 0.001
    assert optimizer.param_groups[0]["lr"] == 0.001


@pytest.mark.parametrize("saved", [(0.25, 0.5), (0.5, 0.5)], ids=["different", "equal"])
def test_groups_that_share_a_tensor_learning_rate_get_what_each_had(tmp_path: Path, saved: tuple[float, float]) -> None:
    """C24: a tensor option is written into, for its holders; groups that share one part where the file's differ."""
    model = tiny()
    halves = [[*model[0].parameters()], [*model[2].parameters()]]
    groups = [{"params": half, "lr": torch.tensor(lr)} for half, lr in zip(halves, saved, strict=True)]
    optimizer = torch.optim.Adam(groups)
    train(model, optimizer)
    unmoor.save(tmp_path / "run.pt", model=model, optimizer=optimizer)
    shared = torch.tensor(1.0)
    live = tiny(5)
    other = torch.optim.Adam([{"params": list(part.parameters())} for part in (live[0], live[2])], lr=shared)
    assert other.param_groups[0]["lr"] is other.param_groups[1]["lr"] is shared
    unmoor.restore(tmp_path / "run.pt", model=live, optimizer=other)
    assert [group["lr"].item() for group in other.param_groups] == list(saved)
    assert other.param_groups[0]["lr"] is shared


@pytest.mark.parametrize("kind", ["number", "tensor"])
def test_the_live_optimizer_decides_whether_its_learning_rate_is_a_tensor(tmp_path: Path, kind: str) -> None:
    """C24: a number stays a number and a tensor stays that tensor, whichever of the two was saved."""
    rates = {"number": 0.25, "tensor": torch.tensor(0.25)}
    path = saved_run(tmp_path / "ck.pt", *trained(lr=rates[{"number": "tensor", "tensor": "number"}[kind]]))
    model = tiny(5)
    live = {"number": 0.5, "tensor": torch.tensor(0.5)}[kind]
    optimizer = torch.optim.Adam(model.parameters(), lr=live)
    unmoor.restore(path, model=model, optimizer=optimizer)
    assert type(optimizer.param_groups[0]["lr"]) is type(live)
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert kind == "number" or optimizer.param_groups[0]["lr"] is live
    train(model, optimizer, 1)


def test_an_optimizer_that_never_stepped_is_told_at_each_turn(tmp_path: Path) -> None:
    """C92: save, inspect and restore say that there is no state; nothing is stepped for it, and it is made lazily."""
    model = tiny()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    receipt = unmoor.save(tmp_path / "run.pt", model=model, optimizer=optimizer)
    assert [f.code for f in receipt.findings] == ["no-optimizer-state"]
    assert "optimizer has no state for 4 trainable parameters (never stepped)" in str(receipt)
    assert receipt.to_json()["findings"][0]["severity"] == "warning"
    assert not optimizer.state
    catalog = unmoor.describe(tmp_path / "run.pt")
    assert "no state for 4 parameters (never stepped)" in " ".join(inspect_text(catalog).split())
    live, other = trained(5)
    report = unmoor.restore(tmp_path / "run.pt", model=live, optimizer=other)
    assert "no saved state" in {f.code: f.message for f in report.findings}["no-optimizer-state"]
    assert "state for 0 of 4 parameters" in str(report)
    assert not other.state
    train(live, other, 1)


@pytest.mark.parametrize(
    ("make", "options"), [(torch.optim.SGD, {"lr": 0.1}), (torch.optim.Adagrad, {})], ids=["no state", "at once"]
)
def test_a_class_that_has_nothing_to_lack_is_not_warned_about(
    tmp_path: Path, make: Any, options: dict[str, Any]
) -> None:
    """C92: SGD without momentum never keeps state and Adagrad has it before any step: no warning for either."""
    model = tiny()
    receipt = unmoor.save(tmp_path / "run.pt", model=model, optimizer=make(model.parameters(), **options))
    assert receipt.findings == ()
    live = tiny(5)
    report = unmoor.restore(tmp_path / "run.pt", model=live, optimizer=make(live.parameters(), **options))
    assert "no-optimizer-state" not in {f.code for f in report.findings}


def _adagrad(model: Any) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(model.parameters(), lr=0.1, initial_accumulator_value=0.1)


@pytest.mark.parametrize("steps", [0, 2], ids=["fresh", "stepped"])
def test_an_adagrad_without_saved_state_has_fresh_accumulators(tmp_path: Path, steps: int) -> None:
    """C96: an empty saved state leaves the accumulators of a new Adagrad, whatever was in them, and is reported."""
    model = tiny()
    saved = _adagrad(model).state_dict()
    torch.save({"model": model.state_dict(), "optimizer": {**saved, "state": {}}}, tmp_path / "empty.pt")
    live = tiny(5)
    optimizer = _adagrad(live)
    train(live, optimizer, steps)
    report = unmoor.restore(tmp_path / "empty.pt", model=live, optimizer=optimizer)
    assert "no saved state" in str(report)
    assert len(optimizer.state) == 4
    for parameter, state in optimizer.state.items():
        assert state["step"] == 0
        assert torch.equal(state["sum"], torch.full_like(parameter, 0.1))
    train(live, optimizer, 1)


def test_an_accumulator_follows_its_parameter_and_its_step_does_not(sim: Any, tmp_path: Path) -> None:
    """C96: an Adagrad built before its model was moved has its accumulators beside the parameters, step on the CPU."""
    model = tiny()
    optimizer = _adagrad(model)
    train(model, optimizer)
    unmoor.save(tmp_path / "run.pt", model=model, optimizer=optimizer)
    live = tiny(5)
    other = _adagrad(live)
    live.to("sim:0")
    unmoor.restore(tmp_path / "run.pt", model=live, optimizer=other)
    assert {(str(s["sum"].device), str(s["step"].device)) for s in other.state.values()} == {("sim:0", "cpu")}
    train(model, optimizer, 2)
    train(live, other, 2)
    assert same_bits(model.state_dict(), live.state_dict())


def test_sparse_adam_keeps_dense_moments_and_a_step_that_is_a_number(tmp_path: Path) -> None:
    """C96: SparseAdam's moments are dense and its step is an int; both come back as they are."""
    table = nn.Embedding(6, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())
    table(torch.tensor([1, 4])).sum().backward()
    optimizer.step()
    unmoor.save(tmp_path / "run.pt", model=table, optimizer=optimizer)
    live = nn.Embedding(6, 2, sparse=True)
    other = torch.optim.SparseAdam(live.parameters())
    unmoor.restore(tmp_path / "run.pt", model=live, optimizer=other)
    state = other.state[live.weight]
    assert type(state["step"]) is int
    assert state["exp_avg"].layout == torch.strided
    assert same_bits(other.state_dict()["state"], optimizer.state_dict()["state"])
