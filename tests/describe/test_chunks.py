"""Boxes that fill a tensor, and runs of its flattened elements as boxes."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmoor.describe.chunks import TOO_TANGLED, tiling_fault
from unmoor.values.boxes import Box, flat_boxes

PINWHEEL = [
    Box((0, 0), (1, 2)),
    Box((0, 2), (2, 1)),
    Box((2, 1), (1, 2)),
    Box((1, 0), (2, 1)),
    Box((1, 1), (1, 1)),
]
"""Five boxes of 3 x 3 that no straight cut separates."""

shapes = st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple)


def inside(box):
    return itertools.product(*(range(a, a + n) for a, n in zip(*box, strict=True)))


@st.composite
def tilings(draw):
    """A shape and boxes that fill it, by straight cuts of straight cuts, in any order."""
    shape = draw(shapes)
    boxes = [Box((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 12))):
        box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        axis = draw(st.integers(0, len(shape) - 1))
        at = draw(st.integers(0, box.sizes[axis]))
        for first, size in ((0, at), (at, box.sizes[axis] - at)):
            start = tuple(a + first * (i == axis) for i, a in enumerate(box.start))
            boxes.append(Box(start, tuple(size if i == axis else n for i, n in enumerate(box.sizes))))
    return shape, draw(st.permutations(boxes))


@settings(max_examples=200, deadline=None)
@given(tilings())
def test_takes_every_layout_that_fills_a_tensor(tiling):
    """Boxes of any cuts of cuts, empty ones among them, are proved to fill their tensor."""
    shape, boxes = tiling
    assert tiling_fault(shape, boxes) == ""


@settings(max_examples=200, deadline=None)
@given(tilings(), st.data())
def test_a_box_moved_or_left_out_is_seen(tiling, data):
    """Where elements are covered twice or never, the answer is never that all is well."""
    shape, boxes = tiling
    boxes = list(boxes)
    number = data.draw(st.integers(0, len(boxes) - 1))
    sizes = boxes[number].sizes
    moved = tuple(data.draw(st.integers(0, whole - n)) for whole, n in zip(shape, sizes, strict=True))
    boxes[number] = Box(moved, sizes)
    covered = [index for box in boxes for index in inside(box)]
    exact = len(covered) == len(set(covered)) == len(list(inside(Box((0,) * len(shape), shape))))
    assert (tiling_fault(shape, boxes) == "") == exact
    if 0 not in sizes:
        assert "in no chunk" in tiling_fault(shape, boxes[:number] + boxes[number + 1 :])


def test_takes_a_pinwheel():
    """Boxes that no straight cut separates are compared each with each."""
    assert tiling_fault((3, 3), PINWHEEL) == ""
    turned = [*PINWHEEL[:-1], Box((0, 0), (1, 1))]
    assert tiling_fault((3, 3), turned) == "its chunks at (0, 0) and (0, 0) overlap"


@pytest.mark.parametrize(
    ("boxes", "words"),
    [
        ([Box((0, 0), (4, 3))], "reaches out of 4x2"),
        ([Box((3, 0), (2, 2)), Box((0, 0), (3, 2))], "reaches out of 4x2"),
        ([Box((0,), (4,))], "another number of dimensions"),
        ([], "8 of its 8 elements are in no chunk"),
        ([Box((0, 0), (4, 2)), Box((1, 1), (1, 1))], "overlap"),
    ],
    ids=["too wide", "too far", "flat", "none", "twice"],
)
def test_names_what_is_wrong(boxes, words):
    """Each fault of a layout is told in words."""
    assert words in tiling_fault((4, 2), boxes)


def test_many_boxes_take_little_work():
    """A grid of 90,000 boxes in any order is proved by sorting; a tangle of as many is refused."""
    grid = [Box((i, j), (1, 1)) for i in range(300) for j in range(300)]
    random.Random(0).shuffle(grid)
    assert tiling_fault((300, 300), grid) == ""
    tangle = [Box((0, 0), (300, 1)), *(Box((0, 0), (1, 300)) for _ in range(89_999))]
    assert tiling_fault((300, 90_000), tangle) == TOO_TANGLED


@settings(max_examples=200, deadline=None)
@given(shapes, st.data())
def test_runs_of_elements_as_boxes(shape, data):
    """The boxes of a run hold its elements, each once, one box behind the other."""
    order = list(itertools.product(*map(range, shape)))
    start = data.draw(st.integers(0, len(order)))
    stop = data.draw(st.integers(start, len(order)))
    boxes = flat_boxes(shape, start, stop)
    assert [index for box in boxes for index in inside(box)] == order[start:stop]
    assert len(boxes) <= 2 * len(shape) - 1


def test_the_one_element_of_a_scalar():
    """A tensor without dimensions is one box."""
    assert flat_boxes((), 0, 1) == [Box((), ())]
    assert tiling_fault((), [Box((), ())]) == ""
