"""convert to a folder of safetensors files with an index: sizes, names, atomicity, and the format's own library."""

from __future__ import annotations

import json
import os

import pytest
import safetensors.torch
import torch

import unmoor
from unmoor.values.sizes import size_of


def state():
    shared = torch.randn(100, 10)
    made = {f"layers.{i}.weight": torch.randn(100, 10) for i in range(5)}
    return {**made, "head.weight": shared, "tied.weight": shared, "norm.weight": torch.randn(10).bfloat16()}


def test_files_and_index_are_the_hubs(tmp_path):
    """No file holds more than asked, every name is in the index once, and the library reads each file."""
    saved = state()
    torch.save({"model": saved}, tmp_path / "a.pt")
    receipt = unmoor.convert(tmp_path / "a.pt", tmp_path / "hub", only="model", max_shard_size=9000)
    names = sorted(os.listdir(tmp_path / "hub"))
    files = [f"model-{i:05d}-of-00003.safetensors" for i in (1, 2, 3)]
    assert names == [*files, "model.safetensors.index.json"] == list(receipt.files)
    index = json.loads((tmp_path / "hub" / names[-1]).read_text())
    assert index["metadata"]["total_size"] == 6 * 4000 + 20
    assert set(index["weight_map"]) == set(saved) - {"tied.weight"}
    found = {}
    for file in files:
        tensors = safetensors.torch.load_file(tmp_path / "hub" / file)
        assert sum(tensor.numel() * tensor.itemsize for tensor in tensors.values()) <= 9000
        assert all(index["weight_map"][name] == file for name in tensors)
        found |= tensors
    assert all(torch.equal(found[name], saved[name]) for name in found)
    assert "4 files" in str(receipt)


def test_the_folder_reads_as_one_model(tmp_path):
    """What was cut comes together again, in the order of names that it had."""
    saved = state()
    torch.save(saved, tmp_path / "a.pt")
    unmoor.convert(tmp_path / "a.pt", tmp_path / "hub", max_shard_size="8KB")
    unmoor.convert(tmp_path / "hub", tmp_path / "b.pt", only="model")
    back = torch.load(tmp_path / "b.pt", weights_only=True)
    assert all(torch.equal(back[name], saved[name]) for name in saved if name != "tied.weight")


def test_one_file_has_no_index(tmp_path):
    """A model that fits is model.safetensors alone, as the hub's own library has it."""
    torch.save(state(), tmp_path / "a.pt")
    unmoor.convert(tmp_path / "a.pt", tmp_path / "hub", format="safetensors", max_shard_size="5GB")
    assert os.listdir(tmp_path / "hub") == ["model.safetensors"]


def test_an_older_folder_is_exchanged_or_left(tmp_path):
    """Shards of before are replaced as a whole; anything else in the folder, or a damaged source, changes none."""
    torch.save(state(), tmp_path / "a.pt")
    for size in (5000, 50_000):
        unmoor.convert(tmp_path / "a.pt", tmp_path / "hub", max_shard_size=size)
    assert os.listdir(tmp_path / "hub") == ["model.safetensors"]
    (tmp_path / "hub" / "config.json").write_text("{}")
    with pytest.raises(unmoor.SaveError, match="holds more than a checkpoint"):
        unmoor.convert(tmp_path / "a.pt", tmp_path / "hub", max_shard_size=5000)
    os.unlink(tmp_path / "hub" / "config.json")
    data = bytearray((tmp_path / "a.pt").read_bytes())
    data[unmoor.describe(tmp_path / "a.pt").tensors[2].span.offset + 5] ^= 1
    (tmp_path / "a.pt").write_bytes(data)
    with pytest.raises(unmoor.CorruptFile):
        unmoor.convert(tmp_path / "a.pt", tmp_path / "hub", max_shard_size=5000)
    assert os.listdir(tmp_path / "hub") == ["model.safetensors"]
    assert sorted(os.listdir(tmp_path)) == ["a.pt", "hub"]


@pytest.mark.parametrize(
    ("target", "options"),
    [("b.safetensors", {}), ("b", {"format": "dcp"}), ("b.pt", {"format": "torch"})],
)
def test_shards_go_into_a_folder_of_their_format(tmp_path, target, options):
    """A size for files of another format, or one file, is a wrong call."""
    torch.save(state(), tmp_path / "a.pt")
    with pytest.raises(unmoor.UsageError, match="is for a folder of safetensors files"):
        unmoor.convert(tmp_path / "a.pt", tmp_path / target, max_shard_size="1GB", **options)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("5GB", 5 * 10**9), ("5gib", 5 << 30), ("200 MB", 2 * 10**8), ("1.5k", 1500), (12, 12), ("7", 7)],
)
def test_sizes_are_read_as_the_hub_reads_them(text, nbytes):
    """GB are powers of 1000, GiB of 1024."""
    assert size_of("max_shard_size", text) == nbytes


@pytest.mark.parametrize("wrong", ["", "GB", "-5GB", 0, -1, True, None, 1.5, "5 apples"])
def test_refuses_what_is_no_size(wrong):
    """Anything else is a usage error that shows how a size is written."""
    with pytest.raises(unmoor.UsageError, match="is no size in bytes"):
        size_of("max_shard_size", wrong)
