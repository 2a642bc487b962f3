"""A referee that is not ours finds nothing lost: it kills a script around `unmoor.Run` as it saves, and resumes it."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from .referee import Unavailable, judged

POINTS = 0 if os.environ.get("UNMOOR_CHAOS") == "long" else 3


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--behind",)], ids=["at once", "behind the run"])
def test_the_referee_finds_every_resume_exact_and_from_the_newest_checkpoint(flags: tuple[str, ...]) -> None:
    """No hard failure, no silent divergence, no work lost that a complete checkpoint held."""
    try:
        verdicts = judged(*flags, points=POINTS)
    except Unavailable as reason:
        pytest.skip(str(reason))
    killed = {name: number for name, number in verdicts.items() if name != "control"}
    assert set(killed) == {"PASS"}, verdicts
    assert verdicts["control"] == 1
    assert Counter(killed).total() >= (POINTS or 15)
