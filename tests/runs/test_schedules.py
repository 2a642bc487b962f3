"""Schedules that are not the live one: another class, other groups, other settings; and pickled scheduler objects."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler, swa_utils

import unmoor
from tests.cases.files import nothing_changes, refused, tiny, train
from tests.matrix.schedulers import SCHEDULERS, Case, Run

from .training import equal


def _run(make: Any, *, groups: int = 1, steps: int = 3, **options: Any) -> dict[str, Any]:
    model = tiny()
    parts = [model.parameters()] if groups == 1 else [model[0].parameters(), model[2].parameters()]
    optimizer = torch.optim.SGD([{"params": part} for part in parts], **{"lr": 0.1, "momentum": 0.9, **options})
    scheduler = make(optimizer)
    train(model, optimizer, steps, scheduler=scheduler)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


def _step(optimizer: Any) -> Any:
    return lr_scheduler.StepLR(optimizer, 2)


def _write(path: Any, run: dict[str, Any], writer: str) -> None:
    if writer == "unmoor":
        unmoor.save(path, **run)
    else:
        torch.save({role: item.state_dict() for role, item in run.items()}, path)


@pytest.mark.parametrize("writer", ["unmoor", "torch"])
@pytest.mark.parametrize(
    ("saved", "live", "words"),
    [
        (_step, lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=9), ("OneCycleLR", "a StepLR")),
        (_step, lambda o: lr_scheduler.ExponentialLR(o, 0.9), ("ExponentialLR", "a StepLR")),
        (lambda o: swa_utils.SWALR(o, 0.1), _step, ("StepLR", "a SWALR")),
        (lambda o: lr_scheduler.ChainedScheduler([_step(o)]), _step, ("StepLR", "a ChainedScheduler")),
        (
            lambda o: lr_scheduler.ChainedScheduler([_step(o)]),
            lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(o)]),
            ("ConstantLR", "a StepLR", "_schedulers.0"),
        ),
    ],
)
def test_state_of_another_class_is_named(tmp_path, writer, saved, live, words):
    """A schedule of another class, at the top or within another, is an error that names both; nothing changes."""
    _write(tmp_path / "a.pt", _run(saved), writer)
    other = _run(live, steps=1)
    before = other["scheduler"].state_dict()
    with refused(unmoor.KindError, other["model"], other["optimizer"]) as caught:
        unmoor.restore(tmp_path / "a.pt", **other)
    assert all(word in str(caught.value) for word in words)
    assert other["scheduler"].state_dict() == before


def test_a_class_that_only_the_manifest_tells_apart(tmp_path):
    """States of LambdaLR and MultiplicativeLR look alike: unmoor's own files know which it was."""
    run = _run(lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.5**epoch))
    other = _run(lambda o: lr_scheduler.MultiplicativeLR(o, lambda epoch: 0.5), steps=0)
    _write(tmp_path / "torch.pt", run, "torch")
    unmoor.restore(tmp_path / "torch.pt", **other)
    unmoor.save(tmp_path / "unmoor.pt", **run)
    with refused(unmoor.KindError, other["model"]) as caught:
        unmoor.restore(tmp_path / "unmoor.pt", **other)
    assert "is a MultiplicativeLR" in str(caught.value)


class OwnStep(lr_scheduler.StepLR):
    """A scheduler of the user's own, which derives from torch's."""


class Unrelated:
    """A scheduler of the user's own, which derives from nothing."""

    def __init__(self) -> None:
        self.last_epoch = 0

    def state_dict(self) -> dict[str, int]:
        return {"last_epoch": self.last_epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.last_epoch = state["last_epoch"]


def test_classes_of_the_users_own_are_taken(tmp_path):
    """A class that derives from the saved one, was saved under another module's name, or derives from none, loads."""
    _write(tmp_path / "a.pt", _run(_step), "unmoor")
    other = _run(lambda o: OwnStep(o, 2), steps=0)
    unmoor.restore(tmp_path / "a.pt", **other)
    assert other["scheduler"].last_epoch == 3
    mine = Unrelated()
    mine.last_epoch = 7
    unmoor.save(tmp_path / "b.pt", scheduler=mine)
    again = Unrelated()
    unmoor.restore(tmp_path / "b.pt", scheduler=again)
    assert again.last_epoch == 7


def test_other_groups_are_an_error_that_the_live_schedule_settles(tmp_path):
    """One value a group cannot be stretched over two; hyperparameters="live" walks the live schedule instead."""
    run = _run(_step)
    unmoor.save(tmp_path / "a.pt", scheduler=run["scheduler"])
    two = _run(_step, groups=2, steps=0)
    with refused(unmoor.MismatchError, two["model"], two["optimizer"]) as caught:
        unmoor.restore(tmp_path / "a.pt", scheduler=two["scheduler"])
    assert "base_lrs holds 1 value, one for each parameter group; the live optimizer has 2 groups" in str(caught.value)
    unmoor.restore(tmp_path / "a.pt", scheduler=two["scheduler"], hyperparameters="live")
    assert two["scheduler"].last_epoch == 3
    assert [group["lr"] for group in two["optimizer"].param_groups] == [run["optimizer"].param_groups[0]["lr"]] * 2


@pytest.mark.parametrize("writer", ["unmoor", "torch"])
def test_schedulers_of_several_optimizers_find_the_lr_of_their_own(tmp_path, writer):
    """Schedulers restored by themselves take the lr of the optimizer of their key, or of the one with their last lr."""
    runs = {"gen": _run(_step, lr=0.1), "disc": _run(_step, lr=0.4, steps=1)}
    saved = {role: {key: run[role] for key, run in runs.items()} for role in ("optimizer", "scheduler")}
    if writer == "unmoor":
        unmoor.save(tmp_path / "a.pt", **saved)
    else:
        torch.save({r: {k: v.state_dict() for k, v in items.items()} for r, items in saved.items()}, tmp_path / "a.pt")
    live = {key: _run(_step, steps=0, lr=0.9) for key in ("disc", "gen")}
    unmoor.restore(tmp_path / "a.pt", scheduler={key: run["scheduler"] for key, run in live.items()})
    for key, run in runs.items():
        one, other = (
            {k: v for k, v in each["optimizer"].param_groups[0].items() if k in ("lr", "initial_lr", "momentum")}
            for each in (run, live[key])
        )
        assert one == other


def test_settings_that_differ_are_reported(tmp_path):
    """The saved settings win by default, each change in the report; the live ones are kept on request."""
    unmoor.save(tmp_path / "a.pt", **_run(lambda o: lr_scheduler.StepLR(o, 2, gamma=0.5)))
    other = _run(lambda o: lr_scheduler.StepLR(o, 5, gamma=0.9), steps=0)
    plan = unmoor.plan(tmp_path / "a.pt", **other)
    changes = {(c.name, c.before, c.after) for c in plan.options if c.label == "scheduler"}
    assert changes == {("step_size", "5", "2"), ("gamma", "0.9", "0.5")}
    assert other["scheduler"].step_size == 5
    report = unmoor.restore(tmp_path / "a.pt", **other, hyperparameters="live")
    assert {c.name for c in report.plan.kept if c.label == "scheduler"} == {"step_size", "gamma"}
    assert (other["scheduler"].step_size, other["scheduler"].last_epoch) == (5, 3)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("scheduler", [name for name in SCHEDULERS if name != "ReduceLROnPlateau"])
def test_live_schedule_walked_to_the_saved_step_is_the_one_that_went_there(tmp_path, scheduler):
    """With hyperparameters="live" every class of torch stands, in lr and momentum too, where its own steps take it."""
    case = Case(scheduler, "SGD momentum", "two groups", "built before")
    run = Run(case, 0).schedule().train(7)
    unmoor.save(tmp_path / "a.pt", **run.roles())
    other = Run(case, 1).schedule()
    unmoor.restore(tmp_path / "a.pt", **other.roles(), hyperparameters="live")
    assert equal(other.state()["scheduler"], run.state()["scheduler"])
    live, saved = ([{k: g[k] for k in g if k in ("lr", "momentum")} for g in r.state()["groups"]] for r in (other, run))
    assert live == saved


def test_what_a_plateau_has_measured_goes_into_live_settings(tmp_path):
    """ReduceLROnPlateau cannot be walked: its best value and its counters are taken, its settings are the live ones."""
    run = _run(_step)
    plateau = lr_scheduler.ReduceLROnPlateau(run["optimizer"], patience=3)
    for value in (2.0, 1.5, 1.7, 1.6):
        plateau.step(value)
    unmoor.save(tmp_path / "a.pt", scheduler=plateau)
    other = lr_scheduler.ReduceLROnPlateau(run["optimizer"], patience=9)
    unmoor.restore(tmp_path / "a.pt", scheduler=other, hyperparameters="live")
    assert (other.best, other.num_bad_epochs, other.last_epoch, other.patience) == (1.5, 2, 4, 9)


def test_a_live_scheduler_that_is_further_on_cannot_be_walked_back(tmp_path):
    """hyperparameters="live" with a scheduler that has taken more steps than the file's is an error."""
    unmoor.save(tmp_path / "a.pt", **_run(_step))
    other = _run(_step, steps=5)
    with refused(unmoor.MismatchError, other["model"], other["optimizer"]) as caught:
        unmoor.restore(tmp_path / "a.pt", **other, hyperparameters="live")
    assert "already stands at step 5, the file at step 3" in str(caught.value)


class Stubborn(lr_scheduler.StepLR):
    """A scheduler that refuses the first state it is given."""

    refused = False

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not self.refused:
            self.refused = True
            raise RuntimeError("not today")
        super().load_state_dict(state_dict)


@pytest.mark.parametrize("mode", ["saved", "live"])
def test_a_restore_that_fails_later_puts_scheduler_and_groups_back(tmp_path, mode):
    """Law 2: where the next scheduler refuses its state, this one and its optimizer's groups are as they were."""
    run, second = _run(lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=9)), _run(_step)
    unmoor.save(tmp_path / "a.pt", scheduler={"a": run["scheduler"], "b": second["scheduler"]})
    other = _run(lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=9), steps=0)
    del other["optimizer"].param_groups[0]["max_momentum"]
    before = other["scheduler"].state_dict()
    stubborn = _run(lambda o: Stubborn(o, 2), steps=0)["scheduler"]
    lr = other["optimizer"].param_groups[0]["lr"]
    if mode == "live":
        other["optimizer"].param_groups[0]["max_momentum"] = 0.95
    with nothing_changes(other["model"], other["optimizer"]):
        schedulers = {"a": other["scheduler"], "b": stubborn}
        with pytest.raises(unmoor.MismatchError, match=r"(?s)scheduler\[b\].*nothing was changed.*not today"):
            unmoor.restore(tmp_path / "a.pt", scheduler=schedulers, hyperparameters=mode)
    assert other["scheduler"].state_dict() == before
    assert other["optimizer"].param_groups[0]["lr"] == lr
    unmoor.restore(tmp_path / "a.pt", scheduler=schedulers, hyperparameters=mode)
    assert other["optimizer"].param_groups[0]["lr"] == run["optimizer"].param_groups[0]["lr"] != lr


FORMS = {
    "alone": lambda run: run.scheduler,
    "beside state dicts": lambda run: {**_states(run), "scheduler": run.scheduler},
    "all objects": lambda run: run.roles(),
}


def _states(run: Run) -> dict[str, Any]:
    return {role: item.state_dict() for role, item in run.roles().items()}


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scheduler", [name for name in SCHEDULERS if name != "MultiplicativeLR, function"])
def test_pickled_schedulers_give_their_state(tmp_path, scheduler, form):
    """A scheduler pickled whole is restored by its values, its optimizer with it, with no class trusted or built."""
    case = Case(scheduler, "AdamW", "two groups", "built before")
    run = Run(case, 0).schedule().train(7)
    torch.save(FORMS[form](run), tmp_path / "a.pt")
    other = Run(case, 1).schedule()
    other.step = run.step
    roles = other.roles()
    if form == "alone":
        roles.pop("model").load_state_dict(run.model.state_dict())
    unmoor.restore(tmp_path / "a.pt", **roles)
    assert equal(other.state(), run.state())
    assert equal(other.train(3).state(), run.train(3).state())


def test_a_pickled_scheduler_is_placed_with_its_optimizer(sim, tmp_path):
    """Loaded with its classes trusted, the optimizer that it holds is on the device, and its counters on the CPU."""
    model = tiny().to("sim:0")
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = lr_scheduler.StepLR(optimizer, 2)
    train(model, optimizer, 3, scheduler=scheduler)
    torch.save({"scheduler": scheduler}, tmp_path / "a.pt")
    tree = unmoor.load(tmp_path / "a.pt", model_device="sim:1", trust="everything in this file")
    found = tree["scheduler"].optimizer
    assert {str(p.device) for p in found.param_groups[0]["params"]} == {"sim:1"}
    assert {key: str(t.device) for state in found.state.values() for key, t in state.items()} == {
        "step": "cpu", "exp_avg": "sim:1", "exp_avg_sq": "sim:1",
    }  # fmt: skip
