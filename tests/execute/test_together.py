"""The sums of parts that several readers read, put together."""

from __future__ import annotations

import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmoor.execute.together import Part, mark_of, packed, put_together
from unmoor.values.nodes import Span, Storage

DATA = bytes(range(97, 123)) * 5


def storage(key="0", data=DATA):
    return Storage(key, "uint8", len(data), "cpu", Span(0, len(data)), zlib.crc32(data))


def part(start, end, data=DATA, key="0"):
    return Part(storage(key), start, end, zlib.crc32(data[start:end]))


@given(st.lists(st.integers(1, len(DATA) - 1), unique=True, max_size=8), st.integers(1, 4), st.randoms())
def test_parts_that_fill_a_storage_have_its_checksum(edges, readers, random):
    """However it is cut, and whoever reads what, also twice."""
    cuts = [0, *sorted(edges), len(DATA)]
    pieces = [part(a, b) for a, b in pairwise(cuts)]
    rows = [[] for _ in range(readers)]
    for piece in pieces:
        random.choice(rows).append(piece)
    good, bad = put_together([packed(row, most=1 << 20) for row in rows])
    assert (good, bad) == ([mark_of(storage())], [])


@pytest.mark.parametrize(
    ("rows", "outcome"),
    [
        ([[part(0, 60)], [part(60, 130)]], "good"),
        ([[part(0, 130)], [part(0, 130)]], "good"),
        ([[part(0, 60)], [part(60, 130, DATA[:-1] + b"!")]], "bad"),
        ([[part(0, 130)], [part(0, 130, b"?" + DATA[1:])]], "bad"),
        ([[part(0, 60)], [part(61, 130)]], "open"),
        ([[part(0, 60)], [part(50, 130)]], "open"),
        ([[part(1, 130)], []], "open"),
        ([[part(0, 129)]], "open"),
    ],
)
def test_what_becomes_of_a_storage(rows, outcome):
    """Its checksum holds, or not, or parts are missing and nothing is said."""
    good, bad = put_together([packed(row, most=1 << 20) for row in rows])
    assert ("good" if good else "bad" if bad else "open") == outcome


def test_a_reader_with_too_much_to_say_says_nothing():
    """Then the storages stay as they are, unchecked."""
    assert packed([part(0, 130)], most=10) == b""
    assert put_together([b"", packed([part(60, 130)], most=1 << 20)]) == ([], [])
