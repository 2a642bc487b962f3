"""Patterns over names: a star stands for any text, everything else for itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmoor.errors import UsageError
from unmoor.plan.names import apply_rename
from unmoor.plan.patterns import captures, fill, nearest

TEXTS = st.text(alphabet="ab.[]?", max_size=6)


@given(TEXTS)
def test_a_pattern_without_a_star_is_the_name_itself(name: str) -> None:
    """Brackets, question marks and dots are letters of a name like any other."""
    assert captures(name, name) == ()
    assert captures(name, name + "x") is None


@given(st.lists(TEXTS, min_size=2, max_size=4))
def test_what_the_stars_stood_for_fills_them_again(texts: list[str]) -> None:
    """A pattern filled with what it captured is the name."""
    pattern, name = "*".join(texts), "x.y".join(texts)
    found = captures(pattern, name)
    assert found is not None
    assert fill(pattern, found, pattern) == name


@pytest.mark.parametrize(
    ("rename", "expected"),
    [
        ({"*.attn.*": "*.attention.*"}, "h.0.attention.w"),
        ({"h.*": "layers.*"}, "layers.0.attn.w"),
        ({"*.attn.*": "*.*"}, "h.0.w"),
        ({"h.*.attn.*": "block_*.*"}, "block_0.w"),
        ({"other.*": "x"}, "h.0.attn.w"),
        ({"h.0.attn.w": "w"}, "w"),
    ],
    ids=repr,
)
def test_a_renaming_by_patterns(rename: dict[str, str], expected: str) -> None:
    """The stars on the right stand for what those on the left stood for, in order."""
    assert apply_rename(["h.0.attn.w"], rename) == {expected: "h.0.attn.w"}


def test_more_stars_to_the_right_than_to_the_left_are_refused() -> None:
    """A star that stands for nothing is an error that shows both sides."""
    with pytest.raises(UsageError, match=r"'a\.\*' into '\*\.b\.\*'"):
        apply_rename(["a.w"], {"a.*": "*.b.*"})


def test_the_nearest_names_are_those_that_look_alike() -> None:
    """A slip in a name brings up the name that was meant; a pattern unlike all others the first names."""
    names = ["encoder.0.weight", "encoder.0.bias", "head.weight"]
    assert nearest("haed.weight", names)[0] == "head.weight"
    assert nearest("zzz", names) == names
