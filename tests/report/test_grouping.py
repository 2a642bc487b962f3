"""Names fold into patterns and unfold into exactly the same names."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmoor.report.grouping import choice_text, fold

segments = st.one_of(
    st.sampled_from(["layers", "attn", "weight", "bias", "0", "1", "2", "3", "10", "01", ""]),
    st.text(max_size=3),
)
names = st.lists(segments, min_size=1, max_size=6).map(".".join)
items = st.lists(st.tuples(names, st.integers(0, 3)), max_size=40)


@given(items)
def test_every_name_is_covered_exactly_once(found):
    """Law: every name is in exactly one row, and unfolding the rows gives back exactly the names that went in."""
    rows = fold(found)
    assert Counter(pair for row in rows for pair in row.unfold()) == Counter(found)
    assert sum(row.count for row in rows) == len(found)


@given(items)
def test_families_change_rows_and_never_names(found):
    """Law: unfolding gives back the names, also where kinds of one family share a row."""
    rows = fold(found, families={0: "a", 1: "a", 2: "b", 3: "b"})
    assert Counter(pair for row in rows for pair in row.unfold()) == Counter(found)


@given(st.integers(1, 30), st.integers(1, 4))
def test_equal_layers_make_as_many_rows_as_one_layer(layers, leaves):
    """A model of many equal layers is as long as one of them."""
    found = [(f"layers.{i}.{'abcd'[j]}.weight", j) for i in range(layers) for j in range(leaves)]
    assert len(fold(found)) == leaves


def test_runs_of_integers_and_siblings_are_folded():
    """The pattern of a transformer reads as a person would write it."""
    found = [
        (f"layers.{i}.attn.{name}.{leaf}", leaf) for i in range(32) for name in "qkv" for leaf in ("weight", "bias")
    ]
    one_family = {"weight": 0, "bias": 0}
    assert [str(row) for row in fold(found, families=one_family)] == ["layers.{0..31}.attn.{q,k,v}.{weight,bias}"]
    assert [str(row) for row in fold(found)] == [
        "layers.{0..31}.attn.{q,k,v}.weight",
        "layers.{0..31}.attn.{q,k,v}.bias",
    ]


def test_a_layer_that_differs_stands_apart():
    """A layer with another shape is not hidden in the run of its neighbours."""
    found = [(f"{i}.weight", "wide" if i == 5 else "narrow") for i in range(8)]
    assert [str(row) for row in fold(found)] == ["{0..4,6,7}.weight", "5.weight"]


def test_many_siblings_of_different_kinds_are_kept_apart():
    """A list of parameters of many shapes does not become one unreadable row."""
    found = [(f"p.{i}", i % 5) for i in range(10)]
    assert [str(row) for row in fold(found, families=dict.fromkeys(range(5), 0))] == [
        "p.{0,5}",
        "p.{1,6}",
        "p.{2,7}",
        "p.{3,8}",
        "p.{4,9}",
    ]


def test_a_name_that_is_also_a_prefix_is_covered():
    """A tensor `a` beside a tensor `a.b` loses neither."""
    assert [str(row) for row in fold([("a", 1), ("a.b", 1)])] == ["a", "a.b"]


def test_rows_are_in_the_order_of_the_file():
    """A row stands where the first of its names stood."""
    assert [str(row) for row in fold([("z", 1), ("a", 2), ("y", 1)])] == ["{z,y}", "a"]


def test_a_name_of_very_many_segments_is_folded_without_recursion():
    """A hostile name cannot exhaust the stack."""
    name = "a." * 100_000 + "b"
    [row] = fold([(name, 1)])
    assert list(row.unfold()) == [(name, 1)]


@pytest.mark.parametrize(
    ("alternatives", "text"),
    [
        (["weight"], "weight"),
        (["0", "1"], "{0,1}"),
        (["0", "1", "2"], "{0..2}"),
        (["0", "1", "2", "7", "8", "9", "x"], "{0..2,7..9,x}"),
        (["layer1", "layer2", "layer3"], "layer{1..3}"),
        (["stem", "layer1", "layer2", "layer3"], "{stem,layer1..3}"),
        (["bn1", "bn2"], "bn{1,2}"),
        (["10", "11", "12"], "{10..12}"),
        (["a_1", "a_10"], "a_{1,10}"),
        (["mlp_core", "mlp_gate"], "mlp_{core,gate}"),
        (["exp_avg", "exp_avg_sq"], "exp_{avg,avg_sq}"),
        (["x_", "x_y"], "{x_,x_y}"),
        (["a1", "b2", "c3"], "{a1,b2,c3}"),
        (["00", "01", "02"], "{00,01,02}"),
        (["2", "1", "0"], "{2,1,0}"),
        (["9" * 30, "1" + "0" * 30], "{" + "9" * 30 + ",1" + "0" * 30 + "}"),
    ],
)
def test_alternatives_are_written_shortly(alternatives, text):
    """Only integers written the usual way and following each other make a run."""
    assert choice_text(alternatives) == text


def test_many_alternatives_are_elided_in_the_middle():
    """A choice of many words says how many it leaves out."""
    assert choice_text(list("abcdefg"), longest=4) == "{a,b,c,… 3 more,g}"
