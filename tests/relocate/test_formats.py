"""relocate in every format: streams and tars of old torch, TorchScript, folders, and formats without device tags."""

from __future__ import annotations

import json
import os
import shutil
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import nn

import unmoor
from tests.describe.folders import Run, accelerate, hf_trainer
from tests.describe.makers import tagged
from tests.describe.zero_maker import Shape, ZeroMaker
from unmoor.errors import SaveError, UsageError
from unmoor.execute import duplicating

from .files import leaves, run, save, stored_tags

GOLDEN = Path(__file__).parents[1] / "golden"


def tags_below(folder: Path) -> dict[str, set[str]]:
    """File name -> tags of its storages, of every file of torch in a folder."""
    files = [p for p in sorted(folder.rglob("*")) if p.suffix in (".pt", ".bin", ".pth", ".pkl")]
    return {str(p.relative_to(folder)): {s.device for s in unmoor.describe(p).storages} for p in files}


@pytest.mark.parametrize("protocol", [1, 2, 3, 4, 5])
def test_a_stream_is_written_anew(tmp_path: Path, protocol: int) -> None:
    """A legacy file loads elsewhere, its data is the same, and the report says how to come back."""
    tree = run() | {"name": "cuda:7"}
    path = save(tree, tmp_path / "old.pt", _use_new_zipfile_serialization=False, pickle_protocol=protocol)
    made = unmoor.relocate(path, to="cpu")
    assert stored_tags(path) == {"cpu"}
    assert leaves(torch.load(path, weights_only=False)) == leaves(tree)
    assert (made.files[0].how, made.undo) == ("rewritten", "")
    assert f"unmoor relocate --map cpu=cuda:7 {path}"[:30] in str(made)
    unmoor.relocate(path, map_location={"cpu": "cuda:7"})
    assert stored_tags(path) == {"cpu", "cuda:7"}  # the random state stays on the CPU
    assert leaves(torch.load(path, map_location="cpu", weights_only=False)) == leaves(tree)


@pytest.mark.parametrize("name", ["python2-torch0.3.1.pt", "big_endian_legacy-torch0.3.1.pt"])
def test_streams_of_python_2_and_other_machines(tmp_path: Path, name: str) -> None:
    """Tags that Python 2 wrote as bytes, views of before torch 0.4: all leave cuda:1, and every byte of data stays."""
    path = tmp_path / name
    shutil.copy(GOLDEN / name, path)
    before = unmoor.describe(path)
    unmoor.relocate(path, to="cpu")
    after = unmoor.describe(path)
    assert set(after.devices()) == {"cpu"}
    old, new = (GOLDEN / name).read_bytes(), path.read_bytes()
    for one, other in zip(before.storages, after.storages, strict=True):
        assert one.span is not None
        assert other.span is not None
        assert old[one.span.offset : one.span.end] == new[other.span.offset : other.span.end]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.load(path, weights_only=False, encoding="latin1")


def test_a_tar_is_written_anew(tmp_path: Path) -> None:
    """The tar of torch 0.1: the head of each storage and the length of the member change, nothing else."""
    path = tmp_path / "tar.pt"
    shutil.copy(GOLDEN / "tar-torch0.1.9.pt", path)
    before = leaves(torch.load(path, weights_only=False))
    made = unmoor.relocate(path, to="cuda:11")
    assert set(unmoor.describe(path).devices()) == {"cuda:11"}
    assert {move.tensors for move in made.moves} == {12}
    assert leaves(torch.load(path, weights_only=False, map_location={"cuda:11": "cpu"})) == before
    unmoor.relocate(path, to="cpu", output=tmp_path / "back.pt")
    assert leaves(torch.load(tmp_path / "back.pt", weights_only=False)) == before
    assert set(unmoor.describe(path).devices()) == {"cuda:11"}


def test_a_stream_that_cannot_be_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails leaves the old stream, and no hidden file."""
    path = save(run(), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    old = path.read_bytes()

    def full(*arguments: Any, **more: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("unmoor.wiring.relocating_old.copy_bytes", full)
    with pytest.raises(SaveError, match="the disk is full"):
        unmoor.relocate(path, to="cpu")
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["old.pt"]


@pytest.mark.parametrize("portable", [False, True])
def test_bytes_are_copied_by_the_kernel_and_without_it(tmp_path: Path, portable: bool) -> None:
    """Both ways give the same bytes, behind what is there, and count them."""
    (tmp_path / "a").write_bytes(bytes(range(256)) * 9000)
    (tmp_path / "b").write_bytes(b"head")
    counted: list[int] = []
    with (tmp_path / "a").open("rb") as old, (tmp_path / "b").open("r+b") as new:
        duplicating.copy_bytes(old.fileno(), new.fileno(), 100, 2_000_000, advance=counted.append, portable=portable)
    assert (tmp_path / "b").read_bytes() == b"head" + (tmp_path / "a").read_bytes()[100:2_000_100]
    assert sum(counted) == 2_000_000


def test_a_file_that_shrinks_while_it_is_copied(tmp_path: Path) -> None:
    """A copy that meets the end too early is an error, not an endless loop."""
    (tmp_path / "a").write_bytes(b"short")
    (tmp_path / "b").write_bytes(b"")
    with (
        (tmp_path / "a").open("rb") as old,
        (tmp_path / "b").open("r+b") as new,
        pytest.raises(unmoor.CorruptFile, match="became shorter"),
    ):
        duplicating.copy_bytes(old.fileno(), new.fileno(), 0, 100, advance=None)


TWO = torch.full((3,), 2.0)


class Scripted(nn.Module):
    """A module whose trace holds a parameter, a buffer and a constant tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 3)
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale + TWO


class Zeros(nn.Module):
    """A module whose trace makes a tensor on a device."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + TWO + torch.zeros(3, device="cpu")


def traced(module: nn.Module, path: Path, x: torch.Tensor) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(module, x), str(path))
    return path


def jit_load(path: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.load(path)


def test_torchscript_archives(tmp_path: Path) -> None:
    """Both pickles of a TorchScript archive change; torch.jit loads the module, which computes as before."""
    x = torch.ones(1, 2)
    path = traced(Scripted(), tmp_path / "module.pt", x)
    expected = jit_load(path)(x)
    assert unmoor.describe(path).format == "torchscript"
    unmoor.relocate(path, to="cuda:2")
    catalog = unmoor.describe(path)
    assert set(catalog.devices()) == {"cuda:2"}
    assert any(storage.key.startswith("constants/") for storage in catalog.storages)
    with zipfile.ZipFile(path) as archive:
        inputs = archive.read("module/traced_inputs.pkl")
        assert b"cuda:2" in inputs
        assert b"cpu" not in inputs
    unmoor.relocate(path, to="cpu")
    assert torch.equal(jit_load(path)(x), expected)
    unmoor.undo_relocate(path)
    unmoor.undo_relocate(path)
    assert torch.equal(jit_load(path)(x), expected)


def test_a_device_in_the_code_of_an_archive_is_told(tmp_path: Path) -> None:
    """A trace that made a tensor on a device says so in its code, which is left as it is."""
    path = traced(Zeros(), tmp_path / "module.pt", torch.ones(3))
    made = unmoor.relocate(path, to="cuda:2")
    assert [finding.code for finding in made.findings] == ["device-in-code"]
    assert "names cpu" in made.findings[0].message


def test_a_folder_of_several_files(tmp_path: Path) -> None:
    """Every file of torch in a folder is relocated, random states stay on the CPU, the others are told."""
    with tagged("cuda:3"):
        hf_trainer(tmp_path, Run().trained())
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    assert tags_below(tmp_path)["optimizer.pt"] == {"cuda:3"}
    made = unmoor.relocate(tmp_path, map_location={"cuda:3": "cuda:0"})
    assert tags_below(tmp_path) == {
        "optimizer.pt": {"cuda:0"},
        "rng_state.pth": {"cpu"},
        "scheduler.pt": set(),
        "training_args.bin": set(),
    }
    assert {file.how for file in made.files} == {"appended", "unchanged"}
    assert [finding.code for finding in made.findings] == ["no-device-tags"]
    back = unmoor.undo_relocate(tmp_path)
    assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before
    assert sum(move.tensors for move in back.moves) == sum(move.tensors for move in made.moves)
    with pytest.raises(unmoor.UnsupportedFile, match="nothing to undo"):
        unmoor.undo_relocate(tmp_path)


def test_a_folder_whose_last_file_fails_is_left_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All files are ready and checked before the first is seen anew: a fault in one leaves all as they were."""
    with tagged("cuda:3"):
        accelerate(tmp_path, Run().trained(), ranks=2)
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    from unmoor.wiring import relocating_zip

    real, calls = relocating_zip._check, []

    def check(reader: Any, *more: Any) -> None:
        calls.append(reader.path)
        real(reader, *more)
        if "random_states_1" in reader.path:
            raise relocating_zip._defect(reader.path, "made up")

    monkeypatch.setattr(relocating_zip, "_check", check)
    with pytest.raises(SaveError, match="made up"):
        unmoor.relocate(tmp_path, to="cpu")
    assert len(calls) >= 2
    assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_folder_is_not_copied(tmp_path: Path) -> None:
    """--output is for one file; of a folder it says what to do."""
    hf_trainer(tmp_path, Run().trained())
    with pytest.raises(UsageError, match="checkpoint of several files") as error:
        unmoor.relocate(tmp_path, to="cpu", output=tmp_path / "x.pt")
    assert "Copy the folder" in error.value.remedy


def test_a_folder_of_deepspeed(tmp_path: Path) -> None:
    """The files of every rank are relocated, each for itself."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    with tagged("cuda:1"):
        ZeroMaker(model, optimizer, Shape(stage=2, world=2)).write(tmp_path)
    made = unmoor.relocate(tmp_path, to="cpu")
    assert {tag for tags in tags_below(tmp_path).values() for tag in tags} == {"cpu"}
    assert len(made.files) >= 3
    assert set(unmoor.describe(tmp_path).devices()) == {"cpu"}


def test_formats_without_tags_need_nothing(tmp_path: Path) -> None:
    """Safetensors and folders of torch.distributed.checkpoint keep no device: that is said, and nothing is written."""
    model = nn.Linear(2, 2)
    save_file(model.state_dict(), tmp_path / "a.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"model": model.state_dict(), "step": 3}, checkpoint_id=tmp_path / "step_1", no_dist=True)
    for path in (tmp_path / "a.safetensors", tmp_path / "step_1"):
        made = unmoor.relocate(path, to="cuda:0")
        assert (made.changed, made.moves) == (False, ())
        assert [finding.code for finding in made.findings] == ["no-device-tags"]
        assert "keeps no device" in str(made)
        with pytest.raises(UsageError, match="no torch knows"):
            unmoor.relocate(path, to="nonsense")
    made = unmoor.relocate(tmp_path / "a.safetensors", to="cpu", output=tmp_path / "b.safetensors")
    assert (tmp_path / "b.safetensors").read_bytes() == (tmp_path / "a.safetensors").read_bytes()


def test_an_index_of_files(tmp_path: Path) -> None:
    """A state dict in several files of torch, given by its index: all of them are relocated."""
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    names = list(model.state_dict())
    weights = {}
    with tagged("cuda:7"):
        for number in (1, 2):
            part = {name: model.state_dict()[name] for name in names[number - 1 :: 2]}
            file = f"pytorch_model-0000{number}-of-00002.bin"
            torch.save(part, tmp_path / file)
            weights |= dict.fromkeys(part, file)
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weights}))
    made = unmoor.relocate(index, to="cpu")
    assert len([file for file in made.files if file.how == "appended"]) == 2
    assert {tag for tags in tags_below(tmp_path).values() for tag in tags} == {"cpu"}
