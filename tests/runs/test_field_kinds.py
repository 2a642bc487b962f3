"""Kinds of files and runs that people bring: schedulers within schedulers, twins by list, state in forms of its own."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler, swa_utils
from torch.utils.data import DataLoader

import unmoor
from tests.cases.files import SGD, bits, nothing_changes, refused, tiny, train, trained


class Warmup(lr_scheduler.LRScheduler):
    """Rises, then goes on to another scheduler, which it holds under `after`."""

    def __init__(self, optimizer: Any, rise: int, after: Any) -> None:
        self.rise, self.after, self.risen = rise, after, False
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        return [base * min(1.0, (self.last_epoch + 1) / self.rise) for base in self.base_lrs]

    def step(self, epoch: Any = None) -> None:
        if self.risen:
            self.after.step()
            self._last_lr = self.after.get_last_lr()
        else:
            super().step()
            self.risen = self.last_epoch >= self.rise and self.after is not None


class Inverse:
    """A schedule that is no scheduler of torch's, with a state of its own."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer, self.taken = optimizer, 0

    def step(self) -> None:
        self.taken += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 / self.taken

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self.taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.taken = state["taken"]


class Slow(torch.optim.SGD):
    """Keeps slow weights; its state dict has a form of its own."""

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for param in self.param_groups[0]["params"]:
            slow = self.state[param].setdefault("slow", param.detach().clone())
            slow.lerp_(param.detach(), 0.5)
            param.data.copy_(slow)

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        return {"fast_state": state["state"], "param_groups": state["param_groups"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({"state": state["fast_state"], "param_groups": state["param_groups"]})


def _cosine(optimizer: Any) -> Any:
    return lr_scheduler.CosineAnnealingLR(optimizer, 10)


def _run(make: Any, *, steps: int = 0, seed: int = 0, optimizer: Any = torch.optim.SGD) -> dict[str, Any]:
    model = tiny(seed)
    used = optimizer(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = make(used)
    train(model, used, steps, scheduler=scheduler)
    return {"model": model, "optimizer": used, "scheduler": scheduler}


def _write(path: Any, run: dict[str, Any], writer: str) -> Any:
    if writer == "unmoor":
        unmoor.save(path, **run)
    else:
        torch.save({role: item.state_dict() for role, item in run.items()}, path)
    return path


def _goes_on(live: dict[str, Any], saved: dict[str, Any]) -> None:
    """Both runs take the same next steps."""
    for run in (live, saved):
        train(run["model"], run["optimizer"], 4, scheduler=run.get("scheduler"), seed=9)
    assert bits(live["model"].state_dict()) == bits(saved["model"].state_dict())
    assert live["optimizer"].param_groups[0]["lr"] == saved["optimizer"].param_groups[0]["lr"]


@pytest.mark.parametrize("writer", ["torch", "unmoor"])
@pytest.mark.parametrize("steps", [1, 3, 5])
def test_a_scheduler_that_goes_on_to_another_resumes_with_it(tmp_path, writer, steps):
    """The scheduler within takes its own state, stays the object that it was and follows the live optimizer."""
    saved = _run(lambda o: Warmup(o, 3, _cosine(o)), steps=steps)
    path = _write(tmp_path / "a.pt", saved, writer)
    live = _run(lambda o: Warmup(o, 3, _cosine(o)), seed=1)
    inner = live["scheduler"].after
    unmoor.restore(path, rng=False, **live)
    assert live["scheduler"].after is inner
    assert inner.optimizer is live["optimizer"]
    _goes_on(live, saved)


@pytest.mark.parametrize(
    ("make", "options", "error", "words"),
    [
        (lambda o: Warmup(o, 3, None), {}, unmoor.MismatchError, ("scheduler.after", "the live one does not")),
        (lambda o: Warmup(o, 3, lr_scheduler.StepLR(o, 2)), {}, unmoor.KindError, ("StepLR", "CosineAnnealingLR")),
        (
            lambda o: Warmup(o, 3, _cosine(o)),
            {"hyperparameters": "live"},
            unmoor.MismatchError,
            ("after", 'hyperparameters="saved"'),
        ),
    ],
)
def test_a_scheduler_that_goes_on_to_something_else_is_refused(tmp_path, make, options, error, words):
    """Another scheduler within, none, or a walk whose steps two of them count, is an error; nothing changes."""
    path = _write(tmp_path / "a.pt", _run(lambda o: Warmup(o, 3, _cosine(o)), steps=5), "torch")
    live = _run(make, seed=1)
    with refused(error, live["model"], live["optimizer"]) as caught:
        unmoor.restore(path, rng=False, **live, **options)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("writer", ["torch", "unmoor"])
@pytest.mark.parametrize(("make", "optimizer"), [(Inverse, torch.optim.SGD), (_cosine, Slow)])
def test_objects_with_a_state_of_their_own_find_it_under_their_role(tmp_path, writer, make, optimizer):
    """A schedule that is none of torch's, and an optimizer whose state dict has its own form, go on exactly."""
    saved = _run(make, steps=3, optimizer=optimizer)
    path = _write(tmp_path / "a.pt", saved, writer)
    live = _run(make, seed=1, optimizer=optimizer)
    unmoor.restore(path, rng=False, **live)
    _goes_on(live, saved)


def test_another_scheduler_class_names_no_other_file(tmp_path):
    """A schedule of another class is a matter of this file: no file beside it is offered, and the way out is."""
    path = _write(tmp_path / "a.pt", _run(_cosine, steps=2), "torch")
    _write(tmp_path / "b.pt", _run(_cosine, steps=2), "torch")
    live = _run(lambda o: lr_scheduler.StepLR(o, 2), seed=1)
    with refused(unmoor.KindError, live["model"], live["optimizer"]) as caught:
        unmoor.restore(path, rng=False, **live)
    assert "b.pt" not in str(caught.value)
    assert "scheduler=None restores the rest without it." in str(caught.value)


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (("netG", "netD"), ("G", "D")),
        (("netG_A", "netG_B"), ("G_A", "G_B")),
        (("latest_net_G_A", "latest_net_G_B"), ("G_A", "G_B")),
        (("optimizer_critic", "optimizer_actor"), ("critic", "actor")),
        (("net1", "net2"), (0, 1)),
        (("net_2", "net_1"), (1, 0)),
    ],
)
def test_models_of_one_shape_go_by_the_word_for_them(tmp_path, names, labels):
    """A key without the words of its role is the label that it is for; one name with numbers is a list."""
    models = [tiny(seed) for seed in range(2)]
    torch.save({name: model.state_dict() for name, model in zip(names, models, strict=True)}, tmp_path / "a.pt")
    live = {label: tiny(7) for label in labels}
    passed = [live[i] for i in sorted(live)] if labels[0] in (0, 1) else live
    unmoor.restore(tmp_path / "a.pt", rng=False, model=passed)
    for label, model in zip(labels, models, strict=True):
        assert bits(live[label].state_dict()) == bits(model.state_dict())


def test_a_list_does_not_go_through_names_in_their_order(tmp_path):
    """Two models that both fit, passed as a list, would be a guess: an error says how to tell which is which."""
    torch.save({"target": tiny(1).state_dict(), "critic": tiny(2).state_dict()}, tmp_path / "a.pt")
    live = [tiny(3), tiny(4)]
    with refused(unmoor.AmbiguousError, *live) as caught:
        unmoor.restore(tmp_path / "a.pt", rng=False, model=live)
    assert "at={'model[0]': ...}" in str(caught.value)


def test_optimizers_of_one_size_are_told_by_their_shapes(tmp_path):
    """Optimizers of as many parameters go to the models of their shapes, whatever they are called."""
    sizes = ((3, 4, 2), (3, 5, 1))
    saved = [_sized(size, steps=3) for size in sizes]
    torch.save({"one": saved[1][1].state_dict(), "two": saved[0][1].state_dict()}, tmp_path / "a.pt")
    live = [_sized(size) for size in sizes]
    unmoor.restore(tmp_path / "a.pt", rng=False, optimizer={"a": live[0][1], "b": live[1][1]})
    for (_, mine), (_, theirs) in zip(live, saved, strict=True):
        assert bits(mine.state_dict()["state"]) == bits(theirs.state_dict()["state"])


def _sized(sizes: tuple[int, int, int], *, steps: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = tiny(0, sizes)
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, steps)
    return model, optimizer


def test_averages_are_told_from_trained_weights(tmp_path):
    """Averages go to ema= under any word for them; where a model takes them, the report says so."""
    averaged = swa_utils.AveragedModel(tiny(2))
    torch.save({"state_dict": tiny(1).state_dict(), "swa_state_dict": averaged.state_dict()}, tmp_path / "a.pt")
    live, average = tiny(3), swa_utils.AveragedModel(tiny(4))
    unmoor.restore(tmp_path / "a.pt", rng=False, model=live, ema=average)
    assert bits(average.state_dict()) == bits(averaged.state_dict())
    assert bits(live.state_dict()) == bits(tiny(1).state_dict())
    torch.save({"ema": tiny(5).state_dict(), "model": None}, tmp_path / "b.pt")
    report = unmoor.restore(tmp_path / "b.pt", rng=False, model=live)
    assert "model-from-averages" in {finding.code for finding in report.findings}
    torch.save({"semantic": tiny(6).state_dict()}, tmp_path / "c.pt")
    assert not unmoor.restore(tmp_path / "c.pt", rng=False, model=live).findings


def test_an_ema_that_no_name_is_for_is_told_where_models_are(tmp_path):
    """What the report says of an EMA that was left alone names the models there are, and the call that takes one."""
    torch.save({"model": tiny(1).state_dict()}, tmp_path / "a.pt")
    report = unmoor.restore(tmp_path / "a.pt", rng=False, model=tiny(), ema=tiny(2))
    assert "at={'ema': 'model'}" in " ".join(str(report).split())


@pytest.mark.parametrize(
    ("make", "on", "needs"),
    [
        (torch.optim.Adam, {"amsgrad": True}, ("max_exp_avg_sq",)),
        (torch.optim.RMSprop, {"momentum": 0.9, "centered": True}, ("momentum_buffer", "grad_avg")),
    ],
)
def test_a_switch_turned_on_since_is_named_before_the_first_step(tmp_path, make, on, needs):
    """Live options that need state which the file lacks are an error; under the file's options the run steps on."""
    model, optimizer = trained(make=make, lr=0.01)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "a.pt")
    live = tiny(1)
    other = make(live.parameters(), lr=0.01, **on)
    with refused(unmoor.MismatchError, live, other) as caught:
        unmoor.restore(tmp_path / "a.pt", rng=False, model=live, optimizer=other, hyperparameters="live")
    assert all(key in str(caught.value) for key in needs)
    unmoor.restore(tmp_path / "a.pt", rng=False, model=live, optimizer=other)
    _goes_on({"model": live, "optimizer": other}, {"model": model, "optimizer": optimizer})


def test_the_order_between_models_is_not_proved_by_the_file(tmp_path):
    """One optimizer over two models of one shape: in which order it took them is a warning, not a proof."""
    one, two = tiny(1), tiny(2)
    optimizer = torch.optim.Adam([*two.parameters(), *one.parameters()])
    torch.save({"one": one.state_dict(), "two": two.state_dict(), "optimizer": _stepped(optimizer)}, tmp_path / "a.pt")
    live = {"one": tiny(3), "two": tiny(4)}
    used = torch.optim.Adam([*live["one"].parameters(), *live["two"].parameters()])
    report = unmoor.restore(tmp_path / "a.pt", rng=False, model=live, optimizer=used)
    assert "order-not-proved" in {finding.code for finding in report.findings}


def _stepped(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = torch.ones_like(param)
    optimizer.step()
    return optimizer.state_dict()


def test_state_under_ids_as_text_is_found(tmp_path):
    """Ids that went through JSON are text beside groups of numbers; the state is that of those parameters."""
    model, optimizer = trained()
    state = optimizer.state_dict()
    state["state"] = {str(key): entry for key, entry in state["state"].items()}
    torch.save({"model": model.state_dict(), "optimizer": state}, tmp_path / "a.pt")
    live = tiny(1)
    other = torch.optim.Adam(live.parameters())
    unmoor.restore(tmp_path / "a.pt", rng=False, model=live, optimizer=other)
    assert bits(other.state_dict()) == bits(optimizer.state_dict())


def test_state_that_no_group_lists_is_not_dropped(tmp_path):
    """State under ids that are in no group is an error that names both sides, unless it may be dropped."""
    model, optimizer = trained()
    state = copy.deepcopy(optimizer.state_dict())
    state["state"] = {key + 100: entry for key, entry in state["state"].items()}
    torch.save({"model": model.state_dict(), "optimizer": state}, tmp_path / "a.pt")
    live = tiny(1)
    other = torch.optim.Adam(live.parameters())
    with refused(unmoor.MismatchError, live, other) as caught:
        unmoor.restore(tmp_path / "a.pt", rng=False, model=live, optimizer=other)
    assert "100, 101, 102, 103" in str(caught.value)
    assert "0, 1, 2, 3" in str(caught.value)
    report = unmoor.restore(tmp_path / "a.pt", rng=False, model=live, optimizer=other, unexpected="ignore")
    assert not other.state
    assert "no-optimizer-state" in {finding.code for finding in report.findings}


def test_groups_of_one_parameter_each_go_into_fewer(tmp_path):
    """A group for every parameter, as detection code bases make them, fits groups by kind of parameter."""
    model = tiny()
    optimizer = torch.optim.SGD([{"params": [p], "weight_decay": 0.1 * (p.dim() > 1)} for p in model.parameters()], 0.1)
    optimizer.defaults["momentum"] = 0.9
    for group in optimizer.param_groups:
        group["momentum"] = 0.9
    train(model, optimizer)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "a.pt")
    live = tiny(1)
    kinds = [[p for p in live.parameters() if (p.dim() > 1) is wide] for wide in (True, False)]
    other = SGD["make"]([{"params": kinds[0], "weight_decay": 0.1}, {"params": kinds[1]}], lr=0.1, momentum=0.9)
    unmoor.restore(tmp_path / "a.pt", rng=False, model=live, optimizer=other)
    for mine, theirs in zip(live.parameters(), model.parameters(), strict=True):
        assert bits(other.state[mine]) == bits(optimizer.state[theirs])
    assert [group["weight_decay"] for group in other.param_groups] == [0.1, 0.0]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_has_begun_and_given_nothing_goes_on(tmp_path, workers):
    """Saved between iter() and the first batch, the pass that comes is the one that had begun; so are the draws."""
    wanted, got = [], []
    torch.manual_seed(3)
    loader = _loader(workers)
    begun = iter(loader)
    unmoor.save(tmp_path / "a.pt", loader=loader)
    wanted += [*map(bits, begun), *map(bits, loader), bits(torch.rand(2))]
    torch.manual_seed(4)
    live = _loader(workers)
    unmoor.restore(tmp_path / "a.pt", loader=live)
    got += [*map(bits, live), *map(bits, live), bits(torch.rand(2))]
    assert got == wanted


def _loader(workers: int) -> Any:
    return unmoor.resumable(DataLoader(list(range(7)), batch_size=2, shuffle=True, num_workers=workers))


def test_the_state_of_another_bit_generator_is_named(tmp_path):
    """A numpy generator over other bits cannot take the state: both are named, and nothing of the run changes."""
    unmoor.save(tmp_path / "a.pt", model=tiny(), rng={"data": np.random.Generator(np.random.MT19937(3))})
    live = tiny(1)
    with refused(unmoor.MismatchError, live) as caught:
        unmoor.restore(tmp_path / "a.pt", model=live, rng={"data": np.random.default_rng()})
    assert "MT19937" in str(caught.value)
    assert "PCG64" in str(caught.value)


def test_a_state_dict_of_numpy_arrays_is_named(tmp_path):
    """Arrays in the place of tensors are told as that, with what makes tensors of them; no other file is offered."""
    arrays = {name: tensor.numpy() for name, tensor in tiny().state_dict().items()}
    torch.save({"model": arrays}, tmp_path / "a.pt")
    for name in ("b.pt", "c.pt"):
        torch.save({"state_dict": tiny().state_dict()}, tmp_path / name)
    live = tiny(1)
    with nothing_changes(live), pytest.raises(unmoor.KindError) as caught:
        unmoor.restore(tmp_path / "a.pt", rng=False, model=live)
    assert "4 numpy arrays such as 0.weight (torch.from_numpy" in str(caught.value)
    assert "probably" not in str(caught.value)
