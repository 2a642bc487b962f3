"""Conversions of what several ranks saved: every rank finds its own leaves in the result."""

from __future__ import annotations

import torch

import unmoor
from tests.convert.trees import difference
from tests.worlds.launch import launch
from unmoor.plan.of_rank import of_rank


def test_each_rank_finds_its_own_leaves_after_a_conversion(tmp_path):
    """File to folder to file: rank 1's notes and random streams are where they were, and how many ranks there were."""
    launch("tests.worlds.ranks.apart", 2, tmp_path / "a.pt")
    unmoor.convert(tmp_path / "a.pt", tmp_path / "folder")
    unmoor.convert(tmp_path / "folder", tmp_path / "b.pt")
    one = torch.load(tmp_path / "a.pt", weights_only=True)
    assert one["ranks"]["1"]["note"] == "rank 1"
    assert difference(one, torch.load(tmp_path / "b.pt", weights_only=True)) == ""
    for source in ("a.pt", "folder", "b.pt"):
        catalog = unmoor.describe(tmp_path / source)
        assert catalog.manifest["world_size"] == 2
        assert [of_rank(catalog, rank, 2).tree["note"] for rank in (0, 1)] == ["rank 0", "rank 1"]
