"""State by name with several models and optimizers, with shared and tied parameters, and with parts of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import unmoor
from tests.cases.files import bits, same_bits, train

from .named import alike, moments, run


def gan(seed: int) -> dict[str, Any]:
    """Two models of the same names, an optimizer each, and one parameter that both models hold."""
    gen, disc = alike(seed), alike(seed + 1)
    disc[0].bias = gen[0].bias
    optimizers = {
        "gen": torch.optim.Adam(gen.parameters()),
        "disc": torch.optim.SGD([*disc[2].parameters(), disc[0].weight], lr=0.1, momentum=0.9),
    }
    return {"model": {"gen": gen, "disc": disc}, "optimizer": optimizers}


def stepped(seed: int) -> dict[str, Any]:
    made = gan(seed)
    for key, model in made["model"].items():
        train(model, made["optimizer"][key])
    return made


def state_of(made: dict[str, Any]) -> Any:
    return bits({key: moments(made["model"][key], made["optimizer"][key]) for key in ("gen", "disc")})


@pytest.mark.parametrize("turned", [False, True], ids=["same order", "other order"])
def test_two_models_and_two_optimizers_by_name(tmp_path: Path, turned: bool) -> None:
    """Names carry the label of their model; a parameter that two models hold is one, in whatever order they come."""
    saved, live = stepped(0), gan(5)
    unmoor.save(tmp_path / "a.pt", **saved, rng=False)
    if turned:
        live = {role: dict(reversed(members.items())) for role, members in live.items()}
    report = unmoor.restore(tmp_path / "a.pt", **live)
    assert str(report).count("matched by name") == 2
    assert state_of(live) == state_of(saved)
    assert live["model"]["gen"][0].bias is live["model"]["disc"][0].bias


def test_a_parameter_of_two_optimizers_has_a_state_in_each(tmp_path: Path) -> None:
    """Two optimizers over one model keep their own state of the parameters that they share."""
    model = alike()
    pair = {"all": torch.optim.Adam(model.parameters()), "head": torch.optim.SGD(model[2].parameters(), 0.1, 0.9)}
    for optimizer in pair.values():
        train(model, optimizer)
    unmoor.save(tmp_path / "a.pt", model=model, optimizer=pair, rng=False)
    live = alike(5)
    others = {
        "all": torch.optim.Adam(reversed(list(live.parameters()))),
        "head": torch.optim.SGD(live[2].parameters(), 0.2, 0.9),
    }
    unmoor.restore(tmp_path / "a.pt", model=live, optimizer=others)
    for key, optimizer in pair.items():
        assert same_bits(moments(live, others[key]), moments(model, optimizer))
    assert others["head"].param_groups[0]["lr"] == 0.1


def test_several_models_under_one_optimizer(tmp_path: Path) -> None:
    """One optimizer over two models of the same names: each parameter gets its own state."""
    saved = {"gen": alike(0), "disc": alike(1)}
    optimizer = torch.optim.Adam([p for model in saved.values() for p in model.parameters()])
    for model in saved.values():
        train(model, optimizer)
    unmoor.save(tmp_path / "a.pt", model=saved, optimizer=optimizer, rng=False)
    live = {"gen": alike(5), "disc": alike(6)}
    live_optimizer = torch.optim.Adam([p for key in ("disc", "gen") for p in live[key].parameters()])
    unmoor.restore(tmp_path / "a.pt", model=live, optimizer=live_optimizer)
    for key, model in saved.items():
        assert same_bits(moments(live[key], live_optimizer), moments(model, optimizer))


def test_names_without_labels_find_the_model_of_their_optimizer(tmp_path: Path) -> None:
    """A file of plain torch with names, one optimizer a model: each finds its own model's parameters."""
    saved = {"gen": alike(0), "disc": alike(1)}
    optimizers = {key: torch.optim.Adam(model.named_parameters()) for key, model in saved.items()}
    for key, model in saved.items():
        train(model, optimizers[key])
    tree = {f"{key}_model": model.state_dict() for key, model in saved.items()}
    torch.save({**tree, **{f"{key}_optimizer": o.state_dict() for key, o in optimizers.items()}}, tmp_path / "a.pt")
    live = {"gen": alike(5), "disc": alike(6)}
    others = {key: torch.optim.Adam(reversed(list(model.parameters()))) for key, model in live.items()}
    report = unmoor.restore(tmp_path / "a.pt", model=live, optimizer=others)
    assert str(report).count("matched by name") == 2
    for key, model in saved.items():
        assert same_bits(moments(live[key], others[key]), moments(model, optimizers[key]))


def test_an_optimizer_over_a_part_of_the_model(tmp_path: Path) -> None:
    """Nothing is said of parameters that were in no optimizer then and are in none now."""
    model = alike()
    optimizer = torch.optim.Adam(model[2].parameters())
    train(model, optimizer)
    unmoor.save(tmp_path / "a.pt", model=model, optimizer=optimizer, rng=False)
    live = alike(5)
    live_optimizer = torch.optim.Adam(reversed(list(live[2].parameters())))
    report = unmoor.restore(tmp_path / "a.pt", model=live, optimizer=live_optimizer)
    assert same_bits(moments(live, live_optimizer), moments(model, optimizer))
    assert "frozen" not in str(report)
    assert "0.weight" not in str(report)


@pytest.mark.parametrize("named", [True, False])
def test_an_optimizer_without_its_model(tmp_path: Path, named: bool) -> None:
    """Restored alone, torch's own names match it; without any, position does, and a warning says what is not proved."""
    model, optimizer = run()
    unmoor.save(tmp_path / "a.pt", model=model, optimizer=optimizer, rng=False)
    live = alike(5)
    if named:
        live_optimizer = torch.optim.Adam(reversed(list(live.named_parameters())))
    else:
        live_optimizer = torch.optim.Adam(live.parameters())
    report = unmoor.restore(tmp_path / "a.pt", optimizer=live_optimizer)
    assert same_bits(moments(live, live_optimizer), moments(model, optimizer))
    assert ("matched by name" in str(report)) is named
    assert ("order-not-proved" in [finding.code for finding in report.findings]) is not named


def test_tied_weights_keep_their_state_under_either_name(tmp_path: Path) -> None:
    """A tied parameter that is listed first under its other name is the same parameter."""

    def make(*names: str) -> nn.Module:
        model = nn.Module()
        shared = nn.Linear(3, 3, bias=False)
        for name in names:
            model.add_module(name, nn.Linear(3, 3, bias=False))
            getattr(model, name).weight = shared.weight
        return model

    model, live = make("embed", "head"), make("head", "embed")
    optimizer, live_optimizer = (torch.optim.Adam(m.parameters()) for m in (model, live))
    model.embed.weight.grad = torch.ones(3, 3)
    optimizer.step()
    unmoor.save(tmp_path / "a.pt", model=model, optimizer=optimizer, rng=False)
    report = unmoor.restore(tmp_path / "a.pt", model=live, optimizer=live_optimizer)
    assert "state for 1 of 1 parameters, matched by name" in str(report)
    assert same_bits(live_optimizer.state_dict()["state"], optimizer.state_dict()["state"])


class Wrapper:
    """An optimizer inside another object, as accelerate and others have it."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)


def test_an_optimizer_inside_another_object_is_saved_with_names_and_what_is_frozen(tmp_path: Path) -> None:
    """Names and state kept aside go with a wrapped optimizer as with a bare one."""
    model, optimizer = run()
    unmoor.save(tmp_path / "a.pt", model=model, optimizer=Wrapper(optimizer), rng=False)
    frozen = alike(5)
    frozen_optimizer = Wrapper(torch.optim.Adam(frozen[2].parameters()))
    unmoor.restore(tmp_path / "a.pt", model=frozen, optimizer=frozen_optimizer)
    unmoor.save(tmp_path / "b.pt", model=frozen, optimizer=frozen_optimizer, rng=False)
    live = alike(6)
    live_optimizer = torch.optim.Adam(reversed(list(live.parameters())))
    report = unmoor.restore(tmp_path / "b.pt", model=live, optimizer=Wrapper(live_optimizer))
    assert "matched by name" in str(report)
    assert same_bits(moments(live, live_optimizer), moments(model, optimizer))
