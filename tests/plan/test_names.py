"""Names: a prefix is a fact to be proved, a bijection onto the live names and the only one, not a string to strip."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmoor.errors import MismatchError
from unmoor.plan.names import (
    WRAPPER_SEGMENTS,
    all_without_wrappers,
    apply_rename,
    match_names,
    without_wrappers,
    wrappers_in,
)

SEGMENTS = ("module", "_orig_mod", "net", "0", "1", "w", "weight")
SHAPES = st.sampled_from([(), (2,), (2, 3), (3, 2)])
NAMES = st.lists(st.sampled_from(SEGMENTS), min_size=1, max_size=4).map(".".join)
MODELS = st.dictionaries(NAMES, SHAPES, min_size=1, max_size=6)


@given(MODELS, MODELS)
def test_a_proved_reading_is_a_bijection(saved: dict[str, tuple[int, ...]], live: dict[str, tuple[int, ...]]) -> None:
    """Law 8: a proved prefix is a bijection onto the live names; every reading pairs each saved name at most once."""
    match = match_names(saved, live)
    pairs = match.reading.pairs
    assert set(pairs) <= set(live)
    assert set(pairs.values()) <= set(saved)
    assert len(set(pairs.values())) == len(pairs)
    if match.complete:
        assert set(pairs) == set(live)
        assert {name: saved[other] for name, other in pairs.items()} == live
        assert set(pairs.values()) | set(match.reading.outside) == set(saved)


@given(MODELS)
def test_equal_names_are_taken_as_they_are(model: dict[str, tuple[int, ...]]) -> None:
    """Law 8: a submodule that a user calls `module` survives: names that fit as they stand are never taken apart."""
    match = match_names(model, model)
    assert match.complete
    assert match.reading.how == "as saved"
    assert match.reading.pairs == {name: name for name in model}


@given(MODELS, st.lists(st.sampled_from(SEGMENTS), min_size=1, max_size=3).map(".".join))
def test_a_prefix_of_all_names_is_found_whatever_the_names_are(model: dict[str, tuple[int, ...]], prefix: str) -> None:
    """Law 8: one prefix before all names is proved, even where it repeats a segment that the model has itself."""
    match = match_names({f"{prefix}.{name}": shape for name, shape in model.items()}, model)
    assert match.complete
    assert match.reading.pairs == {name: f"{prefix}.{name}" for name in model}


@given(MODELS)
def test_two_readings_that_differ_are_refused(model: dict[str, tuple[int, ...]]) -> None:
    """Law 8: where two prefixes fit equally well neither is taken, and both are told."""
    both = {f"{prefix}.{name}": shape for prefix in ("ema", "student") for name, shape in model.items()}
    match = match_names(both, model)
    assert not match.complete
    assert {reading.how for reading in match.rivals} == {"without 'ema.'", "without 'student.'"}
    assert match.rivals[0].pairs != match.rivals[1].pairs
    assert {reading.remedy for reading in match.rivals} == {"rename={'ema.': ''}", "rename={'student.': ''}"}


@given(MODELS, MODELS)
def test_pairs_name_the_tensors_as_the_file_does(
    saved: dict[str, tuple[int, ...]], live: dict[str, tuple[int, ...]]
) -> None:
    """After a renaming every name that comes out is one of the file's own."""
    match = match_names(saved, live, lambda name: f"x.{name}")
    renamed = match_names({f"x.{name}": shape for name, shape in saved.items()}, live)
    assert {name: f"x.{other}" for name, other in match.reading.pairs.items()} == dict(renamed.reading.pairs)
    assert set(match.unexpected) <= set(saved)


@given(NAMES)
def test_no_wrapper_segment_is_left(name: str) -> None:
    """Names without wrappers hold none of their segments, and no other segment is lost."""
    assert without_wrappers(name).split(".") == [s for s in name.split(".") if s not in WRAPPER_SEGMENTS] or [""]


ODD_NAMES = NAMES | st.text(".\nmodule_rig", max_size=12) | st.sampled_from(["", ".", "module", "module.module"])


@given(st.lists(ODD_NAMES, max_size=6))
def test_names_taken_as_one_text_lose_the_same_segments(names: list[str]) -> None:
    """Many names are freed of wrappers at once; line breaks and empty names in them make no difference."""
    assert all_without_wrappers(names, wrappers_in(names)) == [without_wrappers(name) for name in names]


@pytest.mark.parametrize(
    "saved",
    [
        ["module.module.weight", "module.head.weight"],
        ["model.module.weight", "model.head.weight", "criterion.weight"],
        ["module._orig_mod.module.weight", "module._orig_mod.head.weight"],
    ],
    ids=" ".join,
)
def test_a_submodule_called_module_survives_under_wrappers(saved: list[str]) -> None:
    """Law 8: `module.weight` of the live model gets `module.module.weight`, not a name with both taken off."""
    match = match_names(dict.fromkeys(saved, (2,)), {"module.weight": (2,), "head.weight": (2,)})
    assert match.complete
    assert match.reading.pairs == {"module.weight": saved[0], "head.weight": saved[1]}


def test_wrappers_inside_names_are_seen() -> None:
    """Segments that compiled and checkpointed submodules put in are left out wherever they stand."""
    saved = {"a._orig_mod.w": (2,), "b._checkpoint_wrapped_module.w": (3,), "c.w": (4,)}
    match = match_names(saved, {"a.w": (2,), "b.w": (3,), "c.w": (4,)})
    assert match.complete
    assert match.reading.how == "without '_checkpoint_wrapped_module.', '_orig_mod.'"


def test_a_saved_part_of_the_live_model_is_taken_with_a_prefix_added() -> None:
    """A file of the inner model fills a live one that holds it under a name."""
    match = match_names({"w": (2,), "b": (3,)}, {"net.w": (2,), "net.b": (3,)})
    assert match.complete
    assert match.reading.pairs == {"net.w": "w", "net.b": "b"}


def test_shapes_decide_between_two_prefixes() -> None:
    """Of two prefixes with all names the one with all shapes is proved."""
    match = match_names({"a.w": (2,), "b.w": (3,)}, {"w": (3,)})
    assert match.complete
    assert match.reading.pairs == {"w": "b.w"}


def test_the_only_prefix_with_all_names_holds_and_tells_the_shapes_that_differ() -> None:
    """A head of another size under a prefix is a mismatch of that head, not of the whole file."""
    match = match_names({"module.a": (2,), "module.head": (10,)}, {"a": (2,), "head": (3,)})
    assert match.reading.pairs == {"a": "module.a", "head": "module.head"}
    assert match.mismatched == ("head",)
    assert not match.missing


def test_names_that_fit_in_part_are_near_and_not_taken() -> None:
    """A prefix that fits a part of the live names is told with its remedy; nothing is paired by it."""
    match = match_names({"module.a": (2,), "module.b": (3,)}, {"a": (2,), "b": (3,), "new": (4,)})
    assert not match.reading.pairs
    assert [(near.how, near.remedy) for near in match.near] == [("without 'module.'", "rename={'module.': ''}")]
    assert len(match.near[0].pairs) == 2


def test_names_left_over_under_a_prefix_are_not_outside_it() -> None:
    """A saved name below the prefix that the live model lacks keeps the prefix from being proved."""
    match = match_names({"module.a": (2,), "module.old": (3,)}, {"a": (2,)})
    assert not match.complete
    assert [near.remedy for near in match.near] == ["rename={'module.': ''}"]


@pytest.mark.parametrize(
    ("rename", "name", "expected"),
    [
        ({"net.": ""}, "net.0.weight", "0.weight"),
        ({"net.": "model."}, "net.0.weight", "model.0.weight"),
        ({"*.gamma": "*.weight"}, "norm.1.gamma", "norm.1.weight"),
        ({"h.*.attn": "x"}, "h.0.mlp", "h.0.mlp"),
        (str.upper, "a.b", "A.B"),
        (None, "a.b", "a.b"),
    ],
    ids=str,
)
def test_renaming_by_prefix_pattern_or_callable(rename: object, name: str, expected: str) -> None:
    """A mapping replaces leading text, with a star whole patterns; a callable gives the name itself."""
    assert apply_rename([name], rename) == {expected: name}  # type: ignore[arg-type]


def test_a_renaming_that_joins_two_names_is_refused() -> None:
    """Two saved names that would become one are told, and nothing is chosen."""
    with pytest.raises(MismatchError, match="the same name 'w'"):
        apply_rename(["a.w", "b.w"], {"a.": "", "b.": ""})
