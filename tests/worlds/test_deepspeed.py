"""Flat shares of DeepSpeed and of FSDP1 restored in worlds of another size: each rank takes its own part of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.describe.zero_maker import Shape, ZeroMaker
from tests.worlds.launch import Failed, launch
from tests.worlds.ranks.flat_ranks import Network, optimizer_of, step

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this build has no torch.distributed")

FOLDERS = ("stage 1", "stage 3", "flat parameters")
WORLDS = {"ddp x4": ("ddp", 4), "fsdp2 x3": ("fsdp2", 3)}


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A network after three steps, as the ranks of the folders had it."""
    torch.manual_seed(7)
    model = Network()
    optimizer = optimizer_of(list(model.parameters()), 1)
    for number in range(3):
        step(model, optimizer, number)
    return model, optimizer


def flat_files(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, ranks: int) -> Path:
    """What the ranks of FSDP1 write of a model that is one FlatParameter."""
    folder.mkdir()
    parameters = list(model.parameters())
    values = {
        "weight": parameters,
        **{k: [optimizer.state[p][k] for p in parameters] for k in ("exp_avg", "exp_avg_sq")},
    }
    flat = {key: torch.cat([value.detach().flatten() for value in own]) for key, own in values.items()}
    shares = {key: torch.cat([own, torch.zeros(-len(own) % ranks)]).chunk(ranks) for key, own in flat.items()}
    group = {**optimizer.state_dict()["param_groups"][0], "params": [0]}
    for rank in range(ranks):
        own = {key: share[rank].clone() for key, share in shares.items()}
        last = min(len(own["weight"]), len(flat["weight"]) - rank * len(own["weight"]))
        buffers = dict(model.named_buffers())
        torch.save({"_flat_param": own.pop("weight")[:last].clone(), **buffers}, folder / f"model_rank{rank}.pt")
        state = {"step": optimizer.state[parameters[0]]["step"], **own}
        torch.save({"state": {0: state}, "param_groups": [group]}, folder / f"optim_rank{rank}.pt")
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One folder of each kind, saved by two ranks."""
    place, (model, optimizer) = tmp_path_factory.mktemp("foreign"), trained()
    groups = (len(list(model.parameters())),)
    made = {
        f"stage {stage}": ZeroMaker(model, optimizer, Shape(stage, 2, groups=groups, dtype=torch.float32)).write(
            place / str(stage)
        )
        for stage in (1, 3)
    }
    return {**made, "flat parameters": flat_files(place / "flat", model, optimizer, 2)}


@pytest.fixture(scope="module", params=WORLDS)
def restored(request: pytest.FixtureRequest, folders: dict[str, Path]) -> list[Any]:
    """What each rank of a world held after it restored each folder."""
    layout, ranks = WORLDS[request.param]
    return launch("tests.worlds.ranks.foreign_folders", ranks, layout, *(folders[name] for name in FOLDERS))


@pytest.mark.parametrize("name", FOLDERS)
def test_every_rank_has_its_part_of_the_saved_state(restored: list[Any], name: str) -> None:
    """Weights, buffers, moments and steps are those of the ranks that saved, bit for bit, on every rank."""
    model, optimizer = trained()
    for found in restored:
        assert not isinstance(found, Failed), found
        own = found[FOLDERS.index(name)]
        wrong = [key for key, value in model.state_dict().items() if not torch.equal(own["model"][key], value)]
        for key, parameter in model.named_parameters():
            state = optimizer.state[parameter]
            wrong += [f"{key}/{k}" for k, value in state.items() if not torch.equal(own["state"][key][k], value)]
        assert wrong == []
