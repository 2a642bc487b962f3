"""Sharded models without memory: each rank makes room for its own parts, under the parameters that are there."""

from __future__ import annotations

import pytest
import torch

from tests.cases.files import saved_run, trained

from .launch import Failed, launch


@pytest.mark.slow
def test_meta_shards_get_memory_for_their_own_part(tmp_path):
    """FSDP2 and tensor parallel on two ranks: the file's values, half of the memory, the optimizer's own parameters."""
    model, optimizer = trained()
    path = saved_run(tmp_path / "run.pt", model, optimizer, "cpu")
    elements = sum(p.numel() for p in model.parameters())
    for found in launch("tests.worlds.ranks.meta_shards", 2, path):
        assert not isinstance(found, Failed), found
        for name, there in found.items():
            assert there["same"], name
            assert there["here"] <= elements // 2 + 2, name
            assert all(torch.equal(there["model"][key], p) for key, p in model.named_parameters()), name
            assert (there["steps"], there["after"]) == ([3.0] * 4, [4.0] * 4), name
