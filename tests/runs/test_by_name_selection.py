"""only= and skip=: what is chosen is restored, what is left out is left alone on both sides and told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import unmoor
from tests.cases.files import bits, refused, same_bits, train

from .named import LAYERS, alike, moments, run


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, nn.Sequential, torch.optim.Adam]:
    model, optimizer = run(lr=0.03)
    unmoor.save(tmp_path / "a.pt", model=model, optimizer=optimizer)
    return tmp_path / "a.pt", model, optimizer


CHOICES = {
    "only a layer": ({"only": "0.*"}, {"0.weight", "0.bias"}, {"0.weight", "0.bias"}),
    "only, labelled": ({"only": ["model.0.*"]}, {"0.weight", "0.bias"}, {"0.weight", "0.bias"}),
    "skip a tensor": ({"skip": "2.bias"}, set(LAYERS) - {"2.bias"}, set(LAYERS) - {"2.bias"}),
    "skip by the end": ({"skip": ["*.bias"]}, {"0.weight", "2.weight"}, {"0.weight", "2.weight"}),
    "only but": ({"only": "2.*", "skip": "2.bias"}, {"2.weight"}, {"2.weight"}),
    "skip of the optimizer": ({"skip": "optimizer.0.*"}, set(LAYERS), {"2.weight", "2.bias"}),
    "only the optimizer": ({"only": "optimizer.*"}, set(), set(LAYERS)),
    "only the model's and some state": ({"only": ["*.weight", "optimizer.0.bias"]}, {"0.weight", "2.weight"},
                                        {"0.weight", "2.weight", "0.bias"}),
    "everything": ({"only": "*"}, set(LAYERS), set(LAYERS)),
}  # fmt: skip


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("own_state", [True, False], ids=["stepped", "fresh"])
def test_what_is_left_out_is_left_alone_on_both_sides(
    saved: tuple[Path, nn.Sequential, torch.optim.Adam], choice: str, own_state: bool
) -> None:
    """Tensors and optimizer state that are chosen become the file's; the others keep every bit, and are told."""
    path, model, optimizer = saved
    arguments, tensors, states = CHOICES[choice]
    live = alike(5)
    live_optimizer = torch.optim.Adam(live.parameters())
    if own_state:
        train(live, live_optimizer, 2)
    before, before_state = bits(dict(live.state_dict())), bits(moments(live, live_optimizer))
    report = unmoor.restore(path, model=live, optimizer=live_optimizer, rng=False, **arguments)
    own, theirs = bits(moments(live, live_optimizer)), bits(moments(model, optimizer))
    assert own == {name: (theirs if name in states else before_state)[name] for name in LAYERS}
    after = bits(dict(live.state_dict()))
    assert after == {name: (bits(dict(model.state_dict())) if name in tensors else before)[name] for name in LAYERS}
    told = {(c.label, c.name) for c in report.not_restored if c.before.startswith("left out by")}
    whole = {("model", "")} if not tensors else {("model", name) for name in set(LAYERS) - tensors}
    assert told == whole | {("optimizer", name) for name in set(LAYERS) - states}
    train(live, live_optimizer, 1)


def test_an_optimizer_that_loads_by_itself_keeps_what_is_left_out(
    saved: tuple[Path, nn.Sequential, torch.optim.Adam],
) -> None:
    """A class with a load_state_dict of its own is handed the chosen state and its present one for the rest."""
    path, model, optimizer = saved

    class Own(torch.optim.Adam):
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            super().load_state_dict(state_dict)

    live = alike(5)
    live_optimizer = Own(live.parameters())
    train(live, live_optimizer, 2)
    before = bits(moments(live, live_optimizer))
    unmoor.restore(path, model=live, optimizer=live_optimizer, only="2.*")
    own, theirs = bits(moments(live, live_optimizer)), bits(moments(model, optimizer))
    assert own == {name: (theirs if name.startswith("2.") else before)[name] for name in LAYERS}


def test_a_group_that_is_left_out_whole_keeps_its_options(tmp_path: Path) -> None:
    """Options follow the parameters that are restored: a group of none of them is left alone."""
    model = alike()
    optimizer = torch.optim.Adam(
        [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters(), "lr": 0.2}]
    )
    train(model, optimizer)
    unmoor.save(tmp_path / "a.pt", model=model, optimizer=optimizer)
    live = alike(5)
    live_optimizer = torch.optim.Adam([{"params": live[0].parameters()}, {"params": live[2].parameters()}], lr=0.9)
    unmoor.restore(tmp_path / "a.pt", model=live, optimizer=live_optimizer, skip="0.*")
    assert [group["lr"] for group in live_optimizer.param_groups] == [0.9, 0.2]


def test_what_does_not_fit_can_be_left_out(saved: tuple[Path, nn.Sequential, torch.optim.Adam]) -> None:
    """With only=, a head of another shape, one that the file lacks and one that it has in vain do not matter."""
    path, model, _ = saved
    for head in (nn.Linear(3, 7), None):
        live = nn.Sequential(alike(5)[0], nn.ReLU(), *([head] if head else []), nn.Linear(4, 4))
        live_optimizer = torch.optim.Adam(live.parameters())
        with refused(unmoor.MismatchError, live, live_optimizer):
            unmoor.restore(path, model=live, optimizer=live_optimizer)
        report = unmoor.restore(path, model=live, optimizer=live_optimizer, only="0.*")
        assert same_bits(live[0].state_dict(), model[0].state_dict())
        assert not report.unexpected
        assert not report.missing


def pair(seed: int = 5) -> dict[str, nn.Sequential]:
    return {"gen": alike(seed), "disc": alike(seed + 1)}


def test_labels_tell_one_model_from_another(tmp_path: Path) -> None:
    """With several models the label stands in front; a pattern that fits in two of them is refused with both."""
    models = pair(0)
    optimizer = torch.optim.Adam([p for model in models.values() for p in model.parameters()])
    for model in models.values():
        train(model, optimizer)
    unmoor.save(tmp_path / "a.pt", model=models, optimizer=optimizer)
    live = pair()
    live_optimizer = torch.optim.Adam([p for model in live.values() for p in model.parameters()])
    with refused(unmoor.AmbiguousError, *live.values(), live_optimizer) as caught:
        unmoor.restore(tmp_path / "a.pt", model=live, optimizer=live_optimizer, only="0.*")
    assert "only='0.*' could mean model[gen].0.* or model[disc].0.*" in str(caught.value)
    disc = bits(dict(live["disc"].state_dict()))
    unmoor.restore(tmp_path / "a.pt", model=live, optimizer=live_optimizer, only="model[gen].0.*", rng=False)
    assert same_bits(live["gen"][0].state_dict(), models["gen"][0].state_dict())
    assert bits(dict(live["disc"].state_dict())) == disc
    assert same_bits(moments(live["gen"], live_optimizer)["0.weight"], moments(models["gen"], optimizer)["0.weight"])
    assert not any(moments(live["disc"], live_optimizer).values())
    unmoor.restore(tmp_path / "a.pt", model=live, optimizer=live_optimizer, only="optimizer.model[disc].2.*", rng=False)
    assert [name for name, state in moments(live["disc"], live_optimizer).items() if state] == ["2.weight", "2.bias"]
    assert bits(dict(live["disc"].state_dict())) == disc


class Inner(nn.Module):
    """A model with a submodule called `model`, as its own label is."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(2, 2)
        self.head = nn.Linear(2, 2)


WRONG = {
    "never matching": ({"only": "encoder.*"}, "only='encoder.*' chooses nothing of the live run", "names there are: "),
    "a module's name": ({"skip": "head"}, "skip='head' is the name of no tensor", "skip='head.*' is all below it"),
    "a name nearly": ({"only": "haed.weight"}, "only='haed.weight' chooses nothing", "head.weight"),
    "label or name": (
        {"only": "model.*"},
        "only='model.*' could mean model.model.* or model.*",
        "put the label in front",
    ),
    "brackets are brackets": ({"only": "model[01].*"}, "only='model[01].*' chooses nothing", "names there are: "),
    "a role without names": ({"skip": "scheduler.*"}, "skip='scheduler.*' chooses nothing", "names there are: "),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_pattern_without_one_meaning_is_refused(tmp_path: Path, kind: str) -> None:
    """A pattern that chooses nothing, or that could be meant in two ways, is an error with the names that are near."""
    arguments, message, remedy = WRONG[kind]
    model = Inner()
    unmoor.save(tmp_path / "a.pt", model=model)
    with refused(unmoor.AmbiguousError if "could mean" in message else unmoor.MismatchError, model) as caught:
        unmoor.restore(tmp_path / "a.pt", model=model, **arguments)
    assert message in str(caught.value)
    assert remedy in str(caught.value)


@pytest.mark.parametrize("value", [[], [1], 3, "", {"a": "b"}], ids=repr)
def test_what_is_no_pattern_is_refused_before_a_byte_is_read(tmp_path: Path, value: Any) -> None:
    """only= takes one pattern or a list of them."""
    with pytest.raises(unmoor.UsageError, match="only="):
        unmoor.restore(tmp_path / "missing.pt", model=alike(), only=value)


def test_tied_weights_are_chosen_together(tmp_path: Path) -> None:
    """One memory under two names cannot be restored and left alone at once."""
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    unmoor.save(tmp_path / "a.pt", model=model)
    with refused(unmoor.AmbiguousError, model) as caught:
        unmoor.restore(tmp_path / "a.pt", model=model, skip="1.weight")
    assert "0.weight and 1.weight are one tensor" in str(caught.value)


def test_parameters_without_names_cannot_be_chosen(saved: tuple[Path, nn.Sequential, torch.optim.Adam]) -> None:
    """An optimizer that is passed without its model has nothing that a pattern could name, unless torch named it."""
    path, model, optimizer = saved
    live = alike(5)
    nameless = torch.optim.Adam(live.parameters())
    with refused(unmoor.MismatchError, live, nameless) as caught:
        unmoor.restore(path, optimizer=nameless, only="0.*")
    assert "4 of its parameters have no name" in str(caught.value)
    assert "pass model= as well" in str(caught.value)
    named = torch.optim.Adam(live.named_parameters())
    unmoor.restore(path, optimizer=named, only="0.*")
    own, theirs = moments(live, named), moments(model, optimizer)
    assert same_bits(own["0.weight"], theirs["0.weight"])
    assert own["2.weight"] == {}
