"""The inert reader says of plain trees what Python's own unpickler says, for every protocol."""

from __future__ import annotations

import datetime as dt
import math
import pickle
from collections import Counter, OrderedDict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.describe.makers import dumps
from unmoor.describe.reading import read_pickle

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)

moments = (
    st.datetimes() | st.dates() | st.times() | st.timedeltas()
    | st.datetimes(timezones=st.just(dt.timezone(dt.timedelta(hours=5, minutes=30), "IST")))
)  # fmt: skip
numbers = st.integers(-(1 << 200), 1 << 200) | st.floats(allow_nan=False) | st.complex_numbers(allow_nan=False)
keys = (
    st.floats(allow_nan=False)
    | st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=20)
    | st.binary(max_size=20)
    | moments
)
keys |= st.tuples(st.integers(), st.text(max_size=5))
ranges = st.builds(range, st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 4))
slices = st.builds(slice, st.none() | st.integers(), st.none() | st.integers(), st.none() | st.integers(1, 9))
leaves = keys | numbers | st.binary(max_size=300) | st.text(max_size=300) | ranges | slices
leaves |= st.binary(max_size=20).map(bytearray) | st.frozensets(keys, max_size=4) | st.sets(keys, max_size=4)


def holding(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Every plain container of `inner`."""
    return (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(keys, inner, max_size=5)
        | st.dictionaries(keys, inner, max_size=5).map(OrderedDict)
        | st.dictionaries(st.text(max_size=5), st.integers(), max_size=5).map(Counter)
        | inner.map(lambda value: [value, value, {"again": value}])
    )


trees = st.recursive(leaves, holding, max_leaves=25)


def same(one: Any, other: Any) -> bool:
    """Equal in value, type and order, a zero's sign included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return bool(one == other)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@settings(deadline=None)
@given(tree=trees)
def test_a_plain_tree_is_read_as_pickle_reads_it(protocol: int, tree: Any) -> None:
    """Law 1: nothing is executed; and what needs no execution is read whole: values, types, order."""
    data = dumps(tree, protocol)
    reading = read_pickle(data, path="p", where="p")
    assert same(reading.value, pickle.loads(data))
    assert reading.end == len(data)
    assert not reading.calls


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_is_shared_is_shared_after_reading(protocol: int) -> None:
    """One list at two places is one list, and a list that holds itself does, as pickle has it."""
    shared: list[Any] = [1]
    circle: list[Any] = []
    circle.append(circle)
    value = read_pickle(dumps({"a": shared, "b": shared, "c": circle}, protocol), path="p", where="p").value
    assert value["a"] is value["b"]
    assert value["c"][0] is value["c"]
