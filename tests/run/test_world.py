"""Runs of several ranks: what one hears all do, at the same step; what one cannot read none goes on from."""

from __future__ import annotations

import pytest
import torch

from tests.worlds.launch import launch


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """What two ranks tell, by rank."""
    return launch("tests.run.ranks", 2, tmp_path_factory.mktemp("world"))


def equal(one, other):
    return len(one) == len(other) and all(map(torch.equal, one, other))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["whole", "sharded"])
def test_a_signal_on_one_rank_ends_all_at_one_step(world, kind):
    """Rank 1 alone hears SIGUSR1: all end the same step, save together, and leave with the exit code."""
    for found in world:
        ended = found[kind, "ended"]
        assert ended["taken"] == [0, 1, 2, 3]
        assert ended["code"] == 75
        assert ended["ended"] == "SIGUSR1"
        end = ".pt" if kind == "whole" else ""
        assert found[kind, "names"] == [f"step_{step:09d}{end}" for step in (2, 4)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["whole", "sharded"])
def test_all_ranks_go_on_from_the_newest_that_holds(world, kind):
    """The newest was damaged: all go on from the one before, to the state of the run that nothing interrupted."""
    for found in world:
        again, alone = found[kind, "again"], found[kind, "alone"]
        assert again["taken"] == list(range(2, 9))
        assert equal(again["state"], alone["state"])
        assert "passed" in again["kinds"]
        assert again["kinds"][-1] == "finished"
        assert found[kind, "over"]["taken"] == []
        assert equal(found[kind, "over"]["state"], alone["state"])
        names = [name for name, _ in found[kind, "left"]]
        end = ".pt" if kind == "whole" else ""
        assert names[0] == f"step_000000009{end}"
        assert all(verified for _, verified in found[kind, "left"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["whole", "sharded"])
def test_what_all_ask_for_is_done_at_once(world, kind):
    """A save by hand and a stop are at the end of the very step, however far apart ranks meet else."""
    for found in world:
        assert found[kind, "stopped"]["taken"] == list(range(6))
        end = ".pt" if kind == "whole" else ""
        assert found[kind, "kept"] == [f"step_{step:09d}{end}" for step in (5, 6)]


@pytest.mark.slow
def test_a_mistake_is_told_on_all_ranks(world):
    """What the first rank sees in the folder is an error on all of them."""
    for found in world:
        assert "this one did not resume" in found["refused"][0]
