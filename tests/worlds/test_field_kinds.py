"""Kinds of runs that people have on several ranks: each goes on as if nothing had been, or is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import unmoor
from tests.worlds.launch import launch
from tests.worlds.ranks.field_kinds import CASES, EXTRA, TOLD

EQUAL = tuple(name for name in CASES if name not in (*EXTRA, *TOLD))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Where two ranks left a folder and a file, and what each of them found, by the case."""
    place = tmp_path_factory.mktemp("field_kinds")
    return place, launch("tests.worlds.ranks.field_kinds", 2, place, *(name for name in CASES if name != "groups"))


@pytest.mark.parametrize("name", EQUAL)
def test_goes_on_as_if_nothing_had_been(world: tuple[Path, list[dict[str, Any]]], name: str) -> None:
    """Nothing differs, on either rank, from the run that saved: after the restore, and after two more steps of both."""
    assert [found[name] for found in world[1]] == [[], []]


@pytest.mark.parametrize("name", EXTRA)
def test_extra_states_hold_tensors(world: tuple[Path, list[dict[str, Any]]], name: str) -> None:
    """An extra state may be a tensor, or have some in it, and another on each rank: each gets its own."""
    assert [found[name] for found in world[1]] == [[[], []], [[], []]]


def test_parameters_in_use_are_refused(world: tuple[Path, list[dict[str, Any]]]) -> None:
    """In the middle of a pass, and inside of summon_full_params, nothing is saved, and the run goes on unharmed."""
    for found in (found["in use"] for found in world[1]):
        assert "summon_full_params has them whole" in found["summon"]
        for name in ("fsdp1", "fsdp2"):
            assert found[name]
            assert "a forward or backward pass has them whole" in found[name][0]
            assert found[f"{name} trains on"]


def test_redundant_optimizers_and_plain_ones_take_each_other(world: tuple[Path, list[dict[str, Any]]]) -> None:
    """State that lies whole on one rank each is that of consolidate_state_dict; alone or overlapped it is refused."""
    for found in (found["redundant files"] for found in world[1]):
        assert found["plain"] == []
        assert found["steps"] == [[], []]
        assert "this process saves alone" in found["alone"]
        assert "overlap_with_ddp=True" in found["overlap"]


def test_what_would_not_come_back_is_refused(world: tuple[Path, list[dict[str, Any]]]) -> None:
    """Hooks over FSDP1's flat memory at the save; names that are not proved where parts would be handed over."""
    for found in (found["refused hooks"] for found in world[1]):
        assert "keeps its parameters flat" in found["flat"]
        assert "not proved to be the live ones" in found["names"]


def test_groups_of_ranks_have_models_of_their_own(tmp_path: Path) -> None:
    """Each group's under a path of its own; under one path what they have in common, and never a mixture of two."""
    for found in (found["groups"] for found in launch("tests.worlds.ranks.field_kinds", 4, tmp_path, "groups")):
        for name in ("fsdp2", "fsdp1"):
            assert "parts of tensors differ between the ranks" in found[name]
            assert found[f"{name} common"] == []
            assert found[f"{name} own"] == []


@pytest.mark.parametrize("name", ["folder", "file.pt"])
def test_what_ranks_have_for_themselves_is_no_part_of_the_run(
    world: tuple[Path, list[dict[str, Any]]], name: str, tmp_path: Path
) -> None:
    """It is printed as one line, has the roles of the run's parts, and no conversion takes it for a model."""
    catalog = unmoor.describe(world[0] / name)
    assert [part.path for part in catalog.part("model")] == ["model"]
    assert "ranks." not in str(catalog)
    assert "what 1 rank has unlike rank 0" in str(catalog)
    own = {entry.path: entry.role for entry in catalog.tensors if entry.path.startswith("ranks.")}
    assert own["ranks.1.model.n.running_mean"] == "model"
    assert own["ranks.1.ema.n.running_mean"] == "ema"
    unmoor.convert(world[0] / name, tmp_path / "model.safetensors", only="model")
    made = unmoor.load(tmp_path / "model.safetensors")
    assert sorted(made) == sorted(unmoor.load(world[0] / name)["model"])
