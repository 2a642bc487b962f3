"""A process that is killed at any operation, or at any time, leaves the old checkpoint or the new one, and no junk."""

from __future__ import annotations

import pytest

from .figures import LONG, kills, times
from .kills import at_every_operation, at_random_times
from .scenes import CARELESS, SCENES, UNSWEPT


@pytest.mark.parametrize("name", SCENES)
def test_killed_at_every_operation(zygote, name):
    """What is there opens, verifies, and is one generation; the next save works and leaves nothing beside it."""
    for sweep in kills(zygote, name, long=LONG):
        print(sweep)
        assert not sweep.lost, "\n".join([str(sweep), *sweep.lost[:10]])
        assert sweep.tried > 1


@pytest.mark.parametrize("name", SCENES)
def test_killed_at_random_times(zygote, name):
    """The same wherever it happens to be."""
    sweep = at_random_times(zygote, SCENES[name], times(long=LONG))
    print(sweep)
    assert not sweep.lost, "\n".join(sweep.lost)


def test_a_save_that_does_not_survive_is_seen(zygote):
    """torch.save over the older file loses both."""
    sweep = at_every_operation(zygote, CARELESS["torch.save"])
    assert len(sweep.lost) > sweep.tried / 2, str(sweep)


def test_junk_is_seen(zygote):
    """A save that does not sweep leaves the hidden file of the one that was killed."""
    sweep = at_every_operation(zygote, UNSWEPT, every=3)
    assert any("junk" in each for each in sweep.lost), str(sweep)
