"""Optimizers of other packages, resumed bit for bit; what no file without code can hold is named, never half moved."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

import unmoor
from tests.cases.files import nothing_changes, refused, tiny, train

from .carriers import Unmoor
from .optimizer_others import PACKAGES, rows, shapes_of
from .optimizers import COLUMNS, cells, judge
from .report import failures, table

HELPERS = {"ScalableShampoo": "pre_conditioner"}
"""Classes that keep objects of their package in their state, and the key that holds one."""


def package_rows(name):
    pytest.importorskip(name, reason=f"{name} is not installed")
    return rows(name)


def eager(package):
    """The CPU steps of bitsandbytes are compiled for each shape and dtype: minutes that tell nothing of a restore."""
    return torch.compiler.set_stance("force_eager") if package == "bitsandbytes" else nullcontext()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("package", PACKAGES)
def test_resumes_bit_for_bit(sim, tmp_path, package):
    """Laws 2 and 5: state in lists, dicts, groups, base optimizers and attributes comes back as the class had it."""
    outcomes = []
    with eager(package):
        for name, make in package_rows(package).items():
            if name not in HELPERS:
                outcomes += judge(Unmoor(), cells(name, make, [{}], shapes_of(package)), tmp_path)
    print(table(outcomes, head=package, columns=COLUMNS))
    assert not failures(outcomes)
    names = {o.row for o in outcomes if o.verdict == "equal" and o.column == "cpu > cpu"}
    assert names == {name for name in rows(package) if name not in HELPERS}


@pytest.mark.parametrize("name", HELPERS)
def test_state_that_is_an_object_is_named_before_anything_is_written(tmp_path, name):
    """Objects of another package are not saved as code: the error names each place and class, and no file is there."""
    model = tiny()
    optimizer = package_rows("pytorch_optimizer")[name](model.parameters())
    train(model, optimizer)
    with pytest.raises(unmoor.UsageError) as caught:
        unmoor.save(tmp_path / "run.pt", model=model, optimizer=optimizer)
    assert f"optimizer.state.0.{HELPERS[name]}: pytorch_optimizer." in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", HELPERS)
def test_a_file_with_such_objects_is_refused_with_nothing_changed(tmp_path, name):
    """What torch.save wrote of such objects is not built on the way into a live optimizer: their classes are named."""
    model = tiny()
    make = package_rows("pytorch_optimizer")[name]
    optimizer = make(model.parameters())
    train(model, optimizer)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "run.pt")
    live = tiny(5)
    with refused(unmoor.MismatchError, live) as caught:
        unmoor.restore(tmp_path / "run.pt", model=live, optimizer=make(live.parameters()))
    assert "holds objects of pytorch_optimizer." in str(caught.value)
    assert "optimizer=None starts it fresh" in str(caught.value)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("live_mode", ["train", "eval"])
def test_schedulefree_comes_back_in_the_mode_of_its_parameters(tmp_path, mode, live_mode):
    """In train mode the parameters are y, in eval mode x: the mode in the group must be the one that was saved."""
    make = package_rows("schedulefree")["AdamWScheduleFree"]
    model = tiny()
    optimizer = make(model.parameters())
    optimizer.train()
    train(model, optimizer)
    getattr(optimizer, mode)()
    unmoor.save(tmp_path / "run.pt", model=model, optimizer=optimizer)
    live = tiny(5)
    other = make(live.parameters())
    getattr(other, live_mode)()
    unmoor.restore(tmp_path / "run.pt", model=live, optimizer=other, hyperparameters="live")
    assert other.param_groups[0]["train_mode"] is (mode == "train")
    assert other.param_groups[0]["k"] == 3
    for each in (optimizer, other):
        each.eval()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), live.parameters(), strict=True))


@pytest.mark.filterwarnings("ignore")
def test_a_form_of_its_own_is_told_from_torchs(tmp_path):
    """A wrapper's file for its base class, and the base class's for the wrapper, are refused by the keys of both."""
    wrapped = package_rows("pytorch_optimizer")["Lookahead(Adam)"]
    model = tiny()
    plain, outer = torch.optim.Adam(model.parameters(), lr=0.01), wrapped(model.parameters())
    train(model, outer)
    unmoor.save(tmp_path / "outer.pt", model=model, optimizer=outer)
    with refused(unmoor.MismatchError, model, plain) as caught:
        unmoor.restore(tmp_path / "outer.pt", model=model, optimizer=plain)
    assert "lookahead_state" in str(caught.value)
    assert "base_optimizer" in str(caught.value)
    unmoor.restore(tmp_path / "outer.pt", optimizer=plain, at={"optimizer": "optimizer.base_optimizer"})
    assert plain.state[model[0].weight]["step"] == 3
    unmoor.save(tmp_path / "plain.pt", model=model, optimizer=plain)
    with nothing_changes(model), pytest.raises(unmoor.MismatchError, match="lookahead_state"):
        unmoor.restore(tmp_path / "plain.pt", model=model, optimizer=outer)


@pytest.mark.filterwarnings("ignore")
def test_a_wrapper_is_found_in_a_file_of_torch_save(tmp_path):
    """The state dict of a wrapper is told by its own keys, though an optimizer of torch's form lies within it."""
    wrapped = package_rows("pytorch_optimizer")["Lookahead(Adam)"]
    model = tiny()
    outer = wrapped(model.parameters())
    train(model, outer)
    torch.save({"net": model.state_dict(), "opt": outer.state_dict()}, tmp_path / "run.pt")
    live = tiny(5)
    other = wrapped(live.parameters())
    unmoor.restore(tmp_path / "run.pt", model=live, optimizer=other)
    for mine, theirs in zip(model.parameters(), live.parameters(), strict=True):
        assert torch.equal(outer.state[mine]["slow_params"], other.state[theirs]["slow_params"])
        assert torch.equal(outer.optimizer.state[mine]["exp_avg"], other.optimizer.state[theirs]["exp_avg"])


def test_a_class_of_torchs_name_from_elsewhere_is_judged_by_its_own_state(tmp_path):
    """A class that is called Adam and keeps other state is not held against torch's Adam."""

    class Adam(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 0.1})

        @torch.no_grad()
        def step(self):
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter]["drift"] = parameter.grad.clone()

    model = tiny()
    optimizer = Adam(model.parameters())
    train(model, optimizer)
    unmoor.save(tmp_path / "run.pt", model=model, optimizer=optimizer)
    live = tiny(5)
    other = Adam(live.parameters())
    unmoor.restore(tmp_path / "run.pt", model=live, optimizer=other)
    assert torch.equal(other.state[live[0].weight]["drift"], optimizer.state[model[0].weight]["drift"])
