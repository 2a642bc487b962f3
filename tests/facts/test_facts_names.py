"""What torch does today with names and kinds, shown by doing it, and what unmoor does and says instead."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import unmoor
from tests.cases.files import refused, same_bits, tiny, train, trained
from tests.cases.test_optimizer import Pair


def _moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    return {name: optimizer.state[parameter]["exp_avg"] for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("named", [True, False], ids=["named_parameters", "parameters"])
def test_f4_two_layers_that_changed_places_keep_their_own_moments(tmp_path: Path, named: bool) -> None:
    """F4: where two parameters of one shape change places torch swaps their moments, param_names in the file or not."""

    def make(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.named_parameters() if named else model.parameters())

    model = Pair("p1", "p2")
    optimizer = make(model)
    train(model, optimizer)
    own = _moments(model, optimizer)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "run.pt")

    plain = Pair("p2", "p1")
    plain_optimizer = make(plain)
    plain_optimizer.load_state_dict(torch.load(tmp_path / "run.pt")["optimizer"])
    swapped = _moments(plain, plain_optimizer)
    assert torch.equal(swapped["p1.weight"], own["p2.weight"])
    assert torch.equal(swapped["p2.weight"], own["p1.weight"])

    live = Pair("p2", "p1")
    live_optimizer = make(live)
    if named:
        unmoor.restore(tmp_path / "run.pt", model=live, optimizer=live_optimizer)
        assert same_bits(_moments(live, live_optimizer), own)
        return
    with refused(unmoor.AmbiguousError, live, live_optimizer) as caught:
        unmoor.restore(tmp_path / "run.pt", model=live, optimizer=live_optimizer)
    assert "the file holds no names, and its model lists 2 of 2 parameters in another order" in str(caught.value)
    assert 'order="live" or order="file" says which' in str(caught.value)


def test_f6_a_model_or_a_whole_checkpoint_given_to_an_optimizer_is_named(tmp_path: Path) -> None:
    """F6: torch answers a model state dict, or a whole checkpoint, in the optimizer's place with KeyError."""
    model, optimizer = trained()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "run.pt")
    for name in ("model.pt", "run.pt"):
        with pytest.raises(KeyError, match="'param_groups'"):
            trained(5)[1].load_state_dict(torch.load(tmp_path / name))

    live, live_optimizer = trained(5)
    with refused(unmoor.KindError, live, live_optimizer) as caught:
        unmoor.restore(tmp_path / "model.pt", optimizer=live_optimizer)
    text = str(caught.value)
    assert "optimizer= was given" in text
    assert "holds a model state dict (4 tensors such as 0.weight" in text
    assert "a dict with 'state' and 'param_groups'" in text
    unmoor.restore(tmp_path / "run.pt", optimizer=live_optimizer)
    assert same_bits(live_optimizer.state_dict()["state"], optimizer.state_dict()["state"])


def test_f7_a_prefix_is_proved_and_taken_off_or_told_with_its_remedy(tmp_path: Path) -> None:
    """F7: under `module.` torch loads nothing without a word (strict=False), or lists keys and names no cause."""
    saved = tiny()
    torch.save({f"module.{name}": tensor for name, tensor in saved.state_dict().items()}, tmp_path / "ddp.pt")
    plain = tiny(5)
    plain.load_state_dict(torch.load(tmp_path / "ddp.pt"), strict=False)
    assert same_bits(plain.state_dict(), tiny(5).state_dict())
    with pytest.raises(RuntimeError, match=r"Missing key\(s\)") as keys:
        plain.load_state_dict(torch.load(tmp_path / "ddp.pt"))
    assert "prefix" not in str(keys.value)

    live = tiny(5)
    report = unmoor.restore(tmp_path / "ddp.pt", model=live)
    assert same_bits(live.state_dict(), saved.state_dict())
    assert "4 of 4 names match without 'module.'" in str(report)
    larger = tiny(5).append(nn.Linear(2, 2))
    with refused(unmoor.MismatchError, larger) as caught:
        unmoor.restore(tmp_path / "ddp.pt", model=larger, missing="fresh")
    assert "saved names without 'module.' fit the live ones (4 of 6 with their shapes)" in str(caught.value)
    assert "rename={'module.': ''}" in str(caught.value)


class Tied(nn.Module):
    """An embedding and a head on one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


def _step(model: Tied, optimizer: torch.optim.Optimizer) -> None:
    model.head(model.embed(torch.arange(5))).pow(2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_f10_weights_stay_tied_and_the_optimizer_keeps_its_parameters(tmp_path: Path) -> None:
    """F10: load_state_dict(assign=True) unties tied weights and leaves the optimizer with parameters of nobody."""
    model = Tied()
    optimizer = torch.optim.Adam(model.parameters())
    _step(model, optimizer)
    copies = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.save({"model": copies, "optimizer": optimizer.state_dict()}, tmp_path / "run.pt")

    plain = Tied()
    plain_optimizer = torch.optim.Adam(plain.parameters())
    plain.load_state_dict(torch.load(tmp_path / "run.pt")["model"], assign=True)
    assert plain.embed.weight is not plain.head.weight
    held = plain_optimizer.param_groups[0]["params"]
    assert not any(held[0] is parameter for parameter in plain.parameters())

    live = Tied()
    live_optimizer = torch.optim.Adam(live.parameters())
    unmoor.restore(tmp_path / "run.pt", model=live, optimizer=live_optimizer)
    assert live.embed.weight is live.head.weight is live_optimizer.param_groups[0]["params"][0]
    for run in ((model, optimizer), (live, live_optimizer)):
        _step(*run)
    assert same_bits(live.state_dict(), model.state_dict())
    with refused(unmoor.MismatchError, plain, plain_optimizer) as caught:
        unmoor.restore(tmp_path / "run.pt", model=plain, optimizer=plain_optimizer)
    assert "optimizer holds 1 tensors that are not in the model" in str(caught.value)
    assert "build the model, then .to(device), then the optimizer" in str(caught.value)


def test_f11_nothing_is_rounded_unless_asked(tmp_path: Path) -> None:
    """F11: a float32 file into a float16 model is narrowed by torch without a word."""
    saved = tiny()
    torch.save(saved.state_dict(), tmp_path / "model.pt")
    plain = tiny(5, dtype=torch.float16)
    plain.load_state_dict(torch.load(tmp_path / "model.pt"))
    assert not torch.equal(plain[0].weight.float(), saved[0].weight)

    live = tiny(5, dtype=torch.float16)
    with refused(unmoor.MismatchError, live) as caught:
        unmoor.restore(tmp_path / "model.pt", model=live)
    text = str(caught.value)
    assert "0.weight" in text
    assert "saved float32, live float16: values would be rounded" in text
    assert 'cast="any" allows it' in text
    report = unmoor.restore(tmp_path / "model.pt", model=live, cast="any")
    assert len(report.cast) == 4
    assert torch.equal(live[0].weight, saved[0].weight.half())
