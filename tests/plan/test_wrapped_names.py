"""Names with wrappers in them, told by the tree that they span; renamings that pick one reading; forms of tensors."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmoor.plan.names import WRAPPER_SEGMENTS, apply_rename, match_names, without_wrappers
from unmoor.plan.remedies import rename_for
from unmoor.plan.ways import different_ways
from unmoor.plan.wrapped_names import wrapped_pairs
from unmoor.values.parametrizations import PARAMETRIZATIONS, found_in

PARTS = st.sampled_from(("module", "_orig_mod", "a", "b", "0", "w"))
TREES = st.lists(st.lists(PARTS, min_size=1, max_size=4).map(tuple), min_size=1, max_size=6, unique=True)
CHOICES = st.lists(st.lists(st.sampled_from(sorted(WRAPPER_SEGMENTS)), max_size=2), min_size=12, max_size=12)


def _prefix_free(paths: list[tuple[str, ...]]) -> bool:
    """Whether no name is the beginning of another, as in a model: a tensor is no module."""
    return not any(one != other and other[: len(one)] == one for one in paths for other in paths)


def _wrap(paths: list[tuple[str, ...]], choices: list[list[str]]) -> dict[str, str]:
    """Live name -> the same with wrappers put around modules, each module always the same ones."""
    modules = sorted({path[:i] for path in paths for i in range(len(max(paths, key=len)))})
    around = {module: choices[i % len(choices)] for i, module in enumerate(modules)}
    made = {}
    for path in paths:
        parts = [part for i, own in enumerate(path) for part in (*around[path[:i]], own)]
        made[".".join(path)] = ".".join(parts)
    return made


@given(TREES.filter(_prefix_free), CHOICES)
def test_wrappers_around_any_modules_are_found(paths: list[tuple[str, ...]], choices: list[list[str]]) -> None:
    """Law 8: whatever modules are wrapped, and whatever they are called, each live name gets its own saved name."""
    wrapped = _wrap(paths, choices)
    found = [pairs for _, pairs in wrapped_pairs(wrapped.values(), wrapped, WRAPPER_SEGMENTS)]
    assert wrapped in found or len(paths) == 1
    match = match_names(dict.fromkeys(wrapped.values(), (2,)), dict.fromkeys(wrapped, (2,)))
    if match.complete:
        assert set(match.reading.pairs) == set(wrapped)


@given(TREES, TREES)
def test_pairs_are_one_to_one_and_lose_nothing_but_segments_and_a_prefix(
    saved: list[tuple[str, ...]], live: list[tuple[str, ...]]
) -> None:
    """Law 8: a reading is a bijection onto the live names; what it leaves out are wrappers' segments or the prefix."""
    theirs, ours = [".".join(path) for path in saved], [".".join(path) for path in live]
    for prefix, pairs in wrapped_pairs(theirs, ours, WRAPPER_SEGMENTS):
        assert set(pairs) == set(ours)
        assert len(set(pairs.values())) == len(pairs)
        for own, name in pairs.items():
            assert name.startswith(prefix)
            assert without_wrappers(name[len(prefix) :]) == without_wrappers(own)


@given(TREES.filter(_prefix_free), CHOICES, st.sampled_from(("", "net.", "a.b.")))
def test_the_renaming_that_is_offered_gives_exactly_the_reading(
    paths: list[tuple[str, ...]], choices: list[list[str]], before: str
) -> None:
    """Law 14: the remedy works: what it renames are the live names, and a reader sees when it is not told in full."""
    pairs = {own: before + name for own, name in _wrap(paths, choices).items()}
    offer = rename_for(pairs)
    if not offer:
        assert all(own == name for own, name in pairs.items())
    elif "..." not in offer:
        rename = ast.literal_eval(offer.removeprefix("rename="))
        assert apply_rename(list(pairs.values()), rename) == pairs


def test_a_submodule_with_neighbours_is_no_wrapper() -> None:
    """A node of the tree that has a tensor of its own, or several children, stays."""
    saved = ["module.n_averaged", "module.module.w", "a.module.w", "a.b"]
    assert not list(wrapped_pairs(saved, ["n_averaged", "w", "a.w", "a.b"], WRAPPER_SEGMENTS))


@pytest.mark.parametrize("stem", ["weight", "0.weight", "module.encoder.weight_hh_l0", "parametrizations.weight"])
@pytest.mark.parametrize("row", PARAMETRIZATIONS.values(), ids=lambda row: row.name)
def test_every_row_is_found_by_its_own_names(row: object, stem: str) -> None:
    """The table of parametrizations: what a row spells is told as that row, under any module."""
    names = [*row.spelled(stem), "other.weight", "other.bias"]  # type: ignore[attr-defined]
    assert found_in(names)[stem] == row.name  # type: ignore[attr-defined]


@pytest.mark.parametrize("row", PARAMETRIZATIONS.values(), ids=lambda row: row.name)
@pytest.mark.parametrize("before", ["", "module."], ids=repr)
def test_every_row_in_the_place_of_a_plain_tensor_is_a_fault_of_its_own(row: object, before: str) -> None:
    """Law 14: each row says how the file keeps the tensor and the call for it, in the words of that tensor."""
    saved = [before + name for name in (*row.spelled("a.weight"), "a.bias")]  # type: ignore[attr-defined]
    (fault,) = different_ways("model", saved, ["a.weight", "a.bias"], {})
    assert f"a.weight    in the file kept by {row.name}, in the live model plain" in fault.message  # type: ignore[attr-defined]
    assert '"weight"' in fault.remedy
    (other,) = different_ways(
        "model", [before + "a.weight", before + "a.bias"], saved_names(row), {"a.weight": row.name}
    )  # type: ignore[attr-defined]
    assert "restore into the plain model, then call" in other.remedy


def saved_names(row: object) -> list[str]:
    return [*row.spelled("a.weight"), "a.bias"]  # type: ignore[attr-defined]


def test_what_no_table_knows_is_no_difference_of_form() -> None:
    """Names that differ in any other way are left to the faults that list them."""
    assert different_ways("model", ["a.w", "b.w"], ["a.w", "c.w"], {}) == []
    assert different_ways("model", ["a.weight_g", "a.weight_v"], ["b.weight"], {}) == []
