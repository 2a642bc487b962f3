"""CheckpointReader under dcp.load: every format into sharded state, and no rank reads more than its own parts."""

from __future__ import annotations

import json

import pytest
import safetensors.torch
import torch
from torch.distributed import checkpoint as dcp

import unmoor
from tests.worlds.launch import launch
from tests.worlds.ranks.reader import build

HEADERS = 768 << 10
"""More than the headers and pickles of any of the files take, far less than a rank's own parts."""


def step(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


def index_of_several(folder, state):
    names = list(state)
    files = {"model-00001-of-00002.safetensors": names[:3], "model-00002-of-00002.safetensors": names[3:]}
    for file, held in files.items():
        safetensors.torch.save_file({name: state[name] for name in held}, folder / file)
    rows = {name: file for file, held in files.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": rows}))
    return folder / "model.safetensors.index.json"


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """One model as a run of ours, a legacy file, safetensors, an index of two, and folders of torch and of ours."""
    folder = tmp_path_factory.mktemp("reader")
    state = build(0).state_dict()
    model = build(0)
    model.load_state_dict(state)
    optimizer = step(model)
    model.load_state_dict(state)
    unmoor.save(folder / "run.pt", model=model, optimizer=optimizer, step=7, history=[1, (2, "three")])
    torch.save(state, folder / "legacy.pt", _use_new_zipfile_serialization=False)
    safetensors.torch.save_file(state, folder / "model.safetensors")
    with pytest.warns(UserWarning, match="torch.distributed is"):
        dcp.save(state, checkpoint_id=folder / "torch")
    unmoor.convert(folder / "run.pt", folder / "run_folder")
    (folder / "several").mkdir()
    several = index_of_several(folder / "several", state)
    expected = dict(zip(dict(model.named_parameters()), optimizer.state.values(), strict=True))
    names = ("run.pt", "legacy.pt", "model.safetensors", "torch", "run_folder")
    return [*(str(folder / name) for name in names), str(several)], expected


@pytest.mark.parametrize(("world", "layout"), [(2, "fsdp"), (4, "tp")])
def test_fills_sharded_state_and_reads_only_its_own_parts(paths, world, layout):
    """FSDP2 on 2 ranks, FSDP2 x tensor parallel on 4: values, optimizer, extras, bytes read, and one error for all."""
    files, optimizer = paths
    whole = sum(t.numel() * t.element_size() for t in build(0).state_dict().values())
    for found in launch("tests.worlds.ranks.reader", world, layout, *files):
        for path in files:
            row = found[path.rsplit("/", 1)[1]]
            assert row["wrong"] == []
            assert row["streamed"] == row["own"] < whole * 0.6
            assert row["own"] <= row["read"] < row["own"] + HEADERS
        assert found["optimizer"]["lr"] == 0.25
        assert found["optimizer"]["extra"] == [7, [1, (2, "three")]]
        for name, entry in optimizer.items():
            assert all(torch.equal(found["optimizer"]["state"][name][key], value) for key, value in entry.items())
        assert "RANK 1" in found["fault"]
        assert "NotACheckpoint" in found["fault"]
        assert "run.pt.gone does not exist" in found["fault"]
