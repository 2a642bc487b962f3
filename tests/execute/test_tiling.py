"""Cutting strided tensors: pure arithmetic on shapes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmoor.execute.tiling import extent, is_dense, same_layout, tiles

from .fakes import contiguous, indices

LAYOUTS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 20)), max_size=4)


def positions(shape, stride, offset):
    return [offset + sum(i * step for i, step in zip(index, stride, strict=True)) for index in indices(shape)]


@given(LAYOUTS, st.integers(0, 50), st.integers(1, 60))
def test_tiles_hold_every_element_exactly_once(layout, offset, limit):
    """Memory: live state + one bounded staging buffer: tiles fit the limit, and every element is in exactly one."""
    shape, stride = tuple(size for size, _ in layout), tuple(step for _, step in layout)
    seen = Counter()
    for tile in tiles(shape, stride, offset, limit):
        assert 1 <= tile.extent <= limit
        for index in indices(tile.shape):
            seen[tuple(a + b for a, b in zip(tile.start, index, strict=True))] += 1
        places = positions(tile.shape, stride, tile.offset)
        assert min(places) == tile.offset
        assert max(places) == tile.offset + tile.extent - 1
    assert seen == Counter(indices(shape))


@given(st.permutations([4, 1, 3, 5]), st.integers(1, 70))
def test_tiles_of_a_dense_tensor_are_runs_of_its_storage(sizes, limit):
    """A dense tensor, also a transposed one, is cut into runs that follow each other without gaps or overlap."""
    shape = tuple(sizes)
    stride = tuple(reversed(contiguous(tuple(reversed(shape)))))
    end = 0
    for tile in sorted(tiles(shape, stride, 0, limit), key=lambda tile: tile.offset):
        assert tile.offset == end
        end += tile.extent
    assert end == 60


@given(LAYOUTS)
def test_extent_is_that_of_the_elements(layout):
    """The extent reaches from the first element to the last."""
    shape, stride = tuple(size for size, _ in layout), tuple(step for _, step in layout)
    places = positions(shape, stride, 0)
    assert extent(shape, stride) == (max(places) + 1 if places else 0)


@given(LAYOUTS)
def test_dense_means_every_place_once(layout):
    """A layout is dense exactly if its elements fill a run of places, each once."""
    shape, stride = tuple(max(size, 1) for size, _ in layout), tuple(step for _, step in layout)
    places = positions(shape, stride, 0)
    assert is_dense(shape, stride) == (sorted(places) == list(range(len(places))))


@pytest.mark.parametrize(
    ("shape", "a", "b", "same"),
    [
        ((2, 3), (3, 1), (3, 1), True),
        ((1, 3), (3, 1), (7, 1), True),
        ((2, 3), (3, 1), (1, 2), False),
        ((), (), (), True),
        ((1, 1), (0, 9), (5, 5), True),
    ],
)
def test_strides_of_single_elements_do_not_count(shape, a, b, same):
    """Two layouts are the same if every element stands at the same place."""
    assert same_layout(shape, a, b) is same
