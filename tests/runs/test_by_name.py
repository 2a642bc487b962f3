"""What a file carries of names, for unmoor and for plain torch, and names that differ by a prefix or a renaming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import unmoor
from tests.cases.files import refused, same_bits, train

from .named import LAYERS, alike, moments, run


def test_a_file_carries_the_names_beside_the_groups(tmp_path: Path) -> None:
    """The canonical names stand in the optimizer's state dict and in the manifest, also after torch saved it again."""
    model, optimizer = run()
    unmoor.save(tmp_path / "a.pt", model=model, optimizer=optimizer)
    assert unmoor.describe(tmp_path / "a.pt").manifest["roles"]["optimizer"]["names"] == list(LAYERS)
    tree = torch.load(tmp_path / "a.pt")
    assert tree["optimizer"]["param_names"] == [list(LAYERS)]
    torch.save(tree, tmp_path / "b.pt")
    live = alike(5)
    live_optimizer = torch.optim.Adam([live[2].weight, live[2].bias, live[0].weight, live[0].bias])
    report = unmoor.restore(tmp_path / "b.pt", model=live, optimizer=live_optimizer)
    assert "matched by name" in str(report)
    assert same_bits(moments(live, live_optimizer), moments(model, optimizer))


@pytest.mark.parametrize("saved_named", [False, True])
@pytest.mark.parametrize("live_named", [False, True])
def test_plain_torch_loads_the_file_and_takes_another_group(
    tmp_path: Path, saved_named: bool, live_named: bool
) -> None:
    """load_state_dict leaves no names in a live optimizer that had none; torch refuses another group where it does."""
    model = alike()
    optimizer = torch.optim.Adam(model.named_parameters() if saved_named else model.parameters())
    train(model, optimizer)
    unmoor.save(tmp_path / "a.pt", model=model, optimizer=optimizer)
    live = alike(5)
    live_optimizer = torch.optim.Adam(live.named_parameters() if live_named else live.parameters())
    live_optimizer.load_state_dict(torch.load(tmp_path / "a.pt")["optimizer"])
    assert same_bits(moments(live, live_optimizer), moments(model, optimizer))
    extra = nn.Parameter(torch.ones(2))
    if saved_named and not live_named:
        with pytest.raises(ValueError, match="cannot add param group without names"):
            live_optimizer.add_param_group({"params": [extra]})
    else:
        live_optimizer.add_param_group({"params": [("extra", extra)] if live_named else [extra]})


def test_a_restore_leaves_no_names_in_an_optimizer_without(tmp_path: Path) -> None:
    """A live optimizer keeps its own names, or none, whatever the file has."""
    model = alike()
    optimizer = torch.optim.Adam(model.named_parameters())
    train(model, optimizer)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "a.pt")
    live = alike(5)
    live_optimizer = torch.optim.Adam(live.parameters())
    unmoor.restore(tmp_path / "a.pt", model=live, optimizer=live_optimizer)
    assert "param_names" not in live_optimizer.param_groups[0]
    live_optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "net."])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("in_model", [False, True])
def test_names_under_a_prefix_are_proved(tmp_path: Path, prefix: str, frozen: bool, in_model: bool) -> None:
    """Names of an optimizer over a wrapped model find the bare parameters, also where some of those are frozen."""
    model = alike()
    optimizer = torch.optim.Adam([(prefix + name, parameter) for name, parameter in model.named_parameters()])
    train(model, optimizer)
    state = {(prefix if in_model else "") + name: tensor for name, tensor in model.state_dict().items()}
    torch.save({"model": state, "optimizer": optimizer.state_dict()}, tmp_path / "a.pt")
    live = alike(5)
    params = [live[2].bias, live[2].weight] + ([] if frozen else [live[0].weight, live[0].bias])
    live_optimizer = torch.optim.Adam(params)
    report = unmoor.restore(tmp_path / "a.pt", model=live, optimizer=live_optimizer)
    assert "matched by name" in str(report)
    own, theirs = moments(live, live_optimizer), moments(model, optimizer)
    assert same_bits([own[name] for name in LAYERS[2:]], [theirs[name] for name in LAYERS[2:]])
    assert [name for name in LAYERS if not own[name]] == (list(LAYERS[:2]) if frozen else [])


def test_names_that_fit_in_no_way_are_refused_with_both_sides(tmp_path: Path) -> None:
    """A prefix that only some names have is not cut off: the error shows both sides and the ways out."""
    model = alike()
    names = ["net.0.weight", "0x.bias", "net.2.weight", "2x.bias"]
    optimizer = torch.optim.Adam(list(zip(names, model.parameters(), strict=True)))
    train(model, optimizer)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "a.pt")
    live, live_optimizer = run(5)
    with refused(unmoor.MismatchError, live, live_optimizer) as caught:
        unmoor.restore(tmp_path / "a.pt", model=live, optimizer=live_optimizer)
    text = str(caught.value)
    assert "none of the 4 parameter names in the file (net.0.weight, 0x.bias and 2 more)" in text
    assert "is in the live optimizer (0.weight, 0.bias and 2 more)" in text
    assert "rename={...}" in text
    renamed = dict(zip(names, LAYERS, strict=True))
    unmoor.restore(tmp_path / "a.pt", model=live, optimizer=live_optimizer, rename=lambda name: renamed.get(name, name))
    assert same_bits(moments(live, live_optimizer), moments(model, optimizer))


class Block(nn.Module):
    """A submodule whose attribute bears a name of its own."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.add_module(name, nn.Linear(3, 3))


@pytest.mark.parametrize("with_model", [True, False])
@pytest.mark.parametrize(
    "rename", [{"*.attn.*": "*.attention.*"}, lambda name: name.replace(".attn.", ".attention.")], ids=["dict", "call"]
)
def test_a_renaming_holds_for_optimizers_too_and_within_names(tmp_path: Path, rename: Any, with_model: bool) -> None:
    """rename= takes patterns or a callable, in the middle of names, and speaks of optimizer state as well."""
    model = nn.Sequential(Block("attn"), Block("attn"))
    optimizer = torch.optim.Adam(model.named_parameters())
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape)
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "a.pt")
    live = nn.Sequential(Block("attention"), Block("attention"))
    live_optimizer = torch.optim.Adam(list(live.named_parameters())[::-1])
    roles = {"model": live} if with_model else {}
    report = unmoor.restore(tmp_path / "a.pt", optimizer=live_optimizer, rename=rename, **roles)
    assert "matched by name" in str(report)
    theirs = {name.replace("attn", "attention"): state for name, state in moments(model, optimizer).items()}
    assert same_bits(moments(live, live_optimizer), theirs)


def test_a_renaming_of_two_names_to_one_lists_both(tmp_path: Path) -> None:
    """A rename= that is not one to one is refused with the two saved names."""
    torch.save({"a.w": torch.ones(2), "b.w": torch.ones(2)}, tmp_path / "a.pt")
    live = {"w": torch.zeros(2)}
    with pytest.raises(unmoor.MismatchError, match=r"'a\.w' and 'b\.w' the same name 'w'"):
        unmoor.restore(tmp_path / "a.pt", model=live, rename={"a.": "", "b.": ""})
    assert not live["w"].any()
