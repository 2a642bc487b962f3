"""Restoring into sharded runs: each rank fills its own parts, and goes on as a run filled by torch's own calls does."""

from __future__ import annotations

import json

import pytest
import torch

import unmoor

from . import sharded
from .launch import Failed, launch

SMALL = ("SGD", "Adagrad", "RMSprop", "Adam foreach", "Adam fused")


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


def assert_equal(world, cases):
    for found in launch("tests.worlds.ranks.sharded_restore", world, json.dumps(cases)):
        assert not isinstance(found, Failed), found.text
        assert found == dict.fromkeys(found, "")
        assert len(found) == len(cases)


@pytest.mark.parametrize(
    ("world", "layouts"),
    [
        (2, ["fsdp2", "fsdp2 columns", "tp", "fsdp1", "fsdp1 flat", "fsdp1 grads", "fsdp1 grads flat"]),
        (2, ["fsdp1 none", "fsdp1 none flat"]),
        (3, ["fsdp2", "fsdp1", "fsdp1 flat"]),
        (4, ["fsdp2", "hsdp", "fsdp2 tp", "fsdp1 hybrid", "fsdp1 hybrid flat"]),
    ],
)
def test_sharded_runs_go_on_as_torch_has_them(files, folders, world, layouts):
    """Parts of parameters and state are equal as restored and after two steps, from a file and from others' folders."""
    paths = [(path, f"{path}.whole") for path in (files["AdamW"], *folders)]
    assert_equal(world, [(layout, "AdamW", *path) for layout in layouts for path in paths])


@pytest.mark.parametrize("world", [2, 3])
def test_every_state_is_in_the_form_that_stepping_makes(files, world):
    """Momentum is a DTensor, counters are plain, accumulators begin where the class begins: switch by switch."""
    layouts = ["fsdp2", "fsdp1", "fsdp1 flat"]
    assert_equal(world, [(x, o, files[o], f"{files[o]}.whole") for x in layouts for o in SMALL])
