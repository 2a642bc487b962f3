"""Which saved parameter is which live one: names first, then an order that is proved, and never a guess."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmoor.plan.file_model import FileModel
from unmoor.plan.optimizer_match import OptimizerMatch, contradictions, match_optimizer
from unmoor.plan.policy import Policy
from unmoor.plan.saved_optimizer import SavedOptimizer
from unmoor.values.nodes import TensorNode
from unmoor.values.target import TargetGroup, TargetOptimizer, TargetParam

Shape = tuple[int, ...]
SQUARE = (2, 2)


def node(shape: Shape) -> TensorNode:
    return TensorNode(None, 0, shape, (1,) * len(shape), "float32", "cpu")


def live(*groups: dict[str, Shape], named: bool = True) -> TargetOptimizer:
    """A live Adam whose groups hold parameters by name and shape."""
    made = tuple(
        TargetGroup(
            {}, tuple(TargetParam(name if named else "", s, "float32", "cpu", (1,), True) for name, s in g.items())
        )
        for g in groups
    )
    return TargetOptimizer("optimizer", "optimizer", "Adam", "Adam", made)


def saved(*groups: list[Shape], names: tuple[str, ...] | None = None) -> SavedOptimizer:
    """An Adam's state for parameters of these shapes, with ids counted from 0 over all groups."""
    ids: list[tuple[int, ...]] = []
    state: dict[Any, dict[str, Any]] = {}
    for shapes in groups:
        start = len(state)
        ids.append(tuple(range(start, start + len(shapes))))
        state |= {
            start + i: {"step": node(()), "exp_avg": node(s), "exp_avg_sq": node(s)} for i, s in enumerate(shapes)
        }
    return SavedOptimizer(tuple({"params": list(i)} for i in ids), tuple(ids), names, state)


def match(
    target: TargetOptimizer,
    source: SavedOptimizer,
    *,
    listed: tuple[str, ...] | None = None,
    renamed: dict[str, str] | None = None,
    **modes: str,
) -> OptimizerMatch:
    """The match in these modes; `listed` are the parameters as the file's own model lists them."""
    shapes = {param.name: param.shape for _, param in target.params()}
    file = FileModel(order=listed, params=tuple((name, shapes[name]) for name in listed or ()))
    return match_optimizer(target, source, Policy(**modes), file=file, known={}, renamed=renamed or {})


@given(st.permutations(["a", "b", "c", "d"]))
def test_names_find_their_parameters_in_any_order(order: list[str]) -> None:
    """Law 6: names, not positions: state follows its parameter's name wherever it stands."""
    found = match(live(dict.fromkeys("abcd", SQUARE)), saved([SQUARE] * 4, names=tuple(order)))
    assert not found.faults
    assert found.ids == {position: order.index(name) for position, name in enumerate("abcd")}
    assert found.how == "matched by name"


def test_names_go_the_way_that_the_models_names_went() -> None:
    """Names that were renamed for the model are renamed for its optimizer, and a prefix of all of them is proved."""
    target = live({"net.a": SQUARE, "net.b": SQUARE})
    went = {"body.b": "net.b", "body.a": "net.a"}
    assert match(target, saved([SQUARE] * 2, names=("body.b", "body.a")), renamed=went).ids == {0: 1, 1: 0}
    found = match(target, saved([SQUARE] * 2, names=("module.net.b", "module.net.a")))
    assert found.ids == {0: 1, 1: 0}
    assert found.how == "matched by name, without 'module.'"


def test_names_without_a_counterpart_are_told_on_both_sides() -> None:
    """A saved name that nothing bears, and a live parameter that was not in the file, do not stop the others."""
    found = match(live({"a": SQUARE, "new": SQUARE}), saved([SQUARE] * 2, names=("old", "a")))
    assert (found.ids, found.unmatched, found.missing) == ({0: 1}, {"old": 0}, (1,))


def test_names_of_another_model_are_refused() -> None:
    """Where no name fits, position is not tried behind the caller's back."""
    found = match(live({"a": SQUARE}), saved([SQUARE], names=("x",)))
    assert found.ids == {}
    assert 'order="live" matches by position' in found.faults[0].remedy


SHAPES = st.sampled_from([(1,), (2,), (3,)])


@given(st.lists(SHAPES, min_size=1, max_size=6), st.randoms())
def test_two_orders_that_differ_are_refused_unless_shapes_decide(shapes: list[Shape], random: Any) -> None:
    """Law 6: index-keyed state is matched by order and proved by shape; two readings that differ are an error."""
    names = [f"p{i}" for i in range(len(shapes))]
    order = list(names)
    random.shuffle(order)
    target = live(dict(zip(names, shapes, strict=True)))
    source = saved([shapes[names.index(name)] for name in order])
    by_live = dict(enumerate(range(len(names))))
    by_file = {i: order.index(name) for i, name in enumerate(names)}
    found = match(target, source, listed=tuple(order))
    params = [param for _, param in target.params()]
    if by_live == by_file:
        assert found.ids == by_live
        assert "as does the order of the file's own model" in found.how
    elif contradictions(params, source, by_live):
        assert found.ids == by_file
        assert "shapes contradict the live order" in found.how
    else:
        assert found.ids == {}
        assert [fault.kind for fault in found.faults] == ["ambiguous"]


def test_the_order_is_tried_within_each_group() -> None:
    """Each saved group went through its own parameters as the file's model lists them."""
    target, source = live({"b": SQUARE, "a": SQUARE}, {"c": (3,)}), saved([SQUARE] * 2, [(3,)])
    assert "2 of 3 parameters in another order" in match(target, source, listed=("c", "a", "b")).faults[0].message
    assert match(target, source, listed=("c", "b", "a")).ids == {0: 0, 1: 1, 2: 2}


@pytest.mark.parametrize(("asked", "ids"), [("file", {0: 1, 1: 0}), ("live", {0: 0, 1: 1})])
def test_the_caller_chooses_between_two_orders(asked: str, ids: dict[int, int]) -> None:
    """order= says which reading holds, also against names."""
    target, source = live({"b": SQUARE, "a": SQUARE}), saved([SQUARE] * 2)
    assert match(target, source, listed=("a", "b"), order=asked).ids == ids


def test_a_shape_that_contradicts_the_only_order_is_told_with_both_sides() -> None:
    """State of another shape than its parameter is refused with the name and both shapes; "fresh" lets it through."""
    target, source = live({"a": SQUARE, "b": (3,)}), saved([(3,), SQUARE])
    found = match(target, source)
    assert [fault.message for fault in found.faults] == [
        "state 'exp_avg' for a has shape 3, the live parameter has 2x2",
        "state 'exp_avg' for b has shape 2x2, the live parameter has 3",
    ]
    assert not match(target, source, mismatched="fresh").faults


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ([[SQUARE] * 3], "saved 1 group of 3 parameters, live 1 group of 2"),
        ([[SQUARE], [SQUARE]], "saved 2 groups of 1 parameter each, live 1 group of 2"),
    ],
)
def test_another_number_of_parameters_is_refused(groups: list[list[Shape]], text: str) -> None:
    """Without names, groups of other sizes cannot be matched."""
    found = match(live({"a": SQUARE, "b": SQUARE}), saved(*groups))
    assert text in found.faults[0].message


@pytest.mark.parametrize(
    ("shapes", "asked", "told"),
    [([SQUARE, SQUARE, (3,)], "proved", True), ([SQUARE, (2,), (3,)], "proved", False), ([SQUARE] * 3, "live", False)],
)
def test_an_order_that_nothing_proves_is_a_warning(shapes: list[Shape], asked: str, told: bool) -> None:
    """Position alone is no proof among parameters of one shape: that is told, unless the caller vouches for it."""
    target = live({f"p{i}": shape for i, shape in enumerate(shapes)}, named=False)
    found = match(target, saved(shapes), order=asked)
    assert found.ids == {0: 0, 1: 1, 2: 2}
    assert [finding.code for finding in found.findings] == (["order-not-proved"] if told else [])
    if told:
        assert "2 of 3 parameters have the shape of another" in found.findings[0].message
        assert "pass model=" in found.findings[0].remedy


def test_the_files_order_cannot_be_asked_of_a_file_without_a_model() -> None:
    """order="file" where no model tells an order is a fault, not the live order."""
    found = match(live({"a": SQUARE}), saved([SQUARE]), order="file")
    assert found.ids == {}
    assert 'order="file" was asked for' in found.faults[0].message
