"""A `.metadata` that runs code: plain dcp.load runs it; nothing of ours does, and the data is read all the same."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import pytest
import torch
from torch.distributed import checkpoint as dcp

import unmoor


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (self.mark,)


@pytest.fixture
def hostile(tmp_path):
    """A sound folder whose `.metadata` runs code on the way; the mark that it leaves."""
    state = {"model": torch.nn.Linear(3, 2).state_dict()}
    with pytest.warns(UserWarning, match="torch.distributed is"):
        dcp.save(state, checkpoint_id=tmp_path / "folder")
    place = tmp_path / "folder" / ".metadata"
    metadata = pickle.loads(place.read_bytes())
    metadata.storage_meta = Evil(str(tmp_path / "mark"))
    place.write_bytes(pickle.dumps(metadata))
    return tmp_path / "folder", tmp_path / "mark", state["model"]


PLAIN = """
import sys, torch
from torch.distributed import checkpoint as dcp
state = {"model": torch.nn.Linear(3, 2).state_dict()}
dcp.load(state, checkpoint_id=sys.argv[1])
"""


def test_plain_dcp_load_runs_it(hostile):
    """The contrast: torch's own reader unpickles the file, in a process that is sacrificed for it."""
    folder, mark, _ = hostile
    subprocess.run([sys.executable, "-W", "ignore", "-c", PLAIN, str(folder)], capture_output=True, check=False)
    assert mark.is_dir()


@pytest.mark.filterwarnings("ignore:torch.distributed is")
@pytest.mark.parametrize("road", ["reader", "restore", "load", "convert"])
def test_nothing_of_ours_runs_it(hostile, road):
    """CheckpointReader, restore, load and convert read the tensors and run nothing; describe calls it a danger."""
    folder, mark, expected = hostile
    live = torch.nn.Linear(3, 2)
    if road == "reader":
        dcp.load({"model": live.state_dict()}, storage_reader=unmoor.CheckpointReader(folder))
        found = live.state_dict()
    elif road == "restore":
        unmoor.restore(folder, model=live, rng=False)
        found = live.state_dict()
    elif road == "load":
        found = unmoor.load(folder)["model"]
    else:
        unmoor.convert(folder, folder.parent / "a.pt")
        found = torch.load(folder.parent / "a.pt", weights_only=True)["model"]
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert not mark.exists()
    assert any(finding.severity == "danger" for finding in unmoor.describe(folder).findings)
