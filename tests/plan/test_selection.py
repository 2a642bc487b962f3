"""What only= and skip= choose, and what is wrong with patterns, without a file."""

from __future__ import annotations

import pytest

from unmoor.plan.policy import Policy
from unmoor.plan.selection import Selection, select
from unmoor.values.target import Slot, Target, TargetGroup, TargetModule, TargetObject, TargetOptimizer, TargetParam


def module(label: str, names: str, *, through: bool = False) -> TargetModule:
    slots = {name: Slot(f"{label}/{name}", (2,), "float32", (1,), "cpu", dense=True) for name in names.split()}
    return TargetModule(label.partition("[")[0], label, "Net", slots, frozenset(slots), through=through)


def optimizer(label: str, names: str, joined: tuple[tuple[int, ...], ...] = ()) -> TargetOptimizer:
    params = tuple(TargetParam(name, (2,), "float32", "cpu", (1,), dense=True) for name in names.split())
    return TargetOptimizer("optimizer", label, "Adam", "Adam", (TargetGroup({}, params),), joined=joined)


ONE = Target((module("model", "a.w a.b h.w"),), (optimizer("optimizer", "a.w a.b h.w"),))
TWO = Target(
    (module("model[g]", "a.w h.w"), module("model[d]", "a.w")),
    (optimizer("optimizer", "model[g]:a.w model[g]:h.w model[d]:a.w"),),
)


def chosen(target: Target, *, only: tuple[str, ...] | None = None, skip: tuple[str, ...] = ()) -> Selection:
    return select(target, Policy(only=only, skip=skip))


@pytest.mark.parametrize(
    ("target", "only", "skip", "left"),
    [
        (ONE, None, (), []),
        (ONE, ("a.*",), (), [2]),
        (ONE, ("model.a.*",), (), [2]),
        (ONE, None, ("*.b",), [1]),
        (ONE, ("*",), ("optimizer.h.w",), [2]),
        (ONE, ("optimizer.*",), (), []),
        (TWO, ("model[g].a.w",), (), [1, 2]),
        (TWO, ("h.w",), (), [0, 2]),
        (TWO, None, ("optimizer.model[d].*",), [2]),
        (TWO, None, ("optimizer.a.w",), [0, 2]),
    ],
)
def test_optimizer_state_follows_what_is_chosen_of_its_models(
    target: Target, only: tuple[str, ...] | None, skip: tuple[str, ...], left: list[int]
) -> None:
    """State is chosen with its parameter, or by the optimizer's own label."""
    found = chosen(target, only=only, skip=skip)
    assert not found.faults
    assert sorted(found.of("optimizer").left) == left


def test_names_that_only_the_file_has_are_judged_as_well() -> None:
    """A saved name is asked for where a pattern of its module would choose it."""
    found = chosen(ONE, only=("a.*",)).of("model")
    assert found.asks("a.gone")
    assert not found.asks("old.head")
    assert chosen(ONE, skip=("h.*",)).of("model").asks("old.head")


@pytest.mark.parametrize(
    ("target", "only", "kind", "text"),
    [
        (TWO, "a.w", "ambiguous", "only='a.w' could mean model[g].a.w or model[d].a.w"),
        (ONE, "x.*", "mismatch", "only='x.*' chooses nothing of the live run"),
        (ONE, "a", "mismatch", "only='a' is the name of no tensor"),
    ],
)
def test_a_pattern_without_one_meaning_is_a_fault(target: Target, only: str, kind: str, text: str) -> None:
    """Nothing is chosen by a pattern that says nothing, or two things."""
    (fault,) = chosen(target, only=(only,)).faults
    assert (fault.kind, fault.message) == (kind, text)


def test_what_cannot_be_divided_is_a_fault() -> None:
    """Models that load as a whole, parameters in one FlatParameter, and parameters without names."""
    whole = Target((module("model", "a.w b.w", through=True),))
    assert "as a whole" in chosen(whole, skip=("a.*",)).faults[0].message
    flat = Target((module("model", "a.w b.w"),), (optimizer("optimizer", "a.w b.w", joined=((0, 1),)),))
    assert "a.w shares a FlatParameter with b.w" in chosen(flat, skip=("a.*",)).faults[0].message
    assert not chosen(flat, skip=("*",)).faults
    item = Target((module("model", "a.w"),), objects=(TargetObject("scheduler", "scheduler", "LR", "cpu", "cpu"),))
    assert not chosen(item, only=("a.w",)).faults
