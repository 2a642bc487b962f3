"""Words on a page: nothing that a terminal would obey, nothing wider than the page."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmoor.report.layout import Page, cells, plain

widths = st.integers(20, 200)


@given(st.text())
def test_plain_text_always_prints(text):
    """Whatever a file calls its tensors, no control character reaches the terminal."""
    assert plain(text).isprintable()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("layers.0", "layers.0"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\nb", "a\\nb"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\ud800", "\\ud800"),
        ("größe", "größe"),
    ],
)
def test_controls_become_escapes_and_letters_stay(text, shown):
    """Escape sequences, direction marks and lone surrogates are shown as escapes, letters of any script as they are."""
    assert plain(text) == shown


@pytest.mark.parametrize(("text", "width"), [("abc", 3), ("层", 2), ("e\u0301", 1), ("", 0)])
def test_cells_are_terminal_columns(text, width):
    """Wide characters take two columns and combining marks none."""
    assert cells(text) == width


@given(st.text().map(plain), st.integers(3, 100))
def test_elided_text_fits(text, width):
    """Eliding keeps to the width, and to the text where it fits."""
    shown = Page().elide(text, width)
    assert cells(shown) <= width
    assert shown == text or "…" in shown


def test_eliding_keeps_both_ends():
    """The middle goes: names differ at their ends."""
    assert Page().elide("encoder.layers.0.attn.weight", 15) == "encoder….weight"
    assert Page(ellipsis="...").elide("encoder.layers.0.attn.weight", 15) == "encode...weight"


@given(st.text().map(plain), widths)
def test_wrapped_lines_fit(text, width):
    """Wrapping breaks at spaces, and breaks a longer word by eliding it."""
    assert all(cells(line) <= width for line in Page(width).wrap(text, first="  ", rest="    "))


@given(st.lists(st.lists(st.text(max_size=30).map(plain), min_size=3, max_size=3), max_size=6), st.integers(60, 200))
def test_a_table_whose_other_columns_fit_is_never_wider_than_the_page(rows, width):
    """The column that may shrink is elided and the last one wraps, so that lines fit."""
    short = [[row[0], *(cell[:10] for cell in row[1:-1]), row[-1]] for row in rows]
    assert all(cells(line) <= width for line in Page(width).table(short))


def test_columns_stand_under_each_other():
    """Numbers end together, words begin together."""
    rows = [("model", "9", "a"), ("optimizer", "10", "b")]
    assert Page().table(rows, right=frozenset({1})) == ["  model       9  a", "  optimizer  10  b"]


def test_a_long_last_cell_wraps_in_its_column():
    """The last column keeps its place over several lines."""
    lines = Page(40).table([("name", "one two three four five six seven eight nine ten")])
    assert lines == ["  name  one two three four five six", "        seven eight nine ten"]


def test_a_last_cell_without_room_hangs_below_its_row():
    """Where the last column would be too narrow, its text goes under the second column."""
    lines = Page(50).table([("role", "x" * 20, "y" * 10, "some words that need more room than there is")])
    assert lines[0] == f"  role  {'x' * 20}  {'y' * 10}"
    assert lines[1].startswith("        some words")
