"""A run that is killed anywhere goes on from a checkpoint that holds, ends as if undisturbed, and leaves no junk."""

from __future__ import annotations

import pytest

from .figures import LONG
from .runs import after_outages, killed_and_resumed


@pytest.mark.parametrize("way", ["at once", "behind"])
def test_killed_at_its_operations(zygote, way):
    """Saving, noting, verifying and deleting: old checkpoints go only once newer ones hold."""
    every, when = (1, ("before", "half", "after")) if LONG else (9, ("before",))
    sweep = killed_and_resumed(zygote, way, every=every, when=when)
    print(sweep)
    assert not sweep.lost, "\n".join([str(sweep), *sweep.lost[:10]])
    assert sweep.tried > 5


@pytest.mark.parametrize("way", ["at once", "behind"])
def test_power_lost(zygote, way):
    """Every save that was over is there, whatever was being written, noted or deleted then."""
    sweep = after_outages(zygote, way, seeds=20 if LONG else 1, every=1 if LONG else 4)
    print(sweep)
    assert not sweep.lost, "\n".join([str(sweep), *sweep.lost[:10]])
    assert sweep.tried > 10
