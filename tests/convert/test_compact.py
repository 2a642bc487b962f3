"""convert with storage="compact": views on storages of their own size, and what shares elements shares them still."""

from __future__ import annotations

import os

import pytest
import torch

import unmoor

from .trees import difference

BIG = torch.arange(1_000_000, dtype=torch.float32)
GRID = torch.arange(600_000, dtype=torch.float32).reshape(600, 1000)

TREES = {
    "a slice": ({"w": BIG[:10]}, 1),
    "slices that meet": ({"ema": {"w": BIG[:10]}, "rows": [BIG[:4], BIG[2:6]]}, 1),
    "slices far apart": ({"a": BIG[:10], "b": BIG[-10:], "c": BIG[500:520]}, 3),
    "columns": ({"a": GRID[:, 0], "b": GRID[:, 1:3], "c": GRID[:, 2]}, 2),
    "a column and a row": ({"a": GRID[:, 7], "b": GRID[5]}, 1),
    "every other element": ({"a": BIG[:1000:2]}, 1),
    "the same view twice": ({"a": GRID[:, 3], "b": GRID[:, 3]}, 1),
    "an expanded one": ({"a": BIG[:1].expand(50)}, 1),
    "no elements": ({"a": BIG[5:5], "b": BIG[7:9]}, 1),
    "turned": ({"a": GRID[:20].t()}, 1),
    "another dtype on one storage": ({"a": BIG[:4], "b": BIG.view(torch.int32)[2:8]}, 1),
}


@pytest.mark.parametrize("form", ["torch", "legacy"])
@pytest.mark.parametrize("name", TREES)
def test_keeps_values_and_what_is_shared(tmp_path, name, form):
    """Equal values; tensors with elements in common on one storage, others on storages of their own."""
    tree, storages = TREES[name]
    unmoor.save(tmp_path / "a.pt", tree)
    unmoor.convert(tmp_path / "a.pt", tmp_path / "b.pt", storage="compact", format=form)
    found = torch.load(tmp_path / "b.pt", weights_only=True)
    assert all(torch.equal(a, b) for a, b in zip(_leaves(tree), _leaves(found), strict=True))
    used = {leaf.untyped_storage()._cdata for leaf in _leaves(found) if leaf.numel()}
    assert len(used) == storages
    room = sum(2 * max(leaf.numel(), 1) * leaf.itemsize for leaf in _leaves(found))
    assert name == "a column and a row" or sum(_sizes(found).values()) <= room


def _sizes(tree):
    return {leaf.untyped_storage()._cdata: leaf.untyped_storage().nbytes() for leaf in _leaves(tree)}


def test_writing_through_one_shows_in_the_other(tmp_path):
    """Case C43: rows that overlap are one 10-element storage, so that a write through one shows in the others."""
    torch.save(TREES["slices that meet"][0], tmp_path / "a.pt")
    assert os.stat(tmp_path / "a.pt").st_size > 4_000_000
    unmoor.convert(tmp_path / "a.pt", tmp_path / "b.pt", storage="compact")
    assert os.stat(tmp_path / "b.pt").st_size < 4_000
    found = torch.load(tmp_path / "b.pt", weights_only=True)
    found["rows"][0][2] = -1.0
    assert found["rows"][1][0] == found["ema"]["w"][2] == -1.0
    assert found["ema"]["w"].untyped_storage().nbytes() == 40


def test_compact_and_cast_together(tmp_path):
    """A strided view cast on the way to a storage of its own."""
    torch.save({"a.w": GRID[:, 0], "b.w": GRID[:, 5:7], "c.w": GRID[3:5]}, tmp_path / "a.pt")
    unmoor.convert(tmp_path / "a.pt", tmp_path / "b.pt", storage="compact", dtype="float64")
    found = torch.load(tmp_path / "b.pt", weights_only=True)
    wanted = {"a.w": GRID[:, 0].double(), "b.w": GRID[:, 5:7].double(), "c.w": GRID[3:5].double()}
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


def test_what_needs_no_room_is_as_it_was(tmp_path):
    """A tree without loose views comes out the same, strides and ties included."""
    tied = torch.randn(4, 4)
    tree = {"a": tied, "b": tied, "c": tied.t(), "d": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)}
    torch.save(tree, tmp_path / "a.pt")
    unmoor.convert(tmp_path / "a.pt", tmp_path / "b.pt", storage="compact")
    assert difference(tree, torch.load(tmp_path / "b.pt", weights_only=True)) == ""


def _leaves(tree):
    if isinstance(tree, torch.Tensor):
        return [tree]
    return [leaf for item in (tree.values() if isinstance(tree, dict) else tree) for leaf in _leaves(item)]
