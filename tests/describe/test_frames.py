"""Frames: what a tree of containers is, beside its leaves."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

from unmoor.values.frames import FrameError, framed, is_at_home, leaves_of, plain, rebuilt

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
KEYS = SCALARS | st.tuples(st.text(), st.integers())
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.dictionaries(KEYS, inner, max_size=3).map(OrderedDict)
        | st.dictionaries(st.text(), st.integers(), max_size=3).map(Counter)
    ),
    max_leaves=25,
)


class Tensor:
    """Stands for a tensor: equal to itself alone."""


class Part(Tensor):
    """Stands for a tensor that ranks hold together."""


def take(tree):
    return framed(tree, lambda leaf: isinstance(leaf, Part), lambda leaf: isinstance(leaf, Tensor))


def same(one, other):
    """Equal, with the same classes all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        pairs = list(zip(one.items(), other.items(), strict=True))
        return all(same(a, b) and same(v, w) for (a, v), (b, w) in pairs)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@given(st.dictionaries(KEYS, TREES, max_size=5))
def test_a_tree_comes_back_from_its_frame_and_leaves(tree):
    """Classes, keys of any type and their order: "The frame stands beside them and gives all of that back"."""
    made = take(tree)
    frame = json.loads(json.dumps(made.frame))
    assert sorted(key for key, _ in leaves_of(frame)) == sorted(made.leaves)
    assert all(is_at_home(key, place) for key, place in leaves_of(frame))
    assert same(rebuilt(frame, made.leaves), tree)


@given(TREES)
def test_plain_values_come_back(value):
    """Metadata of modules is kept in the frame itself."""
    frame = json.loads(json.dumps(["OrderedDict", [], plain(value)]))
    assert same(rebuilt(frame, {})._metadata, value)


@given(st.dictionaries(st.text(), TREES, max_size=5))
def test_flat_keys_are_those_of_torch(tree):
    """Where torch's own flattening can tell all leaves apart, every key and key path is the one that it gives."""
    made = take(tree)
    try:
        leaves, paths = flatten_state_dict(tree)
    except ValueError:
        assert any("~" in key for key in made.leaves)
        return
    assert list(made.leaves) == list(leaves)
    assert made.paths == paths


def test_lists_and_tuples_are_opened_for_tensors():
    """A list as torch opens it; a tuple, which torch keeps whole, where a part of a tensor is in it."""
    tensor, part = Tensor(), Part()
    made = take({"list": [tensor, 1], "whole": (tensor, 1), "open": (part, (2, part)), "deep": [[{"x": 1}], 2]})
    assert list(made.leaves) == ["list.0", "list.1", "whole", "open.0", "open.1.0", "open.1.1", "deep.0.0.x", "deep.1"]
    assert made.paths["open.1.0"] == ("open", 1, 0)
    tree = rebuilt(made.frame, made.leaves)
    assert tree["open"] == (part, (2, part))
    assert tree["whole"] == (tensor, 1)


def test_a_container_inside_itself_has_no_frame():
    """It could not be written without end."""
    knot = {}
    knot["again"] = {"deep": knot}
    with pytest.raises(FrameError, match=r"again\.deep"):
        take(knot)
    shared = {"x": 1}
    assert rebuilt(take({"a": shared, "b": shared}).frame, take({"a": shared, "b": shared}).leaves)["b"] == {"x": 1}


def test_metadata_that_is_not_plain_is_left_out():
    """The tree comes back without it, and its place is told."""
    state = OrderedDict(w=1)
    state._metadata = {"": {"version": object()}}
    made = take({"model": state})
    assert made.left_out == [("model",)]
    assert same(rebuilt(made.frame, made.leaves), {"model": OrderedDict(w=1)})


BROKEN = [5, None, [], ["dict"], ["dict", 5], ["dict", [1]], ["set", []], ["dict", [["k"]]], {"dict": []},
          ["dict", [["k", 7]]], ["dict", [[["list", []], "k"]]], ["dict", [[{}, "k"]]], ["list", ["gone"]],
          ["OrderedDict", [], {"a": 1}], ["OrderedDict", [], ["bytes", "zz"]], ["dict", [], None, None]]  # fmt: skip


@pytest.mark.parametrize("frame", BROKEN, ids=json.dumps)
def test_what_is_no_frame_is_refused(frame):
    """Whatever a file claims: an error of one class."""
    with pytest.raises(FrameError):
        rebuilt(frame, {"k": 1})


@pytest.mark.parametrize("value", [object(), {"a": {1, 2}}, [print], {"a": bytearray(b"x")}])
def test_what_is_not_plain_is_refused(value):
    """Only plain values stand in a manifest."""
    with pytest.raises(FrameError):
        plain(value)
