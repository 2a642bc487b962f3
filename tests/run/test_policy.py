"""What a caller asks of a run in words: the table of what is understood, and what is refused by name."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest

import unmoor
from unmoor.values.run_policy import Best, Every, Keep, parse_every, parse_keep

UNDERSTOOD = [
    (None, None, None, "never"),
    (500, 500, None, "500 steps"),
    (np.int64(7), 7, None, "7 steps"),
    ("1 step", 1, None, "1 step"),
    ("1_000 steps", 1000, None, "1,000 steps"),
    ("1,000 steps", 1000, None, "1,000 steps"),
    ("15min", None, 900.0, "15 min"),
    (" 15 Minutes ", None, 900.0, "15 min"),
    ("90s", None, 90.0, "90 s"),
    ("1h", None, 3600.0, "1 h"),
    ("1.5h", None, 5400.0, "90 min"),
    ("2 d", None, 172800.0, "2 d"),
    (timedelta(minutes=1), None, 60.0, "1 min"),
    (("500 steps", "1h"), 500, 3600.0, "500 steps and every 1 h"),
    (["1h", 500], 500, 3600.0, "500 steps and every 1 h"),
]

REFUSED = [
    (0, "no interval"),
    (-5, "no interval"),
    (True, "no interval"),
    (0.5, "no interval"),
    ("", "no interval"),
    ("soon", "no interval"),
    ("15", "no unit"),
    ("0min", "no interval"),
    ("1.5 steps", "no interval"),
    ("3 parsecs", "'parsecs' is none of"),
    ("1 epoch", "whatever run.steps counts"),
    ((), "no interval"),
    ((5, "10 steps"), "two intervals of one kind"),
    (("1h", "5min"), "two intervals of one kind"),
    (("1h", None), "no interval"),
]


@pytest.mark.parametrize(("value", "steps", "seconds", "text"), UNDERSTOOD, ids=str)
def test_intervals_that_are_understood(value, steps, seconds, text):
    """Steps, times and both, however they are written."""
    assert parse_every(value) == Every(steps, seconds, best=False, text=text)


@pytest.mark.parametrize(("value", "why"), REFUSED, ids=str)
def test_intervals_that_are_refused(value, why):
    """What cannot be meant is an error that says why and what would do."""
    with pytest.raises(unmoor.UsageError, match=why) as caught:
        parse_every(value)
    assert "every=" in str(caught.value)


KEPT = [
    ({"last": 3, "best": None, "every": None}, Keep(3)),
    ({"last": None, "best": ("loss", "min"), "every": None}, Keep(None, (Best("loss", "min", 1),))),
    (
        {"last": 1, "best": [("a", "min", 2), ("b", "max", 1)], "every": "10 steps"},
        Keep(1, (Best("a", "min", 2), Best("b", "max", 1)), 10),
    ),
]


@pytest.mark.parametrize(("asked", "keep"), KEPT, ids=str)
def test_what_is_kept(asked, keep):
    """One metric or several."""
    assert parse_keep(**asked) == keep


WRONG = [
    ({"keep_last": 0}, "keep_last=0"),
    ({"keep_last": True}, "keep_last=True"),
    ({"keep_last": "3"}, "keep_last='3'"),
    ({"keep_best": "loss"}, "keep_best='loss'"),
    ({"keep_best": ("loss", "low", 1)}, "direction"),
    ({"keep_best": ("loss", "min", 0)}, "number of checkpoints"),
    ({"keep_best": [("a", "min"), ("a", "max")]}, "twice"),
    ({"keep_every": "1h"}, "keep_every='1h' is no number of steps"),
    ({"keep_every": 0}, "keep_every=0"),
    ({"every": "best"}, "no keep_best"),
    ({"background": "later"}, "background='later'"),
    ({"background": 1}, "background=1"),
    ({"on_exception": "raise"}, "on_exception='raise'"),
    ({"on_signal": None}, "on_signal=None"),
    ({"exit_code": 256}, "exit_code=256"),
    ({"exit_code": True}, "exit_code=True"),
    ({"run": {}}, "run="),
    ({"tree": 1}, "tree="),
]


@pytest.mark.parametrize(("policy", "why"), WRONG, ids=str)
def test_a_policy_that_cannot_be_meant_is_refused_before_anything_is_made(policy, why, tmp_path):
    """A mistake in the policy is told when the run is made, not fifteen minutes later."""
    with pytest.raises(unmoor.UsageError, match=why):
        unmoor.Run(tmp_path / "run", **policy)
    assert not (tmp_path / "run").exists()
