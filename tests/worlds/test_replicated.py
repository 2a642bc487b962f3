"""Replicas under torchrun: one file of N ranks goes on in M ranks, each with what it had for itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist

import unmoor
from tests.cases.files import bits
from tests.worlds.as_rank import restore_as
from tests.worlds.launch import launch
from tests.worlds.ranks import replicated

SCRIPT = "tests.worlds.ranks.replicated"
SHARED = ("parameters", "optimizer", "scheduler", "scaler")
OWN = ("buffers", "metrics", "draws")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A file of two ranks, and what each rank had and did next."""
    path = tmp_path_factory.mktemp("two") / "run.pt"
    return path, launch(SCRIPT, 2, "save", path)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A file of one process, and what it had and did next."""
    path = tmp_path_factory.mktemp("one") / "run.pt"
    return path, _alone(replicated.save, path)


def _alone(verb: Any, path: Path) -> Any:
    """What `verb` gives in this process, with one thread as torchrun gives its ranks: one order of sums."""
    assert not dist.is_initialized()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return verb(0, str(path))
    finally:
        torch.set_num_threads(threads)


def _same(found: Any, wanted: Any, *names: str) -> None:
    for name in names:
        assert bits(found[name]) == bits(wanted[name]), name


def test_one_file_holds_what_is_common_once(two: tuple[Path, list[Any]]) -> None:
    """Plain torch.load opens it: the tree of rank 0, and beside it the leaves in which rank 1 differs, no more."""
    path, saved = two
    tree = torch.load(path)
    own = tree.pop("ranks")
    assert set(own) == {"1"}
    assert set(own["1"]) == {"model", "metrics", "rng", "best", "seen"}
    assert set(own["1"]["model"]) == {"1.running_mean", "1.running_var"}
    assert set(own["1"]["rng"]) == {"torch", "numpy", "python"}
    assert own["1"]["seen"] == {"files": ["part-1"]}
    assert tree["step"] == 3
    assert bits(tree["model"]["1.running_mean"]) == bits(saved[0]["buffers"]["1.running_mean"])
    catalog = unmoor.describe(path)
    assert catalog.manifest is not None
    assert catalog.manifest["world_size"] == 2


def test_every_rank_gets_the_receipt(two: tuple[Path, list[Any]]) -> None:
    """All ranks say the same of what was written, ranks included."""
    first, second = (rank["receipt"] for rank in two[1])
    assert first == second
    assert "ranks      2; each has its own model, metrics, rng, best, seen" in first


def test_as_many_ranks_go_on_as_if_nothing_had_been(two: tuple[Path, list[Any]]) -> None:
    """Two ranks of two: statistics, streams, metrics and values of each are its own, and so are the next losses."""
    path, saved = two
    for rank, found in enumerate(launch(SCRIPT, 2, "restore", path)):
        _same(found, saved[rank], *SHARED, *OWN, "sampler", "next")
        assert found["extra"] == {"step": 3, "best": 0.5 + rank, "seen": {"epoch": 1, "files": [f"part-{rank}"]}}
        assert found["left"] == []
        assert found["notes"]["ranks"].startswith(f"saved by 2 ranks, this is rank {rank} of 2: ")


def test_one_process_goes_on_as_rank_0(two: tuple[Path, list[Any]]) -> None:
    """Of two ranks one process is rank 0, next loss included; what rank 1 had for itself is named as not used."""
    path, saved = two
    found = _alone(replicated.restore, path)
    _same(found, saved[0], *SHARED, *OWN, "sampler")
    assert found["next"][0] == saved[0]["next"][0]
    assert found["extra"] == {"step": 3, "best": 0.5, "seen": {"epoch": 1, "files": ["part-0"]}}
    assert [line for line in found["left"] if line[1] != "sim"] == [
        ("rng", "", "saved by 2 ranks, this process is rank 0", "those of the others are not used: rank 1"),
        ("model", "", "2 buffers of rank 1", "not used"),
        ("metrics", "", "of rank 1", "not used"),
        ("extra", "best", "of rank 1", "not used"),
        ("extra", "seen.files", "of rank 1", "not used"),
    ]


def test_more_ranks_share_what_is_common_and_guess_nothing(two: tuple[Path, list[Any]]) -> None:
    """Of four ranks two are those that saved; the others have rank 0's statistics, streams of their own, no sums."""
    path, saved = two
    ranks = launch(SCRIPT, 4, "restore", path)
    for rank, found in enumerate(ranks[:2]):
        _same(found, saved[rank], *SHARED, *OWN, "sampler")
        assert found["next"][0] == saved[rank]["next"][0]
    for rank, found in enumerate(ranks[2:], 2):
        _same(found, saved[0], *SHARED, "buffers", "sampler")
        assert found["metrics"] == {"total": 0.0, "seen": 0}
        assert found["extra"] == {"step": 3, "seen": {"epoch": 1}}
        assert "metrics" not in found["restored"]
        assert ("metrics", "", "each of 2 ranks had its own", f"rank {rank} has none") in found["left"]
        assert ("extra", "best", "each of 2 ranks had its own", f"rank {rank} has none") in found["left"]
        assert f"derived for rank {rank} from the states of rank 0" in found["notes"]["rng"]
        assert "sampler as on rank 0; saved by 2 ranks, now 4" in found["notes"]["rng"]
    assert len({str(found["draws"]) for found in ranks}) == 4


def test_the_run_of_one_process_goes_on_in_two_ranks(one: tuple[Path, Any]) -> None:
    """Rank 0 is the process that saved, bit for bit; rank 1 has the same state and streams of its own."""
    path, saved = one
    first, second = launch(SCRIPT, 2, "restore", path)
    _same(first, saved, *SHARED, *OWN, "sampler")
    assert first["next"][0] == saved["next"][0]
    _same(second, saved, *SHARED, "buffers", "metrics", "sampler")
    assert second["draws"] != saved["draws"]
    assert first["extra"] == second["extra"] == {"step": 3, "best": 0.5, "seen": {"epoch": 1, "files": ["part-0"]}}
    assert "saved by 1 rank, this is rank 1 of 2" in second["notes"]["ranks"]


def test_one_process_saves_as_it_always_has(one: tuple[Path, Any]) -> None:
    """A file of one process has no place for ranks."""
    assert "ranks" not in torch.load(one[0])
    assert _alone(replicated.restore, one[0])["next"] == one[1]["next"]


def test_sums_of_one_process_are_not_counted_by_every_rank(tmp_path: Path) -> None:
    """A torchmetrics metric of one process goes on in rank 0 alone; a new rank begins at nothing, and that is said."""
    from torchmetrics.aggregation import SumMetric

    saved = SumMetric()
    saved.update(3.0)
    unmoor.save(tmp_path / "x.pt", metrics=saved, step=1)
    for rank, total in ((0, 3.0), (1, 0.0)):
        live = SumMetric()
        report = restore_as(rank, 2, tmp_path / "x.pt", metrics=live)
        assert live.sum_value.item() == total
        rows = [(c.before, c.after) for c in report.not_restored if c.label == "metrics"]
        assert rows == [("1 rank saved its sums, which would count twice", "rank 1 has none")][:rank]
        assert report.extra == {"step": 1}


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """What two ranks met at saves that fail, and at some that do not."""
    place = tmp_path_factory.mktemp("faults")
    return place, launch("tests.worlds.ranks.replicated_faults", 2, place)


REFUSED: dict[str, tuple[str, list[str]]] = {
    "values": (
        "RanksDiffer",
        ["model.0.weight", "model.0.bias", "other values on rank 1 than on rank 0", "group=None"],
    ),
    "moment": ("RanksDiffer", ["optimizer.state.1.exp_avg", "in 1 place;"]),
    "rate": ("RanksDiffer", ["optimizer.param_groups.0.lr", "0.1 on rank 0, 1.1 on rank 1"]),
    "names": ("RanksDiffer", ["model", "on rank 0 alone 1.weight, 1.bias, 1.running_mean, 1.running_var and 1 more"]),
    "shape": ("RanksDiffer", ["model.weight", "4x3 float32 on rank 0, 5x3 float32 on rank 1"]),
    "collect": ("UsageError", ["note: builtins.object", "rank 1"]),
    "folder": ("SaveError", ["missing does not exist", "rank 0"]),
    "disk": ("SaveError", ["run.pt was not saved", "the checkpoint that was there before is untouched", "rank 0"]),
    "root": ("UsageError", ["save a dict of objects or values, and this tree is a list"]),
    "word": ("UsageError", ["'ranks' is where a checkpoint of several ranks keeps"]),
    "large": ("UsageError", ["replay  16.0 KiB", "8.0 KiB a rank", "group=None"]),
    "paths": ("RanksDiffer", ["run-0.pt", "run-1.pt", "one path for all"]),
    "flat values": ("RanksDiffer", ["model.0.weight", "other values on rank 1 than on rank 0"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_saved_is_an_error_on_every_rank(case: str, faults: tuple[Path, list[Any]]) -> None:
    """Both ranks raise an error of one class that names the place and the rank."""
    kind, said = REFUSED[case]
    for found in faults[1]:
        name, text, _ = found[case]
        assert name == kind, text
        for words in said:
            assert words in text, text


def test_no_failed_save_leaves_anything(faults: tuple[Path, list[Any]]) -> None:
    """What was there before is whole, and there is neither a half file nor a hidden one."""
    place, ranks = faults
    for found in ranks:
        assert found["run.pt"] == {"mark": "before"}
    assert sorted(os.listdir(place)) == [
        "alike.pt", "alone.pt", "flat.safetensors", "one.pt", "run.pt", "snapshot.pt"
    ]  # fmt: skip


def test_equal_values_in_other_memory_are_equal(faults: tuple[Path, list[Any]]) -> None:
    """A parameter that is a view of something larger on one rank is held against its values."""
    for found in faults[1]:
        assert found["alike"].startswith("saved ")


def test_a_value_that_one_rank_alone_has_comes_back_to_it(faults: tuple[Path, list[Any]]) -> None:
    """Rank 0's is not given to rank 1, nor rank 1's to rank 0."""
    assert [found["one.pt"] for found in faults[1]] == [{"best": 1}, {"mine": 2}]


def test_a_snapshot_of_each_rank_is_saved_together(faults: tuple[Path, list[Any]]) -> None:
    """What each rank has for itself is in the file of snapshots too."""
    for rank, found in enumerate(faults[1]):
        assert found["snapshot.pt"] == {"own": rank}
        assert torch.equal(found["snapshot mean"], torch.full((4,), float(rank)))


def test_safetensors_has_place_for_one_rank(faults: tuple[Path, list[Any]]) -> None:
    """The model of rank 0 is written, and every rank's receipt says what of others is left out."""
    place, ranks = faults
    for found in ranks:
        said = "model: what differs on rank 1, not written: safetensors has one place for it, and rank 0's is there"
        assert said in " ".join(found["flat"].split())
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    unmoor.restore(place / "flat.safetensors", model=model)
    assert torch.equal(model[1].running_mean, torch.zeros(4))


def test_ranks_that_save_alone_to_one_path_leave_one_good_file(faults: tuple[Path, list[Any]]) -> None:
    """C53: with group=None the file at a path that both wrote to is that of one of them, whole."""
    place, _ = faults
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    report = unmoor.restore(place / "alone.pt", model=model, verify="first")
    torch.manual_seed(report.extra["mark"])
    wanted = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    assert bits(model.state_dict()) == bits(wanted.state_dict())
