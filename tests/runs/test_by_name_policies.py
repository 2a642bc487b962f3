"""Named policies for models and optimizers alike, and a plan that shows the whole effect and touches nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import unmoor
from tests.cases.files import nothing_changes, refused, same_bits, train

from .named import alike, moments, run

CHANGES = {
    "missing": ("fresh", 3, 2, ("model", "optimizer"), "4.weight"),
    "unexpected": ("ignore", 2, 3, ("model", "optimizer"), "4.weight"),
}


def tall(layers: int, seed: int = 0) -> tuple[nn.Sequential, torch.optim.Adam]:
    """Square layers, as many as asked."""
    torch.manual_seed(seed)
    model = nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(3, 3), nn.ReLU())])
    return model, torch.optim.Adam(model.parameters())


@pytest.mark.parametrize("policy", CHANGES)
@pytest.mark.parametrize("let", [False, True])
@pytest.mark.parametrize("both", [False, True], ids=["optimizer alone", "with its model"])
def test_missing_and_unexpected_speak_of_models_and_of_optimizers(
    tmp_path: Path, policy: str, let: bool, both: bool
) -> None:
    """Both policies are held for module and optimizer: an error with every name, or left and told."""
    word, live_layers, saved_layers, labels, name = CHANGES[policy]
    model, optimizer = tall(saved_layers)
    train(model, optimizer)
    unmoor.save(tmp_path / "a.pt", model=model, optimizer=optimizer, rng=False)
    live, _ = tall(live_layers, 5)
    live_optimizer = torch.optim.Adam(live.named_parameters())
    roles = {"model": live} if both else {}
    if not let:
        with refused(unmoor.MismatchError, live, live_optimizer) as caught:
            unmoor.restore(tmp_path / "a.pt", optimizer=live_optimizer, **roles)
        for label in labels if both else labels[1:]:
            (line,) = [row for row in caught.value.details if row.startswith(label)]
            assert name in line
            assert f'{policy}="{word}"' in line
        return
    report = unmoor.restore(tmp_path / "a.pt", optimizer=live_optimizer, **roles, **{policy: word})
    changes = [*report.missing, *report.fresh] if policy == "missing" else report.unexpected
    assert {change.label for change in changes if change.name == name} == set(labels if both else labels[1:])
    own, theirs = moments(live, live_optimizer), moments(model, optimizer)
    kept = own.keys() & theirs.keys()
    assert same_bits({key: own[key] for key in kept}, {key: theirs[key] for key in kept})


def test_what_is_unfrozen_is_no_missing_state(tmp_path: Path) -> None:
    """A parameter that the file's model has and its optimizer had not starts without state, as it would have then."""
    model = alike()
    optimizer = torch.optim.Adam(model[2].parameters())
    train(model, optimizer)
    unmoor.save(tmp_path / "a.pt", model=model, optimizer=optimizer, rng=False)
    live = alike(5)
    live_optimizer = torch.optim.Adam([{"params": live[2].parameters()}, {"params": live[0].parameters(), "lr": 0.5}])
    report = unmoor.restore(tmp_path / "a.pt", model=live, optimizer=live_optimizer)
    assert "0.weight, 0.bias: not in the saved optimizer, starts without state" in " ".join(str(report).split())
    assert "group 1: no saved group matches it, live options" in " ".join(str(report).split())
    assert live_optimizer.param_groups[1]["lr"] == 0.5


@pytest.mark.parametrize("hyperparameters", ["saved", "live"])
def test_groups_that_were_merged_and_differ(tmp_path: Path, hyperparameters: str) -> None:
    """A live group out of two saved ones that differ is refused with both values of every option, unless live wins."""
    model = alike()
    second = {"params": model[2].parameters(), "lr": 0.02, "weight_decay": 0.0}
    optimizer = torch.optim.AdamW([{"params": model[0].parameters()}, second], lr=0.01)
    train(model, optimizer)
    unmoor.save(tmp_path / "a.pt", model=model, optimizer=optimizer, rng=False)
    live = alike(5)
    live_optimizer = torch.optim.AdamW(live.parameters(), lr=0.5)
    if hyperparameters == "saved":
        with refused(unmoor.MismatchError, live, live_optimizer) as caught:
            unmoor.restore(tmp_path / "a.pt", model=live, optimizer=live_optimizer)
        assert "lr 0.01 and 0.02; weight_decay 0.01 and 0" in str(caught.value)
        assert 'hyperparameters="live"' in str(caught.value)
        return
    report = unmoor.restore(tmp_path / "a.pt", model=live, optimizer=live_optimizer, hyperparameters="live")
    assert "lr=0.5 (the file: 0.01 and 0.02)" in " ".join(str(report).split())
    assert live_optimizer.param_groups[0]["lr"] == 0.5
    assert same_bits(moments(live, live_optimizer), moments(model, optimizer))


def test_a_plan_touches_nothing(tmp_path: Path) -> None:
    """unmoor.plan shows the whole effect and changes no bit: of the run, of the streams, of the file."""
    model, optimizer = run(lr=0.03)
    unmoor.save(tmp_path / "a.pt", model=model, optimizer=optimizer, step=7)
    data = (tmp_path / "a.pt").read_bytes()
    live = alike(5)
    live_optimizer = torch.optim.Adam(live[2].parameters())
    train(live, live_optimizer)
    arguments = {"model": live, "optimizer": live_optimizer, "skip": "0.bias", "cast": "any"}
    with nothing_changes(live, live_optimizer):
        plan = unmoor.plan(tmp_path / "a.pt", **arguments)
    assert (tmp_path / "a.pt").read_bytes() == data
    report = unmoor.restore(tmp_path / "a.pt", **arguments)
    assert plan.to_json() == report.plan.to_json()
    assert str(plan).splitlines()[0].startswith("would restore model, optimizer, rng from")
    assert str(plan).splitlines()[1:4] == str(report).splitlines()[1:4]


def test_a_refused_plan_is_the_refused_restore(tmp_path: Path) -> None:
    """What plan raises is what restore raises, word for word, and both leave everything as it was."""
    unmoor.save(tmp_path / "a.pt", **dict(zip(("model", "optimizer"), run(), strict=True)))
    live, live_optimizer = tall(3, 5)
    texts = []
    for verb in (unmoor.plan, unmoor.restore):
        with refused(unmoor.MismatchError, live, live_optimizer) as caught:
            verb(tmp_path / "a.pt", model=live, optimizer=live_optimizer)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def _lbfgs(seed: int, *order: int) -> tuple[nn.Sequential, torch.optim.LBFGS]:
    model = alike(seed)
    params = list(model.parameters())
    return model, torch.optim.LBFGS([params[i] for i in order])


@pytest.mark.parametrize("order", [(2, 3, 0, 1), (2, 3), (0, 1, 2, 3)], ids=str)
def test_a_state_for_all_parameters_at_once_needs_the_same_ones(tmp_path: Path, order: tuple[int, ...]) -> None:
    """LBFGS keeps vectors over all its parameters: others, or another order, are refused although names would match."""
    model, optimizer = _lbfgs(0, 0, 1, 2, 3)
    inputs = torch.ones(2, 3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(inputs).pow(2).mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    unmoor.save(tmp_path / "a.pt", model=model, optimizer=optimizer, rng=False)
    live, live_optimizer = _lbfgs(5, *order)
    if order == (0, 1, 2, 3):
        unmoor.restore(tmp_path / "a.pt", model=live, optimizer=live_optimizer)
        assert same_bits(live_optimizer.state_dict()["state"], optimizer.state_dict()["state"])
        return
    with refused(unmoor.MismatchError, live, live_optimizer) as caught:
        unmoor.restore(tmp_path / "a.pt", model=live, optimizer=live_optimizer)
    assert "LBFGS keeps one state for all its parameters in their order" in str(caught.value)


@pytest.mark.parametrize("rates", [(0.01, 0.01), (0.01, 0.02)], ids=str)
def test_learning_rates_that_are_tensors_are_compared_by_what_the_file_holds(
    tmp_path: Path, rates: tuple[float, float]
) -> None:
    """Groups whose tensor options have equal data merge; others are refused."""
    model = alike()
    groups = [
        {"params": layer.parameters(), "lr": torch.tensor(rate)}
        for layer, rate in zip((model[0], model[2]), rates, strict=True)
    ]
    optimizer = torch.optim.Adam(groups, capturable=False, foreach=False)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    unmoor.save(tmp_path / "a.pt", model=model, optimizer=optimizer, rng=False)
    live = alike(5)
    live_optimizer = torch.optim.Adam(live.parameters(), lr=torch.tensor(0.5), foreach=False)
    if rates[0] != rates[1]:
        with refused(unmoor.MismatchError, live, live_optimizer) as caught:
            unmoor.restore(tmp_path / "a.pt", model=live, optimizer=live_optimizer)
        assert "live group 0 is made of 2 saved groups that differ: lr" in str(caught.value)
        return
    unmoor.restore(tmp_path / "a.pt", model=live, optimizer=live_optimizer)
    assert float(live_optimizer.param_groups[0]["lr"]) == pytest.approx(0.01)
    assert same_bits(moments(live, live_optimizer), moments(model, optimizer))
