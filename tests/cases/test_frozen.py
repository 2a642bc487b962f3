"""Parameters by name: layers that were frozen since, and optimizer state that is keyed by names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

import unmoor

from .files import refused, same_bits, tiny, train, trained

WRITERS = ["unmoor.save", "torch.save"]


def _saved(path: Path, writer: str) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    model, optimizer = trained()
    if writer == "unmoor.save":
        unmoor.save(path, model=model, optimizer=optimizer)
    else:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    return model, optimizer


def _frozen() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """A model whose first layer is frozen, and an optimizer over the rest."""
    model = tiny(5)
    model[0].requires_grad_(False)
    return model, torch.optim.Adam([p for p in model.parameters() if p.requires_grad])


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {name: optimizer.state.get(parameter, {}) for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("writer", WRITERS)
def test_state_of_a_layer_that_was_frozen_is_kept_aside_and_told(tmp_path: Path, writer: str) -> None:
    """C17: the rest gets its own state, the frozen layer's is named as kept aside, and nothing is an error."""
    saved, saved_optimizer = _saved(tmp_path / "run.pt", writer)
    model, optimizer = _frozen()
    report = unmoor.restore(tmp_path / "run.pt", model=model, optimizer=optimizer)
    own, theirs = _state(model, optimizer), _state(saved, saved_optimizer)
    assert same_bits([own["2.weight"], own["2.bias"]], [theirs["2.weight"], theirs["2.bias"]])
    assert own["0.weight"] == own["0.bias"] == {}
    assert "0.weight, 0.bias: frozen: state kept aside" in str(report)


@pytest.mark.parametrize("writer", WRITERS)
def test_what_was_kept_aside_comes_back_with_the_layer(tmp_path: Path, writer: str) -> None:
    """C17: the next save writes it back, through any number of frozen runs, and an unfrozen run finds it."""
    saved, saved_optimizer = _saved(tmp_path / "run0.pt", writer)
    for number in range(2):
        model, optimizer = _frozen()
        unmoor.restore(tmp_path / f"run{number}.pt", model=model, optimizer=optimizer)
        unmoor.save(tmp_path / f"run{number + 1}.pt", model=model, optimizer=optimizer)
    live = tiny(7)
    live_optimizer = torch.optim.Adam(live.parameters(), lr=0.5)
    report = unmoor.restore(tmp_path / "run2.pt", model=live, optimizer=live_optimizer)
    assert same_bits(_state(live, live_optimizer), _state(saved, saved_optimizer))
    assert live_optimizer.param_groups[0]["lr"] == 1e-3
    assert "state for 4 of 4 parameters, matched by name" in str(report)
    for run in ((saved, saved_optimizer), (live, live_optimizer)):
        train(*run)
    assert same_bits(live.state_dict(), saved.state_dict())


def test_a_frozen_group_comes_back_with_its_own_options(tmp_path: Path) -> None:
    """C17: the options of a group that was frozen whole are kept with its state."""
    model = tiny()
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters(), "lr": 0.2}]
    optimizer = torch.optim.Adam(groups)
    train(model, optimizer)
    unmoor.save(tmp_path / "run.pt", model=model, optimizer=optimizer)
    frozen, frozen_optimizer = _frozen()
    unmoor.restore(tmp_path / "run.pt", model=frozen, optimizer=frozen_optimizer)
    unmoor.save(tmp_path / "frozen.pt", model=frozen, optimizer=frozen_optimizer)
    live = tiny(7)
    live_optimizer = torch.optim.Adam([{"params": live[0].parameters()}, {"params": live[2].parameters()}], lr=0.9)
    unmoor.restore(tmp_path / "frozen.pt", model=live, optimizer=live_optimizer)
    assert [group["lr"] for group in live_optimizer.param_groups] == [0.1, 0.2]
    assert same_bits(_state(live, live_optimizer), _state(model, optimizer))


def test_plain_torch_loads_a_file_that_keeps_state_aside(tmp_path: Path) -> None:
    """C17: load_state_dict takes the optimizer of such a file, and a group may be added to it afterwards."""
    _saved(tmp_path / "run.pt", "unmoor.save")
    model, optimizer = _frozen()
    unmoor.restore(tmp_path / "run.pt", model=model, optimizer=optimizer)
    unmoor.save(tmp_path / "frozen.pt", model=model, optimizer=optimizer)
    plain, plain_optimizer = _frozen()
    tree = torch.load(tmp_path / "frozen.pt")
    plain.load_state_dict(tree["model"])
    plain_optimizer.load_state_dict(tree["optimizer"])
    assert same_bits(_state(plain, plain_optimizer), _state(model, optimizer))
    plain_optimizer.add_param_group({"params": list(plain[0].parameters())})
    train(plain, plain_optimizer, 1)


def test_a_parameter_that_the_optimizer_has_again_is_not_kept_twice(tmp_path: Path) -> None:
    """C17: what was unfrozen in the same process is saved with the state that it has now."""
    _saved(tmp_path / "run.pt", "unmoor.save")
    model, optimizer = _frozen()
    unmoor.restore(tmp_path / "run.pt", model=model, optimizer=optimizer)
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": list(model[0].parameters())})
    train(model, optimizer, 1)
    unmoor.save(tmp_path / "again.pt", model=model, optimizer=optimizer)
    assert "frozen" not in torch.load(tmp_path / "again.pt")["optimizer"]
    live = tiny(7)
    live_optimizer = torch.optim.Adam([{"params": live[2].parameters()}, {"params": live[0].parameters()}])
    unmoor.restore(tmp_path / "again.pt", model=live, optimizer=live_optimizer)
    assert same_bits(_state(live, live_optimizer), _state(model, optimizer))


ORDERS = [["0.weight", "0.bias", "2.weight", "2.bias"], ["2.weight", "2.bias", "0.weight", "0.bias"]]


def _by_name(path: Path, order: list[str]) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """An optimizer's full state keyed by names, its group listing them in `order`."""
    model = tiny(sizes=(3, 3, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    train(model, optimizer)
    state = get_optimizer_state_dict(model, optimizer)
    state["param_groups"][0]["params"] = order
    torch.save(state, path)
    return model, optimizer


@pytest.mark.parametrize("order", ORDERS, ids=["the model's order", "another order"])
def test_state_keyed_by_names_goes_to_the_parameters_of_those_names(tmp_path: Path, order: list[str]) -> None:
    """C87: a full optimizer state dict of FSDP or DCP is read by name in any order, its options with it."""
    model, optimizer = _by_name(tmp_path / "by_name.pt", order)
    whole = {"model": model.state_dict(), "optimizer": torch.load(tmp_path / "by_name.pt")}
    torch.save(whole, tmp_path / "run.pt")
    for name, passed in (("by_name.pt", False), ("run.pt", True)):
        live = tiny(4, sizes=(3, 3, 3))
        live_optimizer = torch.optim.Adam(live.parameters() if passed else live.named_parameters())
        roles = {"model": live} if passed else {}
        report = unmoor.restore(tmp_path / name, optimizer=live_optimizer, **roles)
        assert "matched by name" in str(report)
        assert same_bits(_state(live, live_optimizer), _state(model, optimizer))
        assert live_optimizer.param_groups[0]["lr"] == 0.02


def test_names_that_only_the_file_has_are_asked_for(tmp_path: Path) -> None:
    """C87: an optimizer without names gets such a state by position with a warning that says how to give it names."""
    _by_name(tmp_path / "by_name.pt", ORDERS[1])
    live_optimizer = torch.optim.Adam(tiny(4, sizes=(3, 3, 3)).parameters())
    report = unmoor.restore(tmp_path / "by_name.pt", optimizer=live_optimizer)
    found = {finding.code: finding for finding in report.findings}["order-not-proved"]
    assert "4 of 4 parameters have the shape of another" in found.message
    assert "model.named_parameters()" in found.remedy


def test_unknown_names_of_such_a_state_are_listed(tmp_path: Path) -> None:
    """C87: names that no live parameter bears are an error that lists them, or dropped and told on request."""
    model, optimizer = _by_name(tmp_path / "by_name.pt", ORDERS[1])
    state = torch.load(tmp_path / "by_name.pt")
    state["state"]["4.weight"] = state["state"]["2.weight"]
    state["param_groups"][0]["params"].append("4.weight")
    torch.save({"model": model.state_dict(), "optimizer": state}, tmp_path / "run.pt")
    live = tiny(4, sizes=(3, 3, 3))
    live_optimizer = torch.optim.Adam(live.parameters())
    with refused(unmoor.MismatchError, live, live_optimizer) as caught:
        unmoor.restore(tmp_path / "run.pt", model=live, optimizer=live_optimizer)
    assert "the file holds state for 4.weight, which no live parameter is called" in str(caught.value)
    assert 'unexpected="ignore" drops it' in str(caught.value)
    report = unmoor.restore(tmp_path / "run.pt", model=live, optimizer=live_optimizer, unexpected="ignore")
    assert [change.name for change in report.unexpected] == ["4.weight"]
    assert same_bits(_state(live, live_optimizer), _state(model, optimizer))
