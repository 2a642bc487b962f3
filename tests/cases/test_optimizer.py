"""Optimizer state: to its own parameter, in its own dtype, of its own class, and nothing invented."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import unmoor
from unmoor.values.optimizers import FAMILIES

from .files import SGD, bits, refused, same_bits, saved_run, tiny, train, trained


class Pair(nn.Module):
    """Layers of one shape, listed in the order in which their names are given and run in the order of their names."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        for seed, name in enumerate(names):
            layer = nn.Linear(3, 3, bias=False)
            layer.weight.data.copy_(tiny(seed, sizes=(3, 3, 3))[0].weight.data)
            self.add_module(name, layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _, layer in sorted(self.named_children()):
            x = layer(x)
        return x


def _pair(path: Path, *, named: bool) -> tuple[Pair, torch.optim.Optimizer]:
    """A trained pair p1, p2, saved to `path` with or without the names of its parameters."""
    model = Pair("p1", "p2")
    optimizer = torch.optim.Adam(model.named_parameters() if named else model.parameters())
    train(model, optimizer)
    saved_run(path, model, optimizer, lambda keys: None)
    return model, optimizer


def _moments(model: Any, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    return {name: optimizer.state[parameter]["exp_avg"] for name, parameter in model.named_parameters()}


def test_fp32_moments_of_bf16_parameters_keep_every_bit(tmp_path: Path) -> None:
    """C14: state comes back in the dtype it was saved in, bit for bit, however narrow its parameter is."""
    model = tiny(dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer)
    for state in optimizer.state.values():
        for key in ("exp_avg", "exp_avg_sq"):
            state[key] = torch.linspace(1e-4, 1e-3, state[key].numel()).reshape(state[key].shape)
    path = saved_run(tmp_path / "ck.pt", model, optimizer)
    live = tiny(5, dtype=torch.bfloat16)
    live_optimizer = torch.optim.AdamW(live.parameters())
    report = unmoor.restore(path, model=live, optimizer=live_optimizer)
    assert {t.dtype for s in live_optimizer.state.values() for t in s.values()} == {torch.float32}
    assert same_bits(live_optimizer.state_dict(), optimizer.state_dict())
    assert report.cast == ()


@pytest.mark.parametrize("options", [{}, {"foreach": False}, {"fused": True}], ids=str)
@pytest.mark.parametrize(
    ("saved", "live", "cast"),
    [
        (torch.float32, torch.float64, "exact"),
        (torch.bfloat16, torch.float32, "exact"),
        (torch.float32, torch.bfloat16, "any"),
    ],
    ids=str,
)
def test_state_in_the_dtype_of_its_parameter_follows_it_to_another(
    tmp_path: Path, saved: torch.dtype, live: torch.dtype, cast: str, options: dict[str, Any]
) -> None:
    """C13: where the model changes its dtype, state that had the parameter's dtype goes along, and training goes on."""
    model = tiny(dtype=saved)
    optimizer = torch.optim.Adam(model.parameters(), **options)
    train(model, optimizer)
    path = saved_run(tmp_path / "ck.pt", model, optimizer)
    other = tiny(5, dtype=live)
    other_optimizer = torch.optim.Adam(other.parameters(), **options)
    report = unmoor.restore(path, model=other, optimizer=other_optimizer, cast=cast)
    for parameter, state in zip(optimizer.param_groups[0]["params"], other_optimizer.state.values(), strict=True):
        expected = optimizer.state[parameter]
        assert same_bits(state["exp_avg"], expected["exp_avg"].to(live))
        assert same_bits(state["step"], expected["step"])
    assert len(report.cast) == 12
    train(other, other_optimizer, 1)


def test_moments_are_not_rounded_unless_asked(tmp_path: Path) -> None:
    """C14: state that would lose digits with its parameter's new dtype is refused, with the word that allows it."""
    path = saved_run(tmp_path / "ck.pt", *trained())
    model = tiny(5, dtype=torch.bfloat16)
    optimizer = torch.optim.Adam(model.parameters())
    with refused(unmoor.MismatchError, model, optimizer) as caught:
        unmoor.restore(path, model=model, optimizer=optimizer)
    text = str(caught.value)
    assert "0.weight" in text
    assert "saved float32, live bfloat16: values would be rounded" in text
    assert 'cast="any"' in text


@pytest.mark.parametrize("live_named", [True, False])
def test_state_follows_stored_names_when_layers_changed_places(tmp_path: Path, live_named: bool) -> None:
    """C16: with param_names in the file each layer gets its own moments, whatever the order of the new code."""
    model, optimizer = _pair(tmp_path / "ck.pt", named=True)
    live = Pair("p2", "p1")
    live_optimizer = torch.optim.Adam(live.named_parameters() if live_named else live.parameters())
    report = unmoor.restore(tmp_path / "ck.pt", model=live, optimizer=live_optimizer)
    assert "matched by name" in str(report)
    assert bits(_moments(live, live_optimizer)) == bits(_moments(model, optimizer))


def test_names_of_unmoors_own_files_need_no_names_in_the_optimizer(tmp_path: Path) -> None:
    """C16: unmoor.save records the names, so layers that changed places get their own moments."""
    model, optimizer = _pair(tmp_path / "theirs.pt", named=False)
    unmoor.save(tmp_path / "ours.pt", model=model, optimizer=optimizer)
    live = Pair("p2", "p1")
    live_optimizer = torch.optim.Adam(live.parameters())
    unmoor.restore(tmp_path / "ours.pt", model=live, optimizer=live_optimizer)
    assert bits(_moments(live, live_optimizer)) == bits(_moments(model, optimizer))


def test_refuses_two_orders_that_nothing_decides(tmp_path: Path) -> None:
    """C16: without names, a model that lists its layers in another order than the live one is refused, both shown."""
    _pair(tmp_path / "ck.pt", named=False)
    model = Pair("p2", "p1")
    optimizer = torch.optim.Adam(model.parameters())
    with refused(unmoor.AmbiguousError, model, optimizer) as caught:
        unmoor.restore(tmp_path / "ck.pt", model=model, optimizer=optimizer)
    text = str(caught.value)
    assert "its model lists 2 of 2 parameters in another order than the live optimizer" in text
    assert "p2.weight: state 0 by live order, 1 by the file's" in text
    assert "p1.weight: state 1 by live order, 0 by the file's" in text
    assert 'order="live" or order="file" says which' in text


@pytest.mark.parametrize(("order", "own"), [("file", True), ("live", False)])
def test_the_caller_can_say_which_order_holds(tmp_path: Path, order: str, own: bool) -> None:
    """C16: order="file" gives each layer its own moments here, order="live" those at its position, as asked."""
    model, optimizer = _pair(tmp_path / "ck.pt", named=False)
    live = Pair("p2", "p1")
    live_optimizer = torch.optim.Adam(live.parameters())
    report = unmoor.restore(tmp_path / "ck.pt", model=live, optimizer=live_optimizer, order=order)
    got, saved = _moments(live, live_optimizer), _moments(model, optimizer)
    other = {"p1.weight": saved["p2.weight"], "p2.weight": saved["p1.weight"]}
    assert bits(got) == bits(saved if own else other)
    assert ("file's own model" if own else "as asked") in str(report)


def test_an_order_of_the_optimizers_own_is_no_reordering(tmp_path: Path) -> None:
    """C16: an optimizer built over its layers from last to first is resumed as it is: the model did not change."""
    model = Pair("p1", "p2")
    optimizer = torch.optim.Adam([model.p2.weight, model.p1.weight])
    train(model, optimizer)
    path = saved_run(tmp_path / "ck.pt", model, optimizer)
    live = Pair("p1", "p2")
    live_optimizer = torch.optim.Adam([live.p2.weight, live.p1.weight])
    unmoor.restore(path, model=live, optimizer=live_optimizer)
    assert bits(_moments(live, live_optimizer)) == bits(_moments(model, optimizer))


def test_layers_that_changed_places_are_seen_within_each_group(tmp_path: Path) -> None:
    """C16: with several groups, each with its learning rate, a new order within one of them is refused as well."""
    model, live = Pair("p1", "p2", "head"), Pair("p2", "p1", "head")
    optimizer, live_optimizer = (_two_groups(m) for m in (model, live))
    train(model, optimizer)
    path = saved_run(tmp_path / "ck.pt", model, optimizer)
    with refused(unmoor.AmbiguousError, live, live_optimizer) as caught:
        unmoor.restore(path, model=live, optimizer=live_optimizer)
    assert "its model lists 2 of 3 parameters in another order" in str(caught.value)
    unmoor.restore(path, model=live, optimizer=live_optimizer, order="file")
    assert bits(_moments(live, live_optimizer)) == bits(_moments(model, optimizer))


def _two_groups(model: Pair) -> torch.optim.Optimizer:
    layers = [layer.weight for name, layer in model.named_children() if name != "head"]
    return torch.optim.Adam([{"params": layers}, {"params": [model.head.weight], "lr": 0.1}])


def test_an_order_that_the_file_cannot_tell_is_not_taken_for_granted(tmp_path: Path) -> None:
    """C16: order="file" without a model in the file to tell the order is refused, not quietly the live order."""
    model, optimizer = _pair(tmp_path / "ck.pt", named=False)
    torch.save(optimizer.state_dict(), tmp_path / "opt.pt")
    live_optimizer = torch.optim.Adam(model.parameters())
    with refused(unmoor.MismatchError, model, live_optimizer) as caught:
        unmoor.restore(tmp_path / "opt.pt", optimizer=live_optimizer, order="file")
    assert 'order="file"' in str(caught.value)


def test_an_order_that_only_shapes_could_prove_is_a_warning_where_they_do_not(tmp_path: Path) -> None:
    """C16: an optimizer restored without its model, two of whose parameters have one shape, is warned about."""
    _pair(tmp_path / "ck.pt", named=False)
    live = Pair("p2", "p1")
    report = unmoor.restore(tmp_path / "ck.pt", optimizer=torch.optim.Adam(live.parameters()))
    found = {finding.code: finding for finding in report.findings}["order-not-proved"]
    assert found.severity == "warning"
    assert found.place == "optimizer"
    assert "2 of 2 parameters" in found.message
    assert "pass model=" in found.remedy
    assert "order-not-proved" not in [f.code for f in _restore_distinct(tmp_path).findings]


def _restore_distinct(folder: Path) -> unmoor.Report:
    path = saved_run(folder / "distinct.pt", *trained())
    return unmoor.restore(path, optimizer=torch.optim.Adam(tiny(5).parameters()))


@pytest.mark.parametrize(
    ("hyperparameters", "lr", "weight_decay"), [("live", 3e-5, 0.0), ("saved", 1e-3, 0.1)], ids=["live", "saved"]
)
def test_each_option_that_differs_is_told_and_the_chosen_side_wins(
    tmp_path: Path, hyperparameters: str, lr: float, weight_decay: float
) -> None:
    """C19: new options stay with hyperparameters="live"; either way moments arrive and each difference is printed."""
    model, optimizer = trained(make=torch.optim.AdamW, lr=1e-3, weight_decay=0.1)
    path = saved_run(tmp_path / "ck.pt", model, optimizer)
    live = tiny(5)
    live_optimizer = torch.optim.AdamW(live.parameters(), lr=3e-5, weight_decay=0.0, foreach=False)
    report = unmoor.restore(path, model=live, optimizer=live_optimizer, hyperparameters=hyperparameters)
    group = live_optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"], group["foreach"]) == (lr, weight_decay, False)
    assert same_bits(live_optimizer.state_dict()["state"], optimizer.state_dict()["state"])
    text = str(report)
    if hyperparameters == "live":
        assert "lr=3e-05 (the file: 0.001)" in text
        assert "weight_decay=0 (the file: 0.1)" in text
    else:
        assert "lr 3e-05 -> 0.001" in text
        assert "weight_decay 0 -> 0.1" in text
    assert "foreach=False (the file: None)" in text


def test_refuses_another_class_and_names_what_both_keep(tmp_path: Path) -> None:
    """C20: an Adam's file for an SGD is refused before anything changes, with the state and options of both."""
    torch.save(trained()[1].state_dict(), tmp_path / "adam.pt")
    live, sgd = trained(**SGD)
    with refused(unmoor.MismatchError, live, sgd) as caught:
        unmoor.restore(tmp_path / "adam.pt", optimizer=sgd)
    text = str(caught.value)
    assert "Adam-like state (exp_avg, exp_avg_sq, step; options amsgrad, betas)" in text
    assert "the live optimizer is SGD (needs momentum_buffer; options momentum, dampening, nesterov)" in text
    assert "optimizer=None starts it fresh" in text


def _makers() -> dict[str, Any]:
    options = {"SGD": {"lr": 0.1, "momentum": 0.9}, "Muon": {"lr": 0.1}, "SparseAdam": {"lr": 0.1}}
    names = [name for name in FAMILIES if name not in ("LBFGS", "SparseAdam", "Muon")]
    return {name: (getattr(torch.optim, name), options.get(name, {})) for name in names if hasattr(torch.optim, name)}


MAKERS = _makers()


@pytest.fixture(scope="module")
def one_file_a_class(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("classes")
    found = {}
    for name, (make, options) in MAKERS.items():
        torch.save(trained(make=make, **options)[1].state_dict(), folder / f"{name}.pt")
        found[name] = folder / f"{name}.pt"
    return found


@pytest.mark.parametrize(("saved", "live"), list(itertools.permutations(MAKERS, 2)))
def test_no_class_takes_the_state_of_another(one_file_a_class: dict[str, Path], saved: str, live: str) -> None:
    """C20: every optimizer class refuses the state of every other, naming both, with nothing changed."""
    make, options = MAKERS[live]
    model, optimizer = trained(make=make, **options)
    with refused(unmoor.MismatchError, model, optimizer) as caught:
        unmoor.restore(one_file_a_class[saved], optimizer=optimizer)
    assert f"{saved}-like" in str(caught.value)
    assert f"the live optimizer is {live}" in str(caught.value)


def test_an_entry_that_lacks_part_of_its_state_is_refused(tmp_path: Path) -> None:
    """C20: a parameter whose saved state lacks what the class needs is named with it; nothing is made up."""
    model, optimizer = trained()
    state = optimizer.state_dict()
    state["state"][2] = {key: value for key, value in state["state"][2].items() if key != "exp_avg_sq"}
    torch.save({"model": model.state_dict(), "optimizer": state}, tmp_path / "ck.pt")
    live, live_optimizer = trained(5)
    with refused(unmoor.MismatchError, live, live_optimizer) as caught:
        unmoor.restore(tmp_path / "ck.pt", model=live, optimizer=live_optimizer)
    assert "the saved state of 2.weight lacks exp_avg_sq, which Adam needs" in str(caught.value)


class Picky(torch.optim.Adam):
    """An optimizer that looks at its state once it has been given, and does not take it."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        if self.state:
            raise KeyError("warmup")
        super().__setstate__(state)


def test_a_class_that_refuses_its_state_is_named_with_what_had_changed(tmp_path: Path) -> None:
    """C20: what a class of the caller's own raises is told in words, with what was overwritten by then."""
    path = saved_run(tmp_path / "ck.pt", *trained())
    model = tiny(5)
    with pytest.raises(unmoor.RestoreError) as caught:
        unmoor.restore(path, model=model, optimizer=Picky(model.parameters()))
    text = str(caught.value)
    assert "optimizer: Picky refused the saved state" in text
    assert "KeyError: 'warmup'" in text
    assert "already overwritten: model (all)" in text


def test_a_class_without_state_is_told_from_another_by_its_options(tmp_path: Path) -> None:
    """C20: a file of plain SGD, which keeps no state at all, is refused by Adam for its options."""
    torch.save(trained(make=torch.optim.SGD, lr=0.1)[1].state_dict(), tmp_path / "sgd.pt")
    model, optimizer = trained()
    with refused(unmoor.MismatchError, model, optimizer) as caught:
        unmoor.restore(tmp_path / "sgd.pt", optimizer=optimizer)
    assert "SGD-like state (empty; options dampening, momentum, nesterov)" in str(caught.value)


def _lazy(path: Path) -> dict[str, Any]:
    """SGD with momentum for parameters 2 and 3, None for 0 and nothing at all for 1."""
    model = tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model[0].requires_grad_(False)
    train(model, optimizer, 1)
    state = optimizer.state_dict()
    state["state"][0] = {"momentum_buffer": None}
    torch.save(state, path)
    return state


def test_state_that_does_not_exist_is_not_invented(tmp_path: Path) -> None:
    """C22: parameters without state stay without, None stays None, and a state that was there is not kept."""
    saved = _lazy(tmp_path / "sgd.pt")
    model, optimizer = trained(**SGD)
    report = unmoor.restore(tmp_path / "sgd.pt", optimizer=optimizer)
    first, second, third, fourth = model.parameters()
    assert optimizer.state[first] == {"momentum_buffer": None}
    assert second not in optimizer.state
    assert same_bits(optimizer.state[third], saved["state"][2])
    assert same_bits(optimizer.state[fourth], saved["state"][3])
    assert "state for 2 of 4 parameters" in str(report)
    assert "2 parameters had no state when it was saved" in " ".join(str(report).split())
    train(model, optimizer, 1)


def test_describing_counts_the_parameters_that_have_state(tmp_path: Path) -> None:
    """C22: an entry that holds nothing but None is not counted as state."""
    _lazy(tmp_path / "sgd.pt")
    part = next(unmoor.describe(tmp_path / "sgd.pt").part("optimizer"))
    assert (part.detail["with_state"], part.detail["params"], part.detail["family"]) == (2, 4, "SGD")


def test_an_optimizer_that_keeps_no_state_comes_back_without(tmp_path: Path) -> None:
    """C22: a file of SGD without momentum leaves no momentum behind in a live one that had some."""
    torch.save(trained(make=torch.optim.SGD, lr=0.1)[1].state_dict(), tmp_path / "sgd.pt")
    model, optimizer = trained(**SGD)
    report = unmoor.restore(tmp_path / "sgd.pt", optimizer=optimizer)
    assert not optimizer.state
    assert "momentum 0.9 -> 0" in str(report)
    train(model, optimizer, 1)
