"""Folders that the ranks of an FSDP1 run wrote, each its own shards, restored into the plain model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import unmoor
from tests.worlds.launch import launch
from tests.worlds.ranks.flat_ranks import VARIANTS, Network, optimizer_of, step

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this build has no torch.distributed")

WORLD = 3


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folders of all variants, and what their ranks held when they saved."""
    folder = tmp_path_factory.mktemp("flat_ranks")
    first, *_ = launch("tests.worlds.ranks.flat_ranks", WORLD, folder)
    return folder, first


def fresh(groups: int = 1) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A network of other weights and an optimizer of other rates."""
    torch.manual_seed(8)
    model = Network()
    optimizer = optimizer_of(list(model.parameters()), groups)
    for group in optimizer.param_groups:
        group["lr"] = 5.0
    return model, optimizer


def groups_of(variant: str, model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer whose groups hold the parameters that those of the variant held."""
    if VARIANTS[variant].groups == 1 or VARIANTS[variant].original:
        return optimizer_of(list(model.parameters()), VARIANTS[variant].groups)
    first = [*model.inp.parameters(), *model.out.parameters(), *model.layers[0].parameters()]
    rest = [*model.layers[1].parameters(), *model.scale.parameters()]
    return torch.optim.AdamW([{"params": first, "lr": 5.0}, {"params": rest, "lr": 5.0}], weight_decay=0.1)


def differences(model: nn.Module, optimizer: torch.optim.Optimizer, wanted: dict[str, Any]) -> list[str]:
    """What is not bit for bit as it was saved."""
    wrong = [name for name, value in model.state_dict().items() if not torch.equal(value, wanted["model"][name])]
    for name, parameter in model.named_parameters():
        own, other = optimizer.state[parameter], wanted["state"][name]
        wrong += [f"{name}/{key}" for key in other if not torch.equal(own[key], other[key])]
        wrong += [f"{name}/{key}" for key in own.keys() ^ other.keys()]
    return wrong


@pytest.mark.parametrize("variant", VARIANTS)
def test_shards_of_all_ranks_become_parameters(saved: tuple[Path, dict[str, Any]], variant: str) -> None:
    """Weights, buffers, moments and steps are those of the ranks, whatever was wrapped and however it was written."""
    folder, wanted = saved
    model, _ = fresh()
    optimizer = groups_of(variant, model)
    unmoor.restore(folder / variant, model=model, optimizer=optimizer, rng=False)
    assert differences(model, optimizer, wanted[variant]) == []
    assert [group["lr"] for group in optimizer.param_groups] == wanted[variant]["rates"]
    if VARIANTS[variant].low is None:
        assert step(model, optimizer, 3) == pytest.approx(wanted[variant]["next"], rel=1e-6)


def test_whole_vectors_without_a_model(saved: tuple[Path, dict[str, Any]]) -> None:
    """`load` and `describe` give the FlatParameters whole: one vector each, without the padding of the last rank."""
    folder, wanted = saved
    tree = unmoor.load(folder / "nested")
    found = tree["model_local_rank*.pt"]["layers.0._flat_param"]
    names = [name for name in wanted["nested"]["state"] if name.startswith("layers.0.")]
    assert torch.equal(found, torch.cat([wanted["nested"]["model"][name].flatten() for name in names]))
    catalog = unmoor.describe(folder / "nested")
    assert [finding.code for finding in catalog.findings if finding.severity == "info"][:1] == ["flat-ranks"]
    assert {part.role: part.detail["flat_ranks"] for part in catalog.parts} == {"model": WORLD, "optimizer": WORLD}


def test_what_lies_beside_the_shards_is_kept(saved: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """Plain values are rank 0's, and other files of the folder are read as they are."""
    folder, _ = saved
    shutil.copytree(folder / "single", tmp_path, dirs_exist_ok=True)
    model, optimizer = fresh()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    torch.save({**scheduler.state_dict(), "last_epoch": 4, "_step_count": 5}, tmp_path / "scheduler.pt")
    report = unmoor.restore(tmp_path, model=model, optimizer=optimizer, scheduler=scheduler, rng=False)
    assert report.extra["model.rank_*.pth"]["iteration"] == 3
    assert scheduler.last_epoch == 4


def test_the_optimizer_alone_where_one_module_was_wrapped(saved: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """One FlatParameter holds all parameters, so no file of the model is needed to tell which."""
    folder, wanted = saved
    for rank in range(WORLD):
        shutil.copy(folder / "flat" / f"optim_rank{rank}.pt", tmp_path)
    model, optimizer = fresh()
    unmoor.restore(tmp_path, optimizer=optimizer, rng=False)
    moments = {name: optimizer.state[p]["exp_avg"] for name, p in model.named_parameters()}
    assert [n for n, value in moments.items() if not torch.equal(value, wanted["flat"]["state"][n]["exp_avg"])] == []


def test_the_report_of_the_field(tmp_path: Path) -> None:
    """C86: 13 of 26 elements a rank, under id 0; both files give state by parameter (pytorch/pytorch#73884)."""
    model, optimizer, wanted = halves(tmp_path)
    unmoor.restore(tmp_path, model=model, optimizer=optimizer, rng=False)
    for name, parameter in model.named_parameters():
        assert torch.equal(optimizer.state[parameter]["exp_avg"], wanted[name])
        assert optimizer.state[parameter]["step"] == 3
    assert [tuple(value.shape) for value in wanted.values()] == [(4, 3), (4,), (2, 4), (2,)]


@pytest.mark.parametrize(("file", "needed"), [("optim_rank0.pt", 1), ("optim_rank1.pt", None), ("model_rank0.pt", 1)])
def test_one_file_alone_says_which_others_it_needs(tmp_path: Path, file: str, needed: int | None) -> None:
    """C86: the share of rank 0 tells how many ranks there were; any other may be the shorter last one."""
    model, optimizer, _ = halves(tmp_path)
    role = {"model": model} if file.startswith("model") else {"optimizer": optimizer}
    with pytest.raises(unmoor.MismatchError) as failed:
        unmoor.restore(tmp_path / file, **role, rng=False)
    text = str(failed.value)
    assert "FSDP1 flat shard 13 of 26 elements" in text
    assert (f"rank {needed} needed" if needed is not None else "those of the other ranks needed") in text
    assert "the folder that holds the files of all ranks" in text


def halves(folder: Path) -> tuple[nn.Module, torch.optim.Optimizer, dict[str, torch.Tensor]]:
    """Files of two ranks as plain tensors, and a model and optimizer to restore them into."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    flat, moment = torch.randn(26), torch.randn(26)
    for rank in range(2):
        part = slice(13 * rank, 13 * rank + 13)
        torch.save({"_flat_param": flat[part].clone()}, folder / f"model_rank{rank}.pt")
        own = {"step": torch.tensor(3.0), "exp_avg": moment[part].clone(), "exp_avg_sq": flat[part].square()}
        group = {**torch.optim.Adam([torch.zeros(1)]).state_dict()["param_groups"][0], "params": [0]}
        torch.save({"state": {0: own}, "param_groups": [group]}, folder / f"optim_rank{rank}.pt")
    sizes = [p.numel() for p in model.parameters()]
    parts = zip(model.named_parameters(), moment.split(sizes), strict=True)
    return model, torch.optim.Adam(model.parameters()), {name: part.view(p.shape) for (name, p), part in parts}


def drop(name: str) -> Any:
    return lambda folder: (folder / name).unlink()


def swap(folder: Path) -> None:
    one, other = (folder / f"model_local_rank{rank}.pt" for rank in (0, 1))
    one.rename(folder / "kept")
    other.rename(one)
    (folder / "kept").rename(other)


def older(folder: Path) -> None:
    place = folder / "optim_rank1.pt"
    state = torch.load(place)
    state["state"][0]["step"] -= 1
    torch.save(state, place)


FAULTS = {
    "a rank is missing": (drop("model_local_rank1.pt"), unmoor.CorruptFile, "rank 1 is missing"),
    "the last rank is missing": (drop("model_local_rank2.pt"), unmoor.CorruptFile, "elements, "),
    "files changed places": (swap, unmoor.CorruptFile, "model_local_rank0.pt holds _flat_param from element"),
    "files of two steps": (older, unmoor.CorruptFile, "state.0.step differs between ranks"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_shards_that_do_not_belong_together(saved: tuple[Path, dict[str, Any]], tmp_path: Path, fault: str) -> None:
    """Each is an error that names file and rank, and nothing was changed."""
    folder, _ = saved
    damage, error, words = FAULTS[fault]
    shutil.copytree(folder / "flat", tmp_path, dirs_exist_ok=True)
    damage(tmp_path)
    model, optimizer = fresh()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(error, match=words):
        unmoor.restore(tmp_path, model=model, optimizer=optimizer, rng=False)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_another_model_is_told_both_numbers(saved: tuple[Path, dict[str, Any]]) -> None:
    """The elements of a FlatParameter and those of the live parameters that should be in it are named."""
    folder, _ = saved
    model, _ = fresh()
    model.layers[1].b = nn.Linear(5, 4)
    with pytest.raises(unmoor.MismatchError) as failed:
        unmoor.restore(folder / "nested", model=model, rng=False)
    assert "layers.1._flat_param has 48 elements in the files of 3 ranks" in str(failed.value)
    assert "have 54" in str(failed.value)


def test_state_of_several_flat_parameters_needs_the_model(saved: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """Which parameters each of four FlatParameters holds only the names in the model's files tell."""
    folder, _ = saved
    for rank in range(WORLD):
        shutil.copy(folder / "nested" / f"optim_rank{rank}.pt", tmp_path)
    model, optimizer = fresh()
    with pytest.raises(unmoor.MismatchError, match=r"state of 4 FlatParameters, and no model is beside it"):
        unmoor.restore(tmp_path, model=None, optimizer=optimizer, rng=False)
    assert not optimizer.state
    assert len(list(model.parameters())) == 17
