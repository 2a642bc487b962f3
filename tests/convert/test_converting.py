"""convert: the same tree in another format, whatever there is in it, or an error that lists what cannot be kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch.distributed import checkpoint as dcp

import unmoor

from .trees import difference, run, tree

pytestmark = pytest.mark.filterwarnings("ignore:.*(TypedStorage|torch.distributed is|[Ss]parse|nested tensors)")


def loaded(path):
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_a_file_comes_out_of_another_file_as_it_was(tmp_path, legacy):
    """A torch file to a torch file: every tensor, stride, tie, container and plain value is the same to torch.load."""
    saved = tree(strange=True)
    if legacy:
        del saved["nested"]  # torch builds it before its data is read, and fails
    torch.save(saved, tmp_path / "a.pt", _use_new_zipfile_serialization=not legacy)
    unmoor.convert(tmp_path / "a.pt", tmp_path / "b.pt")
    one, other = loaded(tmp_path / "a.pt"), loaded(tmp_path / "b.pt")
    assert difference(one, other) == ""
    assert other["tied"][0] is other["tied"][1]
    assert other["view"].untyped_storage()._cdata == other["tied"][0].untyped_storage()._cdata
    assert unmoor.describe(tmp_path / "b.pt").format == "torch-zip"


def test_a_file_comes_out_of_a_folder_as_it_went_in(tmp_path):
    """File to folder to file: the tree is equal to torch.load, ties, tuples, empty containers, keys and `_metadata`."""
    torch.save(tree(strange=False), tmp_path / "a.pt")
    unmoor.convert(tmp_path / "a.pt", tmp_path / "folder")
    receipt = unmoor.convert(tmp_path / "folder", tmp_path / "b.pt")
    one, other = loaded(tmp_path / "a.pt"), loaded(tmp_path / "b.pt")
    assert difference(one, other) == ""
    assert other["tied"][0] is other["tied"][1]
    assert receipt.converted == ()


def test_empty_bytes_go_everywhere(tmp_path):
    """Empty bytes, for which pickle calls a class that torch's safe loading refuses, come through everywhere."""
    torch.save({"a": b"", "b": {b"": 1, (b"", 2): b"x"}}, tmp_path / "a.pt")
    unmoor.convert(tmp_path / "a.pt", tmp_path / "folder")
    unmoor.convert(tmp_path / "folder", tmp_path / "b.pt")
    assert loaded(tmp_path / "b.pt") == {"a": b"", "b": {b"": 1, (b"", 2): b"x"}}


def test_says_what_a_folder_does_not_keep(tmp_path):
    """What a folder has no place for is in the receipt, one change a tensor; all values are kept."""
    torch.save(tree(strange=True), tmp_path / "a.pt")
    receipt = unmoor.convert(tmp_path / "a.pt", tmp_path / "folder")
    assert {change.name: change.before for change in receipt.converted} == {
        "view": "on one storage with tied.0",
        "parameter": "a Parameter",
        "expanded": "laid out by strides",
        "conjugate": "a lazy conjugate or negation",
    }
    unmoor.convert(tmp_path / "folder", tmp_path / "b.pt")
    one, other = loaded(tmp_path / "a.pt"), loaded(tmp_path / "b.pt")
    for name in ("view", "parameter", "conjugate"):
        assert torch.equal(one.pop(name).detach(), other.pop(name))
    assert difference(one["sparse"], other["sparse"]) == difference(one["channels"], other["channels"]) == ""
    assert difference(one["channels_last"], other["channels_last"]) == ""


def test_a_run_of_ours_goes_on_after_every_format(tmp_path):
    """Roles, names, random streams and extras survive file to folder to file: a restore of either is the same."""
    model, optimizer = run()
    unmoor.save(tmp_path / "a.pt", model=model, optimizer=optimizer, step=5, history=[1, (2, 3)])
    unmoor.convert(tmp_path / "a.pt", tmp_path / "folder")
    unmoor.convert(tmp_path / "folder", tmp_path / "b.pt")
    for source in ("a.pt", "folder", "b.pt"):
        other, its = run()
        with torch.no_grad():
            other[0].weight.zero_()
        report = unmoor.restore(tmp_path / source, model=other, optimizer=its)
        assert (report.extra["step"], report.extra["history"]) == (5, [1, (2, 3)])
        assert difference(other.state_dict(), model.state_dict()) == ""
        assert difference(its.state_dict(), optimizer.state_dict()) == ""
    assert unmoor.describe(tmp_path / "b.pt").roles() == unmoor.describe(tmp_path / "a.pt").roles()


def test_plain_dcp_load_reads_the_folder(tmp_path):
    """The folder is torch's own: dcp.load fills a state dict from it."""
    torch.save(tree(strange=False), tmp_path / "a.pt")
    unmoor.convert(tmp_path / "a.pt", tmp_path / "folder")
    state = {"model": {k: torch.zeros_like(v) for k, v in run()[0].state_dict().items()}, "tuple": None}
    dcp.load(state, checkpoint_id=tmp_path / "folder")
    assert difference(state["model"], dict(loaded(tmp_path / "a.pt")["model"])) == ""
    assert difference(state["tuple"], (1, 2.5, torch.ones(2))) == ""


def test_a_folder_of_torch_becomes_one_file(tmp_path):
    """A folder that dcp.save wrote to a .pt file: the state dict that was saved."""
    model, optimizer = run()
    dcp.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint_id=tmp_path / "folder")
    unmoor.convert(tmp_path / "folder", tmp_path / "a.pt")
    found = loaded(tmp_path / "a.pt")
    assert difference(found["model"], dict(model.state_dict())) == ""
    assert difference(found["optimizer"]["state"], optimizer.state_dict()["state"]) == ""


def test_safetensors_and_back(tmp_path):
    """One model to safetensors, tied names as save_model has them, and from there to a torch file."""
    model, optimizer = run()
    state = model.state_dict()
    state["again"], state["transposed"] = state["0.weight"], state["0.weight"].t()
    torch.save({"net": {"model": state}, "optimizer": optimizer.state_dict()}, tmp_path / "a.pt")
    receipt = unmoor.convert(tmp_path / "a.pt", tmp_path / "m.safetensors", only="net.model")
    found = safetensors.torch.load_file(tmp_path / "m.safetensors")
    assert "again" not in found
    assert all(torch.equal(tensor, state[name]) for name, tensor in found.items())
    assert {change.name for change in receipt.converted} == {"transposed"}
    unmoor.convert(tmp_path / "m.safetensors", tmp_path / "b.pt")
    assert difference(loaded(tmp_path / "b.pt"), {name: found[name] for name in loaded(tmp_path / "b.pt")}) == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ["model: a mapping of 0.weight", "values: a list, and no tensor", "only="]),
        ({"only": "optimizer"}, ["state: a mapping", "param_groups: a list, and no tensor"]),
        ({"only": "values"}, ["a list, and no mapping of names"]),
    ],
)
def test_lists_what_safetensors_cannot_hold(tmp_path, options, words):
    """What safetensors lacks is an error that lists it, before anything is written."""
    torch.save(tree(strange=False), tmp_path / "a.pt")
    with pytest.raises(unmoor.UsageError) as caught:
        unmoor.convert(tmp_path / "a.pt", tmp_path / "b.safetensors", **options)
    assert all(word in str(caught.value) for word in words), caught.value
    assert os.listdir(tmp_path) == ["a.pt"]


@pytest.mark.parametrize("target", ["b.pt", "b.safetensors", "b"])
def test_refuses_what_needs_code(tmp_path, target):
    """An object that needs code to exist is named; taking the parts that do not is what helps."""
    torch.save({"model": run()[0].state_dict(), "make": partial(torch.optim.Adam, lr=1)}, tmp_path / "a.pt")
    with pytest.raises(unmoor.UnsupportedFile, match="what no checkpoint without code can hold") as caught:
        unmoor.convert(tmp_path / "a.pt", tmp_path / target)
    assert 'only="model"' in str(caught.value)
    assert os.listdir(tmp_path) == ["a.pt"]
    unmoor.convert(tmp_path / "a.pt", tmp_path / target, only="model")


def test_takes_several_parts_in_their_places(tmp_path):
    """A list keeps the places in the tree; one word makes its part the root; a word for nothing lists what there is."""
    model, optimizer = run()
    unmoor.save(tmp_path / "a.pt", model=model, optimizer=optimizer, step=1)
    unmoor.convert(tmp_path / "a.pt", tmp_path / "b.pt", only=["model", "step"])
    assert list(loaded(tmp_path / "b.pt")) == ["model", "step"]
    unmoor.convert(tmp_path / "a.pt", tmp_path / "c.pt", only="model")
    assert list(loaded(tmp_path / "c.pt")) == list(model.state_dict())
    with pytest.raises(unmoor.MismatchError, match="only='ema' chooses nothing") as caught:
        unmoor.convert(tmp_path / "a.pt", tmp_path / "d.pt", only="ema")
    assert "optimizer" in str(caught.value)


@pytest.mark.parametrize("target", ["b.pt", "b.safetensors", "b"])
@pytest.mark.parametrize("verify", ["stream", "none"])
def test_a_damaged_source_is_told_and_nothing_is_left(tmp_path, target, verify):
    """A flipped bit is met while reading, named, and leaves no target; verify="none" does not look."""
    torch.save({"big": torch.randn(3000, 100), "small": torch.randn(3)}, tmp_path / "a.pt")
    entry = next(e for e in unmoor.describe(tmp_path / "a.pt").tensors if e.path == "big")
    data = bytearray((tmp_path / "a.pt").read_bytes())
    data[entry.span.offset + 77] ^= 1
    (tmp_path / "a.pt").write_bytes(data)
    if verify == "none":
        unmoor.convert(tmp_path / "a.pt", tmp_path / target, verify=verify)
        return
    with pytest.raises(unmoor.CorruptFile, match="the data of big does not match its checksum"):
        unmoor.convert(tmp_path / "a.pt", tmp_path / target)
    assert os.listdir(tmp_path) == ["a.pt"]


def test_a_damaged_folder_is_told(tmp_path):
    """A flipped bit in one chunk of a tensor of a folder is met before anything is written."""
    torch.save({"big": torch.randn(3000, 100)}, tmp_path / "a.pt")
    unmoor.convert(tmp_path / "a.pt", tmp_path / "folder")
    entry = unmoor.describe(tmp_path / "folder").tensors[0]
    data = bytearray((tmp_path / "folder" / entry.span.file).read_bytes())
    data[entry.span.offset + 77] ^= 1
    (tmp_path / "folder" / entry.span.file).write_bytes(data)
    with pytest.raises(unmoor.CorruptFile, match="big"):
        unmoor.convert(tmp_path / "folder", tmp_path / "b.pt")
    assert not (tmp_path / "b.pt").exists()


def test_keeps_device_tags_in_a_file(tmp_path):
    """Tags of devices that this machine lacks go from file to file as they stand."""
    torch.save({"w": torch.ones(3)}, tmp_path / "a.pt")
    data = (tmp_path / "a.pt").read_bytes().replace(b"X\x03\x00\x00\x00cpu", b"X\x03\x00\x00\x00mps")
    (tmp_path / "a.pt").write_bytes(data)
    _fix_pickle_crc(tmp_path / "a.pt")
    assert unmoor.describe(tmp_path / "a.pt").tensors[0].device == "mps"
    unmoor.convert(tmp_path / "a.pt", tmp_path / "b.pt")
    assert unmoor.describe(tmp_path / "b.pt").tensors[0].device == "mps"
    receipt = unmoor.convert(tmp_path / "a.pt", tmp_path / "folder")
    assert [change.before for change in receipt.converted] == ["on mps"]


def _fix_pickle_crc(path: Path) -> None:
    """Write the archive again, with the checksums that its records have now."""
    import struct
    import zlib

    data = bytearray(path.read_bytes())
    first = data.index(b"PK\3\4")
    name, extra = struct.unpack_from("<2H", data, first + 26)
    begin = first + 30 + name + extra
    end = data.index(b"PK\7\x08", begin)
    crc = struct.pack("<I", zlib.crc32(data[begin:end]))
    data[end + 4 : end + 8] = crc
    entry = data.index(b"PK\1\2")
    data[entry + 16 : entry + 20] = crc
    path.write_bytes(data)


def test_turns_the_byte_order_round(tmp_path):
    """A file of a big-endian machine becomes one of this machine, checksums held against what was stored."""
    torch.save({"w": torch.arange(6.0), "z": torch.tensor([1 + 2j])}, tmp_path / "a.pt")
    with zipped(tmp_path / "a.pt") as records:
        records["byteorder"] = b"big"
        for key, dtype in (("data/0", np.float32), ("data/1", np.float32)):
            records[key] = np.frombuffer(records[key], dtype).byteswap().tobytes()
    unmoor.convert(tmp_path / "a.pt", tmp_path / "b.pt")
    assert torch.equal(loaded(tmp_path / "b.pt")["w"], torch.arange(6.0))
    assert loaded(tmp_path / "b.pt")["z"].item() == 1 + 2j


class zipped:
    """The records of an archive to be changed, written again at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self):
        import zipfile

        with zipfile.ZipFile(self.path) as archive:
            self.names = archive.namelist()
            self.top = self.names[0].split("/")[0]
            self.records = {name.split("/", 1)[1]: archive.read(name) for name in self.names}
        return self.records

    def __exit__(self, *_):
        import zipfile

        with zipfile.ZipFile(self.path, "w") as archive:
            for name, data in self.records.items():
                archive.writestr(f"{self.top}/{name}", data)


def test_numpy_arrays_stay_arrays(tmp_path):
    """Arrays of a foreign file become tensors that a load of ours gives back as arrays."""
    torch.save({"a": np.arange(4.0), "n": np.float64(2.5)}, tmp_path / "a.pt")
    receipt = unmoor.convert(tmp_path / "a.pt", tmp_path / "b.pt")
    assert {change.name for change in receipt.converted} == {"a", "n"}
    assert isinstance(loaded(tmp_path / "b.pt")["a"], torch.Tensor)
    back = unmoor.load(tmp_path / "b.pt")
    assert isinstance(back["a"], np.ndarray)
    unmoor.convert(tmp_path / "b.pt", tmp_path / "folder")
    assert isinstance(unmoor.load(tmp_path / "folder")["a"], np.ndarray)


@pytest.mark.parametrize(
    ("target", "options", "format_"),
    [
        ("b.pth", {}, "torch-zip"),
        ("b.SAFETENSORS", {}, "safetensors"),
        ("step_10.5", {}, "dcp"),
        ("odd", {"format": "torch"}, "torch-zip"),
        ("odd", {"format": "safetensors"}, "safetensors"),
    ],
)
def test_the_name_or_the_format_says_what_to_write(tmp_path, target, options, format_):
    """The ending of the target's name decides, or `format`."""
    torch.save({"w": torch.ones(3)}, tmp_path / "a.pt")
    unmoor.convert(tmp_path / "a.pt", tmp_path / target, **options)
    assert unmoor.describe(tmp_path / target).format == format_


def test_refuses_the_source_as_target_and_an_unknown_format(tmp_path):
    """A file is never converted into itself."""
    torch.save({"w": torch.ones(3)}, tmp_path / "a.pt")
    with pytest.raises(unmoor.UsageError, match="is the source itself"):
        unmoor.convert(tmp_path / "a.pt", tmp_path / "a.pt")
    with pytest.raises(unmoor.UsageError, match="is none of 'torch'"):
        unmoor.convert(tmp_path / "a.pt", tmp_path / "b.pt", format="onnx")


def test_replaces_a_folder_whole(tmp_path):
    """An older folder is exchanged for the new one; one that holds anything else is left alone."""
    torch.save({"w": torch.ones(3)}, tmp_path / "a.pt")
    torch.save({"w": torch.zeros(3)}, tmp_path / "b.pt")
    unmoor.convert(tmp_path / "a.pt", tmp_path / "folder")
    unmoor.convert(tmp_path / "b.pt", tmp_path / "folder")
    assert torch.equal(unmoor.load(tmp_path / "folder")["w"], torch.zeros(3))
    (tmp_path / "folder" / "notes.txt").write_text("mine")
    with pytest.raises(unmoor.SaveError, match="holds more than a checkpoint"):
        unmoor.convert(tmp_path / "a.pt", tmp_path / "folder")
    assert sorted(os.listdir(tmp_path)) == ["a.pt", "b.pt", "folder"]


MEMORY = """
import json, sys
from pathlib import Path
import unmoor
def status(name):
    line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith(name))
    return int(line.split()[1]) * 1024
folder = sys.argv[1]
rows = []
for warm in ("tiny", "big"):
    for source, target in ((".pt", ""), ("", "-2.pt"), ("-2.pt", ".safetensors"), (".safetensors", "-3.pt")):
        Path("/proc/self/clear_refs").write_text("5")
        live = status("VmRSS")
        unmoor.convert(f"{folder}/{warm}{source}", f"{folder}/{warm}{target}", buffer_bytes=4 << 20)
        rows.append(status("VmHWM") - live)
print(json.dumps(rows[4:]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells the peak of memory on Linux")
def test_one_large_tensor_is_never_whole_in_memory(tmp_path):
    """A tensor of 192 MiB goes through every format with less than 80 MiB of memory: the bound is not its size."""
    torch.save({"w": torch.zeros(2, 2)}, tmp_path / "tiny.pt")
    torch.save({"w": torch.arange(48 << 20, dtype=torch.float32).view(48, -1)}, tmp_path / "big.pt")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MEMORY, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert max(json.loads(done.stdout)) < 80 << 20
    assert torch.equal(
        torch.load(tmp_path / "big-3.pt", mmap=True)["w"], torch.load(tmp_path / "big.pt", mmap=True)["w"]
    )


@pytest.mark.parametrize(
    "name", ["half\ud800", "__metadata__", 3], ids=["half a surrogate pair", "reserved", "a number"]
)
def test_names_that_safetensors_cannot_have_are_an_error_that_lists_them(name, tmp_path):
    """By convert and by save alike, before anything is written."""
    torch.save({name: torch.ones(2), "w": torch.ones(2)}, tmp_path / "a.pt")
    with pytest.raises(unmoor.UsageError, match="no name that a tensor can have"):
        unmoor.convert(tmp_path / "a.pt", tmp_path / "b.safetensors")
    with pytest.raises(unmoor.UsageError, match="no name that a tensor can have"):
        unmoor.save(tmp_path / "b.safetensors", {name: torch.ones(2), "w": torch.ones(2)})
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]


@pytest.mark.parametrize("target", ["", "a\0.pt", "a\ud800.pt", "a\0", "a\ud800"])
def test_a_target_that_no_path_can_be_is_an_error(target, tmp_path):
    """A zero byte, half of a surrogate pair: no file system has them."""
    torch.save({"w": torch.ones(2)}, tmp_path / "a.pt")
    with pytest.raises(unmoor.UsageError, match="is no path"):
        unmoor.convert(tmp_path / "a.pt", target)
