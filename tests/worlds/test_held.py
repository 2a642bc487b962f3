"""A rank's parts of a tensor, saved by torch's own engine."""

from __future__ import annotations

import torch

from tests.worlds.launch import launch


def test_the_engine_saves_parts():
    """Each of three ranks holds rows of a tensor of seven; the folder has all of them."""
    for rank, found in enumerate(launch("tests.worlds.ranks.held", 3)):
        assert found["rank"] == rank
        assert torch.equal(found["back"], torch.arange(35.0).reshape(7, 5))
