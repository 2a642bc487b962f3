"""What save writes, restore puts back: every role, every stream, every plain value."""

from __future__ import annotations

import copy
import random
import re
import zipfile
from collections import OrderedDict, defaultdict

import numpy as np
import pytest
import torch
from torch import nn

import unmoor
from unmoor.values.dtypes import DTYPES

from .training import draws, equal, network, start, state

UNTESTED = re.compile(r"torch\.(u?int[1-7]$|qu?int|bits)")
"""dtypes without a storage of their own in torch, and those that need a quantizer."""


class Tracker:
    """A metrics object of a user: plain values, a numpy array and a tensor."""

    def __init__(self):
        self.best, self.history, self.confusion = 0.5, np.arange(3.0), torch.eye(2)

    def state_dict(self):
        return {"best": self.best, "history": self.history, "confusion": self.confusion}

    def load_state_dict(self, state):
        self.best, self.history, self.confusion = state["best"], state["history"], state["confusion"]


class Loader:
    """A loader that knows its position."""

    def __init__(self, position=0):
        self.position = position

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def test_every_role_comes_back(tmp_path):
    """Model, optimizer, scheduler, scaler, loss, metrics, EMA, loader and plain values come back as they were."""
    run = start().train(3)
    loss = nn.CrossEntropyLoss(weight=torch.rand(3))
    ema = copy.deepcopy(run.model)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    scaler.scale(torch.ones(()))
    tracker, loader = Tracker(), Loader(5)
    tracker.best = 0.75
    roles = {**run.roles, "loss": loss, "ema": ema, "scaler": scaler, "metrics": tracker, "loader": loader}
    unmoor.save(tmp_path / "all.pt", **roles, step=3, config={"lr": [1, 2.5], "name": "a"})

    other = start(seed=5)
    new_loss, new_ema = nn.CrossEntropyLoss(weight=torch.rand(3)), network(8)
    new_scaler, new_tracker, new_loader = torch.amp.GradScaler("cpu"), Tracker(), Loader()
    report = unmoor.restore(
        tmp_path / "all.pt",
        **other.roles,
        loss=new_loss,
        ema=new_ema,
        scaler=new_scaler,
        metrics=new_tracker,
        loader=new_loader,
    )
    assert equal(state(run), state(other))
    assert torch.equal(loss.weight, new_loss.weight)
    assert equal(ema.state_dict(), new_ema.state_dict())
    assert new_scaler.state_dict() == scaler.state_dict()
    assert new_tracker.best == 0.75
    assert isinstance(new_tracker.history, np.ndarray)
    assert np.array_equal(new_tracker.history, tracker.history)
    assert torch.equal(new_tracker.confusion, tracker.confusion)
    assert new_loader.position == 5
    assert report.extra == {"step": 3, "config": {"lr": [1, 2.5], "name": "a"}}
    assert not [c for c in report.not_restored if c.label != "rng"]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_scripted_modules_come_back(tmp_path):
    """TorchScript keeps the children of a module in a class of its own, which is no dict."""
    saved, live = (torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))) for _ in range(2))
    unmoor.save(tmp_path / "run.pt", model=saved)
    unmoor.restore(tmp_path / "run.pt", model=live)
    assert equal(live.state_dict(), saved.state_dict())


def test_dicts_and_lists_of_objects_keep_their_keys(tmp_path):
    """A role takes a dict or a list of objects, each restored under its own key."""
    gen, disc = start(seed=1).train(2), start("SGD momentum", seed=2).train(3)
    models, optimizers = {"gen": gen.model, "disc": disc.model}, {"gen": gen.optimizer, "disc": disc.optimizer}
    unmoor.save(tmp_path / "gan.pt", model=models, optimizer=optimizers, scheduler=[gen.scheduler, disc.scheduler])
    new_gen, new_disc = start(seed=3), start("SGD momentum", seed=4)
    report = unmoor.restore(
        tmp_path / "gan.pt",
        model={"disc": new_disc.model, "gen": new_gen.model},
        optimizer={"disc": new_disc.optimizer, "gen": new_gen.optimizer},
        scheduler=[new_gen.scheduler, new_disc.scheduler],
    )
    assert equal(state(gen), state(new_gen))
    assert equal(state(disc), state(new_disc))
    assert "optimizer[gen]" in report.restored


def test_all_random_streams_continue(tmp_path):
    """Every stream of the process goes on where it was: torch, numpy, python, and the user's own generators."""
    mine = {
        "torch": torch.Generator().manual_seed(3),
        "pcg": np.random.default_rng(4),
        "mt": np.random.Generator(np.random.MT19937(5)),
        "old": np.random.RandomState(6),
        "python": random.Random(7),
    }
    for name in ("pcg", "mt", "old"):
        mine[name].random(3) if name != "old" else mine[name].rand(3)
    random.seed(1)
    np.random.seed(2)
    np.random.normal()
    torch.manual_seed(3)
    unmoor.save(tmp_path / "rng.pt", rng=mine)
    wanted = draws()
    own = [mine["pcg"].random(), mine["mt"].random(), mine["old"].rand(), mine["python"].random()]
    own.append(torch.rand(2, generator=mine["torch"]).tolist())

    random.seed(9)
    np.random.seed(9)
    torch.manual_seed(9)
    unmoor.restore(tmp_path / "rng.pt", rng=mine)
    assert draws() == wanted
    again = [mine["pcg"].random(), mine["mt"].random(), mine["old"].rand(), mine["python"].random()]
    again.append(torch.rand(2, generator=mine["torch"]).tolist())
    assert again == own


def test_device_generators_continue(sim, tmp_path):
    """Every accelerator's generator is carried, each device its own."""
    sim.manual_seed_all(5)
    torch.rand(3, device="sim:1")
    unmoor.save(tmp_path / "rng.pt")
    wanted = [torch.rand(2, device=f"sim:{i}").cpu() for i in range(2)]
    sim.manual_seed_all(6)
    report = unmoor.restore(tmp_path / "rng.pt")
    assert equal([torch.rand(2, device=f"sim:{i}").cpu() for i in range(2)], wanted)
    assert "sim" in dict(report.plan.notes)["rng"]


def test_random_streams_are_left_alone_on_request(tmp_path):
    """rng=False leaves every stream alone, in save and in restore; load and describe change none at all."""
    unmoor.save(tmp_path / "a.pt", model=network())
    before = draws()
    torch.rand(1)
    after = draws()
    unmoor.describe(tmp_path / "a.pt")
    unmoor.load(tmp_path / "a.pt")
    unmoor.restore(tmp_path / "a.pt", model=quiet_network(), rng=False)
    assert draws() == after != before
    unmoor.save(tmp_path / "b.pt", model=quiet_network(), rng=False)
    assert "rng" not in torch.load(tmp_path / "b.pt")


def quiet_network():
    """The same network without touching the global seed."""
    with torch.random.fork_rng(devices=[]):
        return network()


def test_a_random_state_that_does_not_fit_changes_no_stream(tmp_path):
    """RNG goes last, all streams or none: a state of the wrong length is found before anything changes."""
    run = start().train(1)
    parts = {name: part.state_dict() for name, part in run.roles.items()}
    python = random.getstate()
    torch.save({**parts, "torch_rng_state": torch.zeros(5056, dtype=torch.uint8), "python": python}, tmp_path / "a.pt")
    other = start(seed=4)
    before, kept = draws(), state(other)
    with pytest.raises(unmoor.MismatchError, match="no stream was changed"):
        unmoor.restore(tmp_path / "a.pt", **other.roles)
    assert draws() == before
    assert equal(state(other), kept)


def test_plain_torch_opens_what_save_writes(tmp_path):
    """One file is a standard torch zip: torch.load's safe default opens it, mmap=True too, and every CRC is right."""
    run = start().train(2)
    path = tmp_path / "a.pt"
    unmoor.save(path, **run.roles, step=2, size=torch.Size([2, 3]), dtype=torch.float16, device=torch.device("cpu"))
    for options in ({}, {"mmap": True}, {"map_location": "cpu"}):
        tree = torch.load(path, **options)
        assert equal(dict(tree["model"]), dict(run.model.state_dict()))
        assert tree["size"] == (2, 3)
        assert tree["dtype"] == torch.float16
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert any(name.endswith("unmoor/manifest.json") for name in archive.namelist())
    fresh = start(seed=3)
    fresh.model.load_state_dict(tree["model"])
    fresh.optimizer.load_state_dict(tree["optimizer"])
    assert equal(fresh.optimizer.state_dict()["state"], run.optimizer.state_dict()["state"])


def test_empty_bytes_open_with_the_safe_default(tmp_path):
    """Pickle calls a class for b"" that torch's safe loading refuses: values, keys and sets are written without."""
    tree = {"a": b"", "b": {b"": 1, (2, b""): b"x"}, "c": {b"", 3}, "d": [b"", (b"",)]}
    unmoor.save(tmp_path / "x.pt", tree)
    assert torch.load(tmp_path / "x.pt") == tree == unmoor.load(tmp_path / "x.pt")
    unmoor.save(tmp_path / "y.pt", unmoor.snapshot(rng=False, **tree))
    assert torch.load(tmp_path / "y.pt") == tree


def test_save_takes_a_tree_as_torch_save_does(tmp_path):
    """unmoor.save(path, tree) is a drop-in: the same tree comes back from torch.load and from unmoor.load."""
    big = torch.arange(1000.0)
    tree = {
        "views": [big[:4], big[2:6]],
        "odd": (None, True, 2**70, -1.5, "text", b"bytes", 1j),
        "set": {1, 2},
        "strided": torch.arange(12.0).reshape(3, 4).t(),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(3),
        "parameter": nn.Parameter(torch.ones(2)),
        "ordered": OrderedDict(a=1),
        3: "number key",
    }
    unmoor.save(tmp_path / "t.pt", tree)
    for back in (torch.load(tmp_path / "t.pt"), unmoor.load(tmp_path / "t.pt")):
        assert list(back) == list(tree)
        assert equal({k: v for k, v in back.items() if k != "set"}, {k: v for k, v in tree.items() if k != "set"})
        assert back["strided"].stride() == (1, 4)
        assert isinstance(back["parameter"], nn.Parameter)
        back["views"][0][2] = -1
        assert back["views"][1][0] == -1
    assert (tmp_path / "t.pt").stat().st_size < 6000


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
@pytest.mark.parametrize(
    "dtype",
    sorted({d for d in vars(torch).values() if isinstance(d, torch.dtype) and not UNTESTED.match(str(d))}, key=str),
    ids=str,
)
def test_every_dtype_comes_back(tmp_path, dtype):
    """Every dtype of this torch that can hold data comes back bit for bit, through torch.load and unmoor.load."""
    tensor = torch.arange(32, dtype=torch.uint8).view(dtype)
    torch.save(tensor, tmp_path / "try.pt")
    bits = tensor.view(torch.uint8)
    assert DTYPES[str(dtype).removeprefix("torch.")].itemsize == dtype.itemsize
    unmoor.save(tmp_path / "a.pt", {"t": tensor})
    for back in (torch.load(tmp_path / "a.pt"), unmoor.load(tmp_path / "a.pt"), unmoor.load(tmp_path / "try.pt")):
        found = back["t"] if isinstance(back, dict) else back
        assert found.dtype == dtype
        assert torch.equal(found.view(torch.uint8), bits)


def test_refuses_what_would_need_code_all_at_once(tmp_path):
    """Values that could not be read back without running code are refused before anything is written, all of them."""
    import argparse

    with pytest.raises(unmoor.UsageError) as caught:
        unmoor.save(tmp_path / "a.pt", {"args": argparse.Namespace(lr=1), "fn": print, "deep": [{"x": object()}]})
    text = str(caught.value)
    assert all(
        part in text for part in ("args: argparse.Namespace", "fn: builtins.builtin", "deep.0.x: builtins.object")
    )
    assert "vars(args)" in text
    assert not list(tmp_path.iterdir())


def test_says_what_was_written_in_another_form(tmp_path):
    """Numpy arrays and numbers are written without numpy, noted in the receipt, and arrays come back as arrays."""
    tree = {"a": np.arange(3, dtype="float32"), "n": np.float64(0.5), "i": np.int64(7), "d": defaultdict(list, x=[1])}
    receipt = unmoor.save(tmp_path / "a.pt", tree)
    assert {change.name for change in receipt.converted} == {"a", "n", "i", "d"}
    back = unmoor.load(tmp_path / "a.pt")
    assert isinstance(back["a"], np.ndarray)
    assert back["a"].dtype == np.float32
    assert (type(back["n"]), back["n"], type(back["i"]), back["d"]) == (float, 0.5, int, {"x": [1]})
    assert equal(torch.load(tmp_path / "a.pt")["a"], torch.arange(3.0))


def test_role_that_the_file_lacks_is_in_the_report(tmp_path):
    """A role that the file lacks, or that the caller did not pass, is in the report under NOT restored."""
    run = start().train(1)
    unmoor.save(tmp_path / "m.pt", model=run.model, rng=False)
    other = start(seed=3)
    report = unmoor.restore(tmp_path / "m.pt", **other.roles)
    assert {c.label for c in report.not_restored} >= {"optimizer", "scheduler"}
    assert "NOT restored" in str(report)

    unmoor.save(tmp_path / "all.pt", **run.roles)
    report = unmoor.restore(tmp_path / "all.pt", model=other.model, rng=False)
    assert "optimizer" in {c.label for c in report.not_restored}
    assert equal(other.model.state_dict(), run.model.state_dict())
    assert not other.optimizer.state


def test_restored_tensors_never_look_into_the_file(tmp_path):
    """Law 3: overwriting or deleting the file afterwards is safe, also right through the same path."""
    run = start().train(2)
    path = tmp_path / "a.pt"
    unmoor.save(path, **run.roles)
    other = start(seed=3)
    unmoor.restore(path, **other.roles)
    tree = unmoor.load(path)
    path.write_bytes(b"\0" * path.stat().st_size)
    path.unlink()
    assert equal(state(other), state(run))
    assert equal(dict(tree["model"]), dict(run.model.state_dict()))
    unmoor.save(path, **other.train(1).roles)


def test_groups_stay_the_same_objects(tmp_path):
    """Parameter groups are updated in place: schedulers and wrappers that hold the list keep working."""
    run = start().train(2)
    unmoor.save(tmp_path / "a.pt", **run.roles)
    other = start(seed=3)
    groups, first = other.optimizer.param_groups, other.optimizer.param_groups[0]
    unmoor.restore(tmp_path / "a.pt", **other.roles)
    assert other.optimizer.param_groups is groups
    assert other.optimizer.param_groups[0] is first
    assert "param_names" not in first


def test_plan_shows_the_effect_and_touches_nothing(tmp_path):
    """unmoor.plan takes what restore takes, shows the whole effect, and changes nothing."""
    run = start().train(2)
    unmoor.save(tmp_path / "a.pt", **run.roles)
    other = start(seed=3)
    before, drawn = state(other), draws()
    made = unmoor.plan(tmp_path / "a.pt", **other.roles)
    assert made.restored == ("model", "optimizer", "scheduler", "rng")
    assert "would restore" in str(made)
    assert equal(state(other), before)
    assert draws() == drawn
    assert made.to_json()["copies"]


def test_an_object_that_refuses_its_state_changes_nothing(tmp_path):
    """A load_state_dict that raises leaves every live object as it was, and the error names object and cause."""

    class Picky(Tracker):
        def load_state_dict(self, state):
            super().load_state_dict(state)
            if state["best"] > 0.6:
                raise ValueError("best is out of range")

    run = start().train(2)
    tracker, picky = Tracker(), Picky()
    tracker.best = 0.75
    unmoor.save(tmp_path / "a.pt", **run.roles, metrics=tracker)
    other = start(seed=3)
    before, drawn = state(other), draws()
    with pytest.raises(unmoor.MismatchError, match="best is out of range") as caught:
        unmoor.restore(tmp_path / "a.pt", **other.roles, metrics=picky)
    assert "metrics: Picky.load_state_dict refused the saved state; nothing was changed" in str(caught.value)
    assert picky.best == 0.5
    assert equal(state(other), before)
    assert draws() == drawn
