"""Saved parameter names on live ones: all of one side must land, one each, and in one way only."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmoor.plan.optimizer_names import LiveNames, land
from unmoor.plan.optimizer_order import told_by_order

S = (2, 2)


def landed(saved: str, own: str, known: str = "", **more: Any) -> list[tuple[str, dict[str, str]]]:
    """How saved names land: `own` are the optimizer's, `known` further ones of its model."""
    everything = {name: name for name in (*own.split(), *known.split())}
    live = LiveNames(dict.fromkeys(own.split(), S), everything)
    shapes = more.pop("shapes", dict.fromkeys(saved.split(), S))
    found = land(shapes, live, renamed=more.get("renamed", {}), rename=more.get("rename"))
    return [(landing.how, dict(landing.to)) for landing in found]


@pytest.mark.parametrize(
    ("saved", "own", "known", "how"),
    [
        ("a.w a.b", "a.w a.b", "", "as saved"),
        ("a.w a.b", "a.w", "a.b", "as saved"),
        ("module.a.w module.a.b", "a.w a.b", "", "without 'module.'"),
        ("module.a.w module.a.b", "a.w", "a.b", "without 'module.'"),
        ("a._orig_mod.w b.w", "a.w b.w", "", "without '_orig_mod.'"),
        ("net.a.w net.b.w", "a.w", "b.w c.w", "without 'net.'"),
        ("a.w b.w", "net.a.w net.b.w", "", "with 'net.' added"),
        ("a.w b.w", "model[g]:a.w model[g]:b.w", "model[d]:a.w model[d]:b.w", "with 'model[g]:' added"),
        ("model[g]:a.w model[g]:b.w", "a.w b.w", "", "without 'model[g]:'"),
        ("module.w", "module.w", "w", "as saved"),
    ],
)
def test_a_reading_that_lands_every_name_is_proved(saved: str, own: str, known: str, how: str) -> None:
    """Law 8: a prefix is a fact to be proved; frozen parameters of the model count, the optimizer's own come first."""
    ((found, to),) = landed(saved, own, known)
    assert found == how
    assert list(to) == saved.split()


@pytest.mark.parametrize(("saved", "own"), [("x.w y.w", "a.w b.w"), ("net.a.w other.b.w", "a.w b.w")])
def test_names_that_only_partly_fit_under_a_prefix_do_not_land(saved: str, own: str) -> None:
    """A prefix of some names is no reading of all."""
    assert landed(saved, own) == []


def test_two_readings_that_differ_are_both_given() -> None:
    """Law 8: the only one: two prefixes that fit as well are told, and neither is taken."""
    assert len(landed("w", "g.w d.w")) == 2


def test_names_that_are_partly_gone_land_as_they_stand() -> None:
    """A layer that was removed keeps the others from nothing; what has no counterpart does not land."""
    assert landed("a.w gone.w", "a.w new.w") == [("as saved", {"a.w": "a.w"})]


def test_shapes_speak_against_a_reading() -> None:
    """A reading that would give a parameter state of another shape is none."""
    assert landed("net.a", "a", shapes={"net.a": (3,)}) == []


def test_the_renaming_of_the_model_comes_first() -> None:
    """What the model's own tensors were renamed by holds for their state, the caller's rename for the rest."""
    found = landed("old.w x.w", "new.w y.w", renamed={"old.w": "new.w"}, rename={"x.": "y."})
    assert found == [("as saved", {"old.w": "new.w", "x.w": "y.w"})]


SHAPES = st.lists(st.sampled_from([(1,), (2,), (2, 2)]), min_size=1, max_size=7)


@given(SHAPES, st.data())
def test_one_group_over_the_whole_model_is_told_by_its_order(shapes: list[tuple[int, ...]], data: Any) -> None:
    """A single group that holds as many parameters as the model lists them in its order, whatever their shapes."""
    known = [shape if data.draw(st.booleans()) else None for shape in shapes]
    params = [(f"p{i}", shape) for i, shape in enumerate(shapes)]
    assert told_by_order([known], params) == [[name for name, _ in params]]


@given(st.permutations(range(6)), st.integers(0, 6))
def test_shapes_of_their_own_tell_every_group(order: list[int], cut: int) -> None:
    """Where each shape is there once, any groups are told, also where some parameters were in none."""
    params = [(f"p{i}", (i + 1,)) for i in range(6)]
    chosen = [sorted(order[:3]), sorted(order[3 : 3 + min(cut, 3)])]
    found = told_by_order([[(i + 1,) for i in group] for group in chosen], params)
    assert found == [[f"p{i}" for i in group] for group in chosen]


@pytest.mark.parametrize(
    ("groups", "params"),
    [
        ([[S], [S]], [("a", S), ("b", S)]),
        ([[S]], [("a", S), ("b", S)]),
        ([[S, S]], [("a", S)]),
        ([[(1,)]], [("a", S)]),
        ([[None], [(1,)]], [("a", (1,)), ("b", (1,))]),
    ],
)
def test_what_shapes_leave_open_or_contradict_is_not_told(groups: Any, params: Any) -> None:
    """Several ways to deal the parameters out, or none, prove nothing."""
    assert told_by_order(groups, params) is None
