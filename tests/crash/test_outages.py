"""After a power loss at any moment the disk holds the old checkpoint or the new one, and the new one after a save."""

from __future__ import annotations

import pytest

from .figures import LONG
from .mutations import FILE, FOLDER
from .outages import after_outages
from .scenes import CARELESS, SCENES

SEEDS = 40 if LONG else 3


@pytest.mark.parametrize("name", SCENES)
def test_power_lost_at_every_operation(zygote, name):
    """Whatever was not synced is lost, partly lost, or out of order; what a save promised is there."""
    sweep = after_outages(zygote, SCENES[name], seeds=SEEDS, saves=4 if LONG else 1)
    print(sweep)
    assert not sweep.lost, "\n".join([str(sweep), *sweep.lost[:10]])
    assert sweep.tried >= 10


@pytest.mark.parametrize("name", CARELESS)
def test_what_scripts_do_is_seen_to_lose_checkpoints(zygote, name):
    """A plain torch.save, and one that is renamed and not synced."""
    assert after_outages(zygote, CARELESS[name], seeds=1).lost


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *(("a file over an older one", change) for change in FILE),
        *(("converted to a folder", change) for change in FOLDER),
    ],
)
def test_a_step_left_out_is_seen(zygote, name, change):
    """Each step of a commit is needed: without it some moment loses both checkpoints, or the promised one."""
    assert after_outages(zygote, SCENES[name], seeds=1, saves=0, change=change, most=1).lost
