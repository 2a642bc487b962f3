"""Which checkpoints may go: a table, and the law that no policy and no order of events can break."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmoor.plan.retention import best_of, expendable, is_new_best
from unmoor.values.listing import Saved
from unmoor.values.run_policy import Best, Keep


def row(number, step=None, *, verified=True, complete=True, loss=None, name=None):
    """A checkpoint as a listing has it; its name is its number."""
    metrics = {} if loss is None else {"loss": loss}
    step = number * 10 if step is None else step
    return Saved(
        f"run/{name or number}", name or str(number), step, number, metrics, verified=verified, complete=complete
    )


LOSS = Best("loss", "min", 1)
TABLE = [
    ("nothing there", [], Keep(1), "", ""),
    ("fewer than are kept", [row(1), row(2)], Keep(3), "", ""),
    ("the oldest goes", [row(1), row(2), row(3)], Keep(2), "", "1"),
    ("all are kept", [row(n) for n in range(1, 9)], Keep(None), "", ""),
    ("the order of the rows is no matter", [row(3), row(1), row(2)], Keep(1), "", "1 2"),
    ("newest is by number, not by step", [row(1, 90), row(2, 10)], Keep(1), "", "1"),
    ("the one that was resumed from", [row(1), row(2), row(3)], Keep(1), "1", "2"),
    ("none is verified", [row(n, verified=None) for n in (1, 2, 3)], Keep(1), "", ""),
    ("the newest is not verified yet", [row(1), row(2), row(3, verified=None)], Keep(1), "", "1"),
    ("the newest does not hold", [row(1), row(2), row(3, verified=False)], Keep(1), "", "1"),
    ("old ones whose note was lost", [row(1, verified=None), row(2, verified=None), row(3)], Keep(2), "", ""),
    ("enough newer ones are verified", [row(1, verified=None), row(2), row(3)], Keep(2), "", "1"),
    ("the best stays", [row(1, loss=1.0), row(2, loss=2.0), row(3, loss=3.0)], Keep(1, (LOSS,)), "", "2"),
    ("of equal ones the newer", [row(1, loss=1.0), row(2, loss=1.0), row(3, loss=3.0)], Keep(1, (LOSS,)), "", "1"),
    ("one that is no number", [row(1, loss=math.nan), row(2, loss=9.0), row(3)], Keep(1, (LOSS,)), "", "1"),
    ("infinity is a number", [row(1, loss=math.inf), row(2), row(3)], Keep(1, (LOSS,)), "", "2"),
    ("not verified", [row(1, loss=1.0, verified=None), row(2, loss=2.0), row(3)], Keep(1, (LOSS,)), "", "1"),
    ("the largest", [row(1, loss=1.0), row(2, loss=2.0), row(3)], Keep(1, (Best("loss", "max", 1),)), "", "1"),
    ("first of every span", [row(n) for n in range(1, 8)], Keep(1, (), 30), "", "1 2 4 5"),
    ("foreign files", [row(0, name="theirs"), row(1), row(2)], Keep(1), "", "1"),
    ("a broken one that was passed", [row(1), row(2, complete=False), row(3)], Keep(3), "", "2"),
    ("a broken one ahead of the run", [row(1), row(2, 500, complete=False), row(3)], Keep(3), "", ""),
    ("a broken one that is protected", [row(2, complete=False), row(3)], Keep(3), "2", ""),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "keep", "protected", "gone"), [r[1:] for r in TABLE], ids=[r[0] for r in TABLE])
def test_what_goes(rows, keep, protected, gone):
    """Each row: what there is, the policy, what is protected, what goes."""
    assert " ".join(expendable(rows, keep, protected.split())) == gone


def test_interrupted_ones_go_when_a_later_step_is_safe():
    """The state within a step stays until the run is past it, and the newest one only."""
    half = ["half2", "half4"]
    rows = [row(1), row(2, 15, name="half2"), row(3), row(4, 31, name="half4")]
    assert expendable(rows, Keep(5), (), interrupted=half) == ("half2",)
    assert expendable([*rows, row(5, 40)], Keep(5), (), interrupted=half) == ("half2", "half4")
    assert expendable([rows[0], rows[3]], Keep(5), (), interrupted=half) == ()


def test_a_new_best():
    """A value is a new best where it would be among those that are kept."""
    keep = Keep(1, (Best("loss", "min", 2),))
    rows = [row(1, loss=3.0), row(2, loss=1.0)]
    for value, wanted in ((0.5, True), (2.0, True), (3.0, False), (4.0, False), (math.nan, False)):
        assert is_new_best({"loss": value}, rows, keep) is wanted
    assert not is_new_best({"acc": 1.0}, rows, keep)
    assert is_new_best({"loss": 9.0}, rows[:1], keep)
    assert [r.number for r in best_of(rows, keep.best[0])] == [2, 1]


ROWS = st.lists(
    st.builds(
        lambda number, step, verified, complete, loss: (number, step, verified, complete, loss),
        st.integers(0, 12),
        st.integers(0, 50),
        st.sampled_from([True, False, None]),
        st.booleans(),
        st.one_of(st.none(), st.floats()),
    ),
    max_size=10,
    unique_by=lambda r: r[0],
)
KEEPS = st.builds(
    lambda last, best, every: Keep(last, (Best("loss", "min", best),) if best else (), every),
    st.one_of(st.none(), st.integers(1, 4)),
    st.integers(0, 2),
    st.one_of(st.none(), st.integers(1, 30)),
)


@given(ROWS, KEEPS, st.sets(st.integers(0, 12).map(str)))
def test_the_law(found, keep, protected):
    """Nothing goes while no verified checkpoint newer than it would be left; the newest verified one never goes."""
    rows = [
        row(number, step, verified=verified, complete=complete, loss=loss)
        for number, step, verified, complete, loss in found
    ]
    gone = set(expendable(rows, keep, protected))
    left = [r for r in rows if r.name not in gone]
    good = [r for r in left if r.verified and r.complete and r.number > 0]
    assert not gone & protected
    assert "0" not in gone
    for r in rows:
        if r.name in gone:
            assert any(other.number > r.number for other in good)
    if keep.last is not None and gone:
        assert len(good) >= 1
    newest = max((r for r in rows if r.verified and r.complete and r.number > 0), key=lambda r: r.number, default=None)
    assert newest is None or newest.name not in gone
    assert not set(expendable(left, keep, protected))
