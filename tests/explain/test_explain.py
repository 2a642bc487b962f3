"""explain: what a restore would do with a file and a run, and the call that works; nothing moves meanwhile."""

from __future__ import annotations

import argparse
import ast
import json
import random
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import unmoor
from tests.prove import runs
from unmoor.cli import commands, exit_code
from unmoor.errors import NotACheckpoint, UsageError
from unmoor.plan.offers import faults_of, offers


def net(width: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 1))


def build() -> dict:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return {"model": model, "optimizer": optimizer, "loss": nn.functional.mse_loss}


def on(device: str = "cpu") -> dict:
    model = net().to(device)
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}


def with_more() -> dict:
    run = build()
    scheduler = torch.optim.lr_scheduler.StepLR(run["optimizer"], 5)
    return {**run, "scheduler": scheduler, "loader": DataLoader(runs.data(), batch_size=4)}


def two() -> dict:
    return {"model": {"gen": net(), "disc": net(4)}}


def two_and_loader() -> dict:
    return {**two(), "loader": unmoor.resumable(DataLoader(runs.data(), batch_size=4))}


def trained(model: nn.Module, kind=torch.optim.AdamW) -> torch.optim.Optimizer:
    optimizer = kind(model.parameters(), lr=0.01)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return optimizer


def saved(path, model=None, *, kind=torch.optim.AdamW, prefix="", change=None, **more):
    """A file as torch.save writes it."""
    model = model or net()
    optimizer = trained(model, kind)
    state = {f"{prefix}{name}": value for name, value in model.state_dict().items()}
    torch.save({"model": change(state) if change else state, "optimizer": optimizer.state_dict(), **more}, path)
    return path


def without(name):
    return lambda state: {key: value for key, value in state.items() if key != name}


def with_extra(state):
    return {**state, "old.weight": torch.zeros(3)}


def doubled(state):
    return {key: value.double() * 1.0000000001 for key, value in state.items()}


# what the file is -> how it is made, keywords that are added, a line of the cost
DOES_NOT_FIT = {
    "another head": (
        {"model": nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))},
        {"mismatched"},
        "as in the live run: model 2.weight",
    ),
    "a tensor less": ({"change": without("2.bias")}, {"missing"}, "as in the live run: model 2.bias"),
    "a tensor more": ({"change": with_extra}, {"unexpected"}, "dropped: model old.weight"),
    "another optimizer": ({"kind": torch.optim.RMSprop}, {"optimizer"}, "optimizer starts fresh"),
    "finer values": ({"change": doubled}, {"cast"}, "values are rounded to the dtypes of the live run"),
}


@pytest.mark.parametrize("what", DOES_NOT_FIT)
def test_the_call_that_works_is_found(tmp_path, what):
    """Every fault is shown, the keywords that let it through are found, and restore takes them as they stand."""
    how, added, cost = DOES_NOT_FIT[what]
    path = saved(tmp_path / "run.pt", **how)
    made = unmoor.explain(path, build)
    assert not made.fits
    assert made.faults
    assert made.trial is not None, str(made)
    assert {keyword for keyword, _ in made.trial.added} == added
    assert any(cost in line for line in made.trial.cost)
    report = run_call(made, build())
    assert report.plan.to_json() == made.plan.to_json()


def run_call(made, run):
    """Carry the call out as a user would paste it."""
    [statement] = ast.parse(made.call).body
    names = {**run, "unmoor": unmoor}
    exec(compile(ast.Module([statement], []), "call", "exec"), names)
    return names["report"]


def test_a_file_that_fits_needs_nothing(tmp_path):
    """The headline says so, the call has the run's objects and nothing else, and it is what restore does."""
    made = unmoor.explain(saved(tmp_path / "run.pt", prefix="module."), build)
    assert (made.fits, bool(made), made.faults, made.trial) == (True, True, (), None)
    assert "model=model, optimizer=optimizer" in made.call
    assert "loss" not in made.call
    assert "renamed    'module.' taken out of 4 names of model" in str(made)
    assert run_call(made, build()).plan.to_json() == made.plan.to_json()


def test_it_is_what_plan_says(tmp_path):
    """The plan is that of unmoor.plan with the same objects."""
    path = saved(tmp_path / "run.pt")
    run = build()
    assert (
        unmoor.explain(path, build).plan.to_json()
        == unmoor.plan(path, model=run["model"], optimizer=run["optimizer"]).to_json()
    )


def test_nothing_of_the_process_changes(tmp_path):
    """Building draws random numbers and seeds streams; afterwards they stand where they stood."""
    path = saved(tmp_path / "run.pt")
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    for what in (build, with_more):
        unmoor.explain(path, what)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert (np.random.get_state()[1] == before[2]).all()


def test_streams_of_devices_stay_where_they_are(tmp_path, sim):
    """Also where the build function seeds every device."""
    before = sim.get_rng_state_all()
    unmoor.explain(saved(tmp_path / "run.pt"), build)
    assert all(torch.equal(a, b) for a, b in zip(sim.get_rng_state_all(), before, strict=True))


def test_what_has_no_counterpart_is_shown(tmp_path):
    """Parts that the run has no object for, objects that the file has nothing for, and a loader without a position."""
    path = saved(
        tmp_path / "run.pt",
        scaler={"scale": 2.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 9, "_growth_tracker": 0},
    )
    made = unmoor.explain(path, with_more)
    assert [change.label for change in made.saved_only if change.label != "rng"] == ["scaler"]
    assert [change.label for change in made.live_only] == ["loader", "scheduler"]
    assert "unmoor.resumable(loader)" in str(made)


def test_a_device_goes_to_the_function_or_to_restore(tmp_path, sim):
    """A function that takes `device` builds there; else the call moves the model."""
    path = saved(tmp_path / "run.pt")
    moved = unmoor.explain(path, build, model_device="sim:0")
    assert 'model_device="sim:0"' in moved.call
    built = unmoor.explain(path, on, model_device="sim:0")
    assert "model_device" not in built.call
    for made in (moved, built):
        assert {(c.before, c.after) for c in made.plan.moved if "step" not in c.name} == {("cpu", "sim:0")}


def test_only_is_part_of_the_call(tmp_path):
    """A selection is planned and shown."""
    made = unmoor.explain(saved(tmp_path / "run.pt"), build, only=["0.*"])
    assert 'only=["0.*"]' in made.call
    assert run_call(made, build()).plan.to_json() == made.plan.to_json()


def test_a_file_of_another_kind_is_told(tmp_path):
    """An optimizer's state where a model is due: what it is, and no call that would restore nothing."""
    torch.save(trained(net()).state_dict(), tmp_path / "opt.pt")
    made = unmoor.explain(tmp_path / "opt.pt", two)
    assert (made.fits, made.error, made.call) == (False, "KindError", "")
    assert "of another kind" in " ".join(str(made).split())


@pytest.mark.parametrize(
    ("path", "build", "error"),
    [
        ("absent.pt", build, NotACheckpoint),
        ("run.pt", "absent:build", UsageError),
        ("run.pt", lambda: 5, UsageError),
        ("run.pt", lambda: {}["lr"], UsageError),
        ("run.pt", sys.exit, UsageError),
    ],
)
def test_bad_calls_raise(tmp_path, monkeypatch, path, build, error):
    """A file at fault and a function that builds nothing are errors, not explanations."""
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "run.pt")
    with pytest.raises(error):
        unmoor.explain(path, build)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("rename={'net.': ''}", [("rename", {"net.": ""})]),
        ('pass missing="fresh" or mismatched="fresh"', [("missing", "fresh"), ("mismatched", "fresh")]),
        ("rename={...} says which", []),
        ("rename={'a.': 'b.', ...}", []),
        ('at={"model": "ema.model"}, or optimizer=None', [("at", {"model": "ema.model"})]),
        ("skip=['0.weight'] leaves it", [("skip", ["0.weight"])]),
        ("missing=", []),
        ("at={'a': {'b", []),
    ],
)
def test_keywords_that_an_error_names_are_tried_first(text, found):
    """Only whole Python values are; a form with dots in it is none."""
    named = offers(UsageError("x", remedy=text), ())
    assert [(offer.keyword, offer.value) for offer in named[: len(found)]] == found
    assert named[len(found)].keyword == "model_device"


def test_a_renaming_that_is_a_function_is_offered_too():
    """What an error writes as a lambda becomes one."""
    [offer, *_] = offers(UsageError("x", remedy="rename=lambda name: 'net.' + name"), ())
    assert (offer.value("a"), offer.text) == ("net.a", "rename=lambda name: 'net.' + name".partition("=")[2])


def test_faults_are_the_lines_of_an_error_that_tells_several():
    """An error of one sentence is one fault."""
    assert faults_of(UsageError("2 faults between a and b", details=["x", "y"])) == ("x", "y")
    assert faults_of(UsageError("wrong", details=["because"])) == ("wrong", "because")


HERE = "tests.explain.test_explain"


def command(*arguments):
    from click.testing import CliRunner

    return CliRunner().invoke(commands, ["explain", *map(str, arguments)], standalone_mode=False)


def test_the_command_ends_with_zero_or_four(tmp_path):
    """It fits, or it does not; the document has the call and the plan."""
    good, bad = saved(tmp_path / "good.pt"), saved(tmp_path / "bad.pt", change=with_extra)
    assert command(good, "--build", f"{HERE}:build").return_value == 0
    result = command(bad, "--build", f"{HERE}:build", "--json")
    assert result.return_value == 4
    document = json.loads(result.stdout)
    assert (document["schema"], document["fits"]) == ("unmoor.explanation/1", False)
    assert 'unexpected="ignore"' in document["call"]


def test_a_run_of_other_models_does_not_fit(tmp_path):
    """A file of one model and a run of two by name: restoring nothing of any model is no fit."""
    unmoor.save(tmp_path / "one.pt", model=net(), loader=two_and_loader()["loader"])
    made = unmoor.explain(tmp_path / "one.pt", two_and_loader)
    assert (made.fits, made.call) == (False, "")
    assert "the file has model, the run model[gen], model[disc]: none of them" in made.faults[0]
    assert command(tmp_path / "one.pt", "--build", f"{HERE}:two_and_loader").return_value == 4


def talks() -> dict:
    print("building")
    argparse.ArgumentParser().parse_args()
    return build()


def test_a_function_that_prints_and_parses_leaves_the_document_alone(tmp_path):
    """Its words go to stderr, and it finds an empty command line; the command's own is there again afterwards."""
    before = list(sys.argv)
    result = command(saved(tmp_path / "run.pt"), "--build", f"{HERE}:talks", "--json")
    assert json.loads(result.stdout)["fits"]
    assert result.stderr == "building\n"
    assert sys.argv == before


def fails() -> dict:
    raise KeyError("lr")


def test_a_function_that_fails_is_no_fault_of_ours(tmp_path):
    """Its error and its line are told, and the code is that of usage."""
    error = command(saved(tmp_path / "run.pt"), "--build", f"{HERE}:fails").exception
    assert "could not build the run: KeyError: 'lr'" in str(error)
    assert error.details[-1].endswith('raise KeyError("lr")')
    assert exit_code(error) == 2


def test_the_text_fits_eighty_columns(tmp_path, monkeypatch):
    """However long names are; the call stays Python."""
    monkeypatch.chdir(tmp_path)
    made = unmoor.explain(str(saved(tmp_path / "run.pt", change=without("2.bias")).relative_to(tmp_path)), with_more)
    assert max(map(len, str(made).split("\n"))) <= 80
    ast.parse(made.call)
