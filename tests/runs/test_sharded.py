"""Runs that several ranks saved, resumed in one process: plain model, optimizer and scheduler out of a folder."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import get_state_dict

import unmoor
from tests.cases.files import tiny, trained
from tests.describe import dcp_ranks
from tests.describe.dcp_maker import DcpMaker, rows
from tests.runs.training import start, state
from unmoor.errors import CorruptFile

RUNS = ["two", "four", "hybrid", "titan"]


@pytest.fixture(scope="session")
def ranks(tmp_path_factory):
    """The folders that runs of several ranks wrote."""
    return dcp_ranks.written(tmp_path_factory)


def saved(folder, tree):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(tree, checkpoint_id=folder, no_dist=True)
    return folder


def by_torch(folder, scratch):
    """The run that torch's own converter and load_state_dict give, optimizer names turned into numbers by hand."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp_to_torch_save(folder, scratch / "whole.pt")
    tree = torch.load(scratch / "whole.pt", weights_only=False)
    run = start("AdamW", seed=9)
    names = [name for name, _ in run.model.named_parameters()]
    flat = "model" not in tree
    run.model.load_state_dict({k: tree[k] for k in run.model.state_dict()} if flat else tree["model"])
    kept = tree["optimizer"]
    moments = ("step", "exp_avg", "exp_avg_sq")
    entries = [{k: kept[f"state.{n}.{k}"] if flat else kept["state"][n][k] for k in moments} for n in names]
    own = run.optimizer.state_dict()["param_groups"][0]
    options = [k for k in own if k != "params"]
    first = {k: kept[f"param_groups.{names[0]}.{k}"] for k in options} if flat else kept["param_groups"][0]
    groups = [{**{k: first[k] for k in options}, "params": own["params"]}]
    run.optimizer.load_state_dict({"state": dict(enumerate(entries)), "param_groups": groups})
    run.scheduler.load_state_dict(tree["lr_scheduler" if flat else "scheduler"])
    run.step = dcp_ranks.STEPS
    return run


@pytest.mark.parametrize("name", RUNS)
def test_a_sharded_run_goes_on_in_one_process(ranks, name, tmp_path):
    """After three more steps all is equal, bit for bit, to a run resumed by torch's converter and load_state_dict."""
    run = start("AdamW", seed=5)
    report = unmoor.restore(ranks / name, rng=False, **run.roles)
    run.step = dcp_ranks.STEPS
    other = by_torch(ranks / name, tmp_path)
    for resumed in (run, other):
        resumed.train(3)
    ours, theirs = state(run), state(other)
    assert ours["scheduler"] == theirs["scheduler"]
    assert all(torch.equal(ours["model"][k], theirs["model"][k]) for k in theirs["model"])
    entries = ours["optimizer"]["state"], theirs["optimizer"]["state"]
    assert all(torch.equal(entries[0][i][k], entries[1][i][k]) for i in entries[1] for k in entries[1][i])
    assert ours["optimizer"]["param_groups"] == theirs["optimizer"]["param_groups"]
    assert "matched by name" in str(report)
    assert report.unverified == 0


@pytest.mark.usefixtures("sim")
def test_a_sharded_run_goes_on_on_a_device(ranks):
    """Every chunk arrives in its place of a tensor on a device, and state lies beside its parameter."""
    run, other = start("AdamW", "sim:1", seed=5), start("AdamW", seed=5)
    for resumed in (run, other):
        unmoor.restore(ranks / "four", rng=False, **resumed.roles)
        resumed.step = dcp_ranks.STEPS
        resumed.train(2)
    assert {str(p.device) for p in run.model.parameters()} == {"sim:1"}
    ours, theirs = state(run), state(other)
    assert all(torch.equal(ours["model"][k], theirs["model"][k]) for k in theirs["model"])


def test_chunks_into_parameters_of_another_layout_and_dtype(tmp_path):
    """Chunks of rows into a transposed, a gappy and a float64 tensor: each element arrives once."""
    whole = torch.arange(60.0).reshape(10, 6)
    make = DcpMaker(tmp_path / "run")
    for name in ("turned", "gappy", "wide"):
        make.tensor(("model", name), whole, rows(whole.shape, 4))
    live = {
        "turned": torch.zeros(6, 10).t(),
        "gappy": torch.zeros(10, 9)[:, 1:7],
        "wide": torch.zeros(10, 6, dtype=torch.float64),
    }
    unmoor.restore(make.write(), model=live, rng=False, buffer_bytes=1 << 16)
    assert all(torch.equal(tensor, whole.to(tensor.dtype)) for tensor in live.values())


def test_parameters_that_never_stepped_start_without_state(tmp_path):
    """C88: what was saved arrives, the report counts those that had no state; a part of a state is an error."""
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"used": torch.nn.Linear(3, 2), "indexer": torch.nn.Linear(3, 2)})
    optimizer = torch.optim.AdamW(model.parameters())
    model["used"](torch.ones(2, 3)).sum().backward()
    optimizer.step()
    weights, state_dict = get_state_dict(model, optimizer)
    folder = saved(tmp_path / "run", {"model": weights, "optim": state_dict, "step": 3})
    live = torch.nn.ModuleDict({"used": torch.nn.Linear(3, 2), "indexer": torch.nn.Linear(3, 2)})
    fresh = torch.optim.AdamW(live.parameters())
    report = unmoor.restore(folder, model=live, optimizer=fresh, rng=False)
    assert [len(fresh.state[p]) for p in live.parameters()] == [3, 3, 0, 0]
    assert "2 parameters had no state when it was saved" in " ".join(str(report).split())
    del state_dict["state"]["used.bias"]["exp_avg_sq"]
    folder = saved(tmp_path / "less", {"model": weights, "optim": state_dict})
    with pytest.raises(unmoor.errors.MismatchError, match=r"used\.bias lacks exp_avg_sq"):
        unmoor.restore(folder, model=live, optimizer=fresh, rng=False)


def test_keys_that_are_numbers_are_numbers_again(tmp_path):
    """A planner notes every key as text: an optimizer by number and a scheduler's milestones go on all the same."""
    runs = []
    for seed in (1, 2):
        run = start("SGD momentum", seed=seed)
        run.scheduler = torch.optim.lr_scheduler.MultiStepLR(run.optimizer, [4, 6], 0.1)
        runs.append(run)
    first, second = runs
    first.train(3)
    tree = {role: item.state_dict() for role, item in first.roles.items()}
    unmoor.restore(saved(tmp_path / "run", tree), rng=False, **second.roles)
    second.step = first.step
    for run in runs:
        run.train(4)
    assert first.optimizer.param_groups[0]["lr"] == second.optimizer.param_groups[0]["lr"] < 0.001
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_an_optimizer_that_never_stepped(tmp_path):
    """Empty state leaves no entry in a sharded folder: the optimizer is found by its groups, and starts fresh."""
    run = start("AdamW", seed=1)
    weights, optimizer = run.model.state_dict(), run.optimizer.state_dict()
    folder = saved(tmp_path / "run", {"model": weights, "optimizer": {**optimizer, "state": {}}})
    live = start("AdamW", seed=2)
    report = unmoor.restore(folder, model=live.model, optimizer=live.optimizer, rng=False)
    assert "state for 0 of 10 parameters" in str(report)
    assert not live.optimizer.state


def accelerate_folder(folder):
    """C90: what accelerate and transformers write for sharded FSDP state."""
    model, optimizer = trained(make=torch.optim.AdamW)
    weights, state_dict = get_state_dict(model, optimizer)
    folder.mkdir()
    saved(folder / "pytorch_model_fsdp_0", {"model": weights})
    saved(folder / "optimizer_0", {"optimizer": state_dict, "epoch": 20})
    torch.save({"last_epoch": 10, "_step_count": 11}, folder / "scheduler.pt")
    return model, optimizer


def test_folders_inside_of_a_folder(tmp_path):
    """C90: model and optimizer in folders of their own, beside a scheduler's file: one checkpoint."""
    folder = tmp_path / "checkpoint-10"
    model, optimizer = accelerate_folder(folder)
    live = tiny(8)
    fresh = torch.optim.AdamW(live.parameters())
    report = unmoor.restore(folder, model=live, optimizer=fresh, rng=False)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), live.parameters(), strict=True))
    for one, other in zip(model.parameters(), live.parameters(), strict=True):
        assert all(torch.equal(value, fresh.state[other][key]) for key, value in optimizer.state[one].items())
    assert report.unverified == 0
    tree = unmoor.load(folder)
    assert tree["optimizer_0"]["epoch"] == 20
    assert tree["scheduler.pt"]["last_epoch"] == 10


def test_one_shard_or_list_alone_names_the_folder(tmp_path):
    """C90: a shard file or `.metadata` given alone is no checkpoint, and the error says to give the folder."""
    accelerate_folder(tmp_path / "run")
    for name, words in (("__0_0.distcp", "Open the folder"), (".metadata", "Give the folder that it lies in")):
        with pytest.raises(unmoor.errors.UnsupportedFile, match=words):
            unmoor.describe(tmp_path / "run" / "optimizer_0" / name)


def test_a_file_of_the_rest_beside_the_shards(tmp_path):
    """Lightning's sharded folder: weights and optimizers in shards, all else in meta.pt, read as one tree."""
    model, optimizer = trained(make=torch.optim.AdamW)
    weights, state_dict = get_state_dict(model, optimizer)
    folder = saved(tmp_path / "last.ckpt", {"model": weights, "optimizer_0": state_dict})
    torch.save({"pytorch-lightning_version": "2.6.0", "epoch": 4, "loops": {}}, folder / "meta.pt")
    catalog = unmoor.describe(folder)
    assert catalog.dialect == "lightning"
    live = tiny(8)
    report = unmoor.restore(folder, model=live, optimizer=torch.optim.AdamW(live.parameters()), rng=False)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), live.parameters(), strict=True))
    assert report.extra["epoch"] == 4


def test_nothing_changes_where_a_shard_is_missing(ranks, tmp_path):
    """All is checked before the first byte moves: a folder that lacks a rank's file leaves the run as it was."""
    folder = tmp_path / "copy"
    folder.mkdir()
    for file in (ranks / "four").iterdir():
        if file.name != "__3_0.distcp":
            (folder / file.name).write_bytes(file.read_bytes())
    run = start("AdamW", seed=5)
    before = state(run)
    with pytest.raises(CorruptFile, match=r"the file __3_0\.distcp is missing"):
        unmoor.restore(folder, rng=False, **run.roles)
    assert all(torch.equal(before["model"][k], v) for k, v in run.model.state_dict().items())
    assert not run.optimizer.state


MEASURE = """
import resource, sys
import torch
import unmoor

live = {"weight": torch.ones(4096, 4096)}
unmoor.restore(sys.argv[2], model={"weight": torch.ones(8, 4)}, rng=False)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
unmoor.restore(sys.argv[1], model=live, rng=False, buffer_bytes=1 << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, float(live["weight"][-1, -1]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ru_maxrss is in KiB on Linux")
@pytest.mark.parametrize("axis", [0, 1], ids=["rows", "columns"])
def test_chunks_are_filled_in_place(tmp_path, axis):
    """Memory: live state and one bounded buffer. 64 MiB in four chunks, of rows or of columns, leave no trace."""
    for name, shape in (("large", (4096, 4096)), ("small", (8, 4))):
        make = DcpMaker(tmp_path / name)
        cuts = rows(shape, 4) if axis == 0 else [(a[::-1], n[::-1]) for a, n in rows(shape[::-1], 4)]
        make.tensor(("weight",), torch.arange(shape[0] * shape[1], dtype=torch.float32).reshape(shape), cuts)
        make.write()
    code = [sys.executable, "-c", MEASURE, str(tmp_path / "large"), str(tmp_path / "small")]
    done = subprocess.run(code, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    kib, last = map(float, done.stdout.split())
    assert last == 4096 * 4096 - 1
    assert kib < 8 << 10
