"""What is done at the end of a step: the table of wishes, facts and policies."""

from __future__ import annotations

import pytest

from unmoor.plan.run_due import Decision, Facts, Verdict, Wish, judge, pace
from unmoor.values.run_policy import parse_every

FIVE, HOUR, BOTH, NEVER = (parse_every(value) for value in (5, "1h", (5, "1h"), None))


def facts(step=5, saved=0, since=0.0, last=False, **more):
    return Facts(step, saved, since, last, **more)


TABLE = [
    ("nothing is due", [Wish()], facts(4), FIVE, Verdict()),
    ("the step is due", [Wish()], facts(5), FIVE, Verdict("every 5 steps")),
    ("it was saved already", [Wish()], facts(5, saved=5), FIVE, Verdict()),
    ("the time is not up", [Wish()], facts(5, since=3599.9), HOUR, Verdict()),
    ("the time is up", [Wish()], facts(5, since=3600.0), HOUR, Verdict("every 1 h")),
    ("one of both", [Wish()], facts(4, since=3600.0), BOTH, Verdict("every 5 steps and every 1 h")),
    ("never", [Wish()], facts(5, since=1e9), NEVER, Verdict()),
    ("the end", [Wish()], facts(4, last=True), NEVER, Verdict("the end", "finished")),
    ("the end was saved already", [Wish()], facts(4, saved=4, last=True), NEVER, Verdict("the end", "finished")),
    ("asked for", [Wish(save=True)], facts(4, saved=4), NEVER, Verdict("asked for")),
    ("to stop", [Wish(stop=True)], facts(4), NEVER, Verdict("the end", "stopped")),
    ("a signal", [Wish("SIGTERM")], facts(4), NEVER, Verdict("SIGTERM", "signal", "SIGTERM")),
    ("a signal, nothing new", [Wish("SIGTERM")], facts(4, saved=4), NEVER, Verdict("", "signal", "SIGTERM")),
    ("a signal at the end", [Wish("SIGINT")], facts(4, last=True), NEVER, Verdict("the end", "finished", "SIGINT")),
    ("another rank's signal", [Wish(), Wish("SIGUSR1")], facts(4), NEVER, Verdict("SIGUSR1", "signal", "SIGUSR1")),
    ("another rank's wish", [Wish(), Wish(save=True)], facts(4), NEVER, Verdict("asked for")),
    ("the first save of all", [Wish()], facts(5, saved=None), FIVE, Verdict("every 5 steps")),
]


@pytest.mark.parametrize(("wishes", "known", "every", "verdict"), [r[1:] for r in TABLE], ids=[r[0] for r in TABLE])
def test_what_is_done(wishes, known, every, verdict):
    """Each row: what ranks wish, what is known, the policy, what all do."""
    assert judge(wishes, known, every, "wait") == verdict


def test_a_save_that_is_under_way_puts_another_off_where_that_is_asked_for():
    """With "skip" a save that is due is left out; the last one never is."""
    busy = facts(5, busy=True)
    assert judge([Wish()], busy, FIVE, "wait") == Verdict("every 5 steps")
    assert judge([Wish()], busy, FIVE, "skip") == Verdict(skipped="every 5 steps")
    assert judge([Wish(save=True)], busy, FIVE, "skip") == Verdict(skipped="asked for")
    assert judge([Wish("SIGTERM")], busy, FIVE, "skip").save == "SIGTERM"
    assert judge([Wish()], facts(5, busy=True, last=True), FIVE, "skip").save == "the end"


def test_a_new_best_is_saved_where_that_is_asked_for():
    """The word "best" has a run saved at a new best, and nothing else does."""
    best = parse_every(("1h", "best"))
    assert judge([Wish()], facts(3, best=True), best, "wait") == Verdict("a new best")
    assert judge([Wish()], facts(3, best=True), HOUR, "wait") == Verdict()


@pytest.mark.parametrize(
    ("step", "seconds", "every", "again"),
    [
        (7, 2.0, NEVER, 8),
        (7, 0.1, NEVER, 17),
        (7, 0.0, NEVER, 8),
        (7, 0.001, FIVE, 10),
        (10, 0.001, FIVE, 15),
        (7, 0.001, HOUR, 1007),
    ],
)
def test_ranks_meet_about_once_a_second(step, seconds, every, again):
    """Short steps are not held up by meetings, and none is missed at which all must save."""
    assert pace(step, seconds, every) == again


def test_a_decision_is_told_to_other_ranks_as_it_is():
    """What the first rank decides arrives as the same value."""
    import json

    made = Decision(Verdict("the end", "finished"), 12, "step_000000012.pt", {"step": 12, "metrics": {"loss": 0.5}})
    assert Decision.from_json(json.loads(json.dumps(made.to_json()))) == made
