"""Restoring into sharded runs: each rank fills its own parts, and goes on as a run filled by torch's own calls does."""

from __future__ import annotations

import json

import pytest
import torch

import unmoor

from . import sharded
from .launch import Failed, launch

FSDP1 = ["fsdp1", "fsdp1 flat", "fsdp1 grads", "fsdp1 grads flat", "fsdp1 none", "fsdp1 none flat"]
OTHERS = [optimizer for optimizer in sharded.OPTIMIZERS if optimizer != "AdamW"]
WORLDS = {
    2: (["fsdp2", "fsdp2 columns", "tp", *FSDP1], ["fsdp2 columns", "fsdp1"], ["fsdp2", "fsdp1"]),
    3: (["fsdp2", "fsdp1"], ["fsdp1 flat"], ["fsdp1 flat"]),
    4: (["fsdp2", "fsdp1 hybrid", "fsdp1 hybrid flat"], ["hsdp", "fsdp2 tp"], []),
}
"""Ranks -> layouts that take a file, layouts that take the folders, layouts that every optimizer is tried in."""


def write(folder, optimizer):
    """A run of one process in a file, and as a whole in torch's form beside it."""
    path = folder / f"{optimizer.replace(' ', '-')}.pt"
    model, own = sharded.trained(optimizer)
    torch.save(sharded.whole_state(model, own), f"{path}.whole")
    unmoor.save(path, model=model, optimizer=own)
    return str(path)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Optimizer -> a file of a run that one process saved."""
    folder = tmp_path_factory.mktemp("files")
    return {optimizer: write(folder, optimizer) for optimizer in sharded.OPTIMIZERS}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders that three ranks of FSDP2, and a mesh of FSDP2 and tensor parallel ranks, saved with torch's engine."""
    place = tmp_path_factory.mktemp("folders")
    made = [("fsdp2", 3, str(place / "three")), ("fsdp2 tp", 4, str(place / "mesh"))]
    for layout, world, path in made:
        assert launch("tests.worlds.ranks.sharded_folder", world, layout, path) == ["saved"] * world
    return [path for _, _, path in made]


@pytest.mark.parametrize("world", WORLDS)
def test_sharded_runs_go_on_as_torch_has_them(files, folders, world):
    """Parts of parameters and state, and their form, are torch's own as restored and after two steps, bit for bit."""
    from_file, from_folders, switched = WORLDS[world]
    cases = [(layout, "AdamW", files["AdamW"]) for layout in from_file]
    cases += [(layout, "AdamW", path) for layout in from_folders for path in folders]
    cases += [(layout, optimizer, files[optimizer]) for layout in switched for optimizer in OTHERS]
    given = json.dumps([(*case, f"{case[-1]}.whole") for case in cases])
    for found in launch("tests.worlds.ranks.sharded_restore", world, given):
        assert not isinstance(found, Failed), found.text
        assert found == dict.fromkeys(found, "")
        assert len(found) == len(cases)


@pytest.fixture(scope="module")
def odd():
    """What two ranks found in each odd case, by the case."""
    names = "scalars casts missing bytes_read damage tied unclear refusals bags resident without_memory safetensors"
    found = launch("tests.worlds.ranks.sharded_oddities", 2, *names.split())
    assert not any(isinstance(rank, Failed) for rank in found), found
    return {name: [rank[name] for rank in found] for name in names.split()}


@pytest.mark.parametrize(
    "name",
    ["scalars", "casts", "missing", "damage", "tied", "bags", "resident", "without_memory", "safetensors"],
)
def test_odd_tensors(odd, name):
    """Everything that the case says of itself is so on both ranks; see there."""
    for found in odd[name]:
        assert found == dict.fromkeys(found, True)


def test_a_rank_reads_its_own_bytes_and_says_so(odd):
    """Bytes read are those of the own rows of a rank, and the sums of all ranks together vouch for every storage."""
    for found in odd["bytes_read"]:
        read, own = found["bytes"]
        assert read == own
        assert found["told"] == (0, True)
        assert found["first"] == (0, True)


def test_what_has_no_place_is_refused_by_name(odd):
    """Summands, elements that lie apart, statistics of rows: named on every rank, and nothing is changed."""
    for summands, apart in odd["unclear"]:
        assert "w is laid out as (Partial(sum),) over a mesh of (2,)" in summands
        assert "do not lie side by side" in apart
    for found in odd["refusals"]:
        assert "row_var" in found["Adafactor"]
        assert "spread over ranks" in found["Adafactor"]
        assert "the state dict of Own has a form of its own" in found["Own"]
        assert found["Adafactor unchanged"]
        assert found["Own unchanged"]
        assert "Pass the model too" in found["alone"]
        assert "stay on the device of their mesh" in found["moved"]
        assert "stay on the device of their mesh" in found["moved alone"]
        assert "not by the parameters that the model has" in found["gradients"]
        assert found["stays"] == "no error"


def test_three_ranks_of_odd_tensors():
    """A rank outside of the mesh, a tie that only two of three ranks see differ, rows that nothing divides."""
    for found in launch("tests.worlds.ranks.sharded_oddities", 3, "outside", "tied", "without_memory"):
        assert not isinstance(found, Failed), found.text
        for case, values in found.items():
            assert values == dict.fromkeys(values, True), case
