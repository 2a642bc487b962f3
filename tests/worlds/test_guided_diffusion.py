"""The failure of guided-diffusion on several ranks, with its own files: made once, and impossible through unmoor."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.worlds.launch import launch
from tests.worlds.ranks.guided_diffusion import EMA, FILES, MODEL, OPTIMIZER


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    """What each of two ranks met."""
    return launch("tests.worlds.ranks.guided_diffusion", 2)


def test_a_loader_that_broadcasts_hands_rank_1_the_model_as_its_optimizer(ranks):
    """The contrast: rank 0 loads the model alone, and rank 1's first receive is that."""
    assert [rank["broadcast"] for rank in ranks] == [
        "loaded",
        "KeyError: 'param_groups'; the next call got param_groups, state",
    ]


def test_the_same_script_through_unmoor_stops_both_ranks_and_says_who_called_what(ranks):
    """Nothing can be mixed up, nothing is changed, and the guard that causes it is named."""
    for rank in ranks:
        kind, text, unchanged = rank["guarded"]
        assert kind == "RanksDiffer"
        assert f"path     rank 0: {MODEL}; rank 1: {OPTIMIZER}" in text
        assert "objects  rank 0: model (module); rank 1: optimizer (optimizer)" in text
        assert "inside `if rank == 0`" in text
        assert "nothing was changed" in text
        assert unchanged


def test_a_call_that_only_rank_0_makes_is_given_up_in_time(ranks):
    """It names the rank that did not come, and the guard."""
    (kind, text), other = (rank["guarded, given up"] for rank in ranks)
    assert kind == "RankError"
    assert "restore was called on rank 0 only: rank 1 of 2 did not come within 1 s" in text
    assert "take it out of `if rank == 0`" in text
    assert other == ("", "")


@pytest.mark.parametrize("way", ["folder", "files"])
def test_the_triple_is_restored_on_every_rank(ranks, way):
    """Model with its buffers, optimizer and average are the file's on both ranks, whatever each had before."""
    model, optimizer, ema = (torch.load(path, weights_only=True) for path in (MODEL, OPTIMIZER, EMA))
    for rank in ranks:
        found = rank[way]
        for name, saved in (("model", model), ("ema", ema)):
            assert found[name].keys() == saved.keys()
            assert all(torch.equal(found[name][key], value) for key, value in saved.items())
        assert {"bn.running_mean", "bn.running_var", "bn.num_batches_tracked"} <= found["model"].keys()
        assert found["lr"] == optimizer["param_groups"][0]["lr"]
        for index, entry in optimizer["state"].items():
            assert found["state"][index].keys() == entry.keys()
            assert all(torch.equal(found["state"][index][key], value) for key, value in entry.items())


def test_ranks_that_were_restored_train_alike(ranks):
    """Two steps from the folder end at the same bits on both ranks; the step is known."""
    one, other = (rank["folder"] for rank in ranks)
    assert one["step"] == other["step"] == 4
    assert all(torch.equal(value, other["after"][name]) for name, value in one["after"].items())


@pytest.mark.parametrize(
    ("case", "found"),
    [
        ("wrong file", "the shapes of all 6 parameters of the live optimizer are in it"),
        ("wrong file, with the model", "all 9 of its names are in the live model"),
    ],
)
def test_a_model_in_place_of_an_optimizer_is_named_on_every_rank(ranks, case, found):
    """What it is, how it compares with the live run, where the optimizer probably is, and the known cause."""
    for rank in ranks:
        kind, text = rank[case]
        assert kind == "KindError"
        assert f"optimizer= was given {MODEL}, which holds a model state dict (9 tensors such as enc.weight" in text
        assert found in text
        assert "Its optimizer is probably opt000004.pt." in text
        assert "KeyError: 'param_groups'" in text
        assert "a loader that broadcasts, called inside `if rank == 0`" in text
        assert "on every rank: ranks 0 and 1" in text
        assert "Nothing was changed." in text


def test_the_files_are_those_of_the_program():
    """A model, an optimizer and an average as plain state dicts, small enough to keep."""
    assert sum(file.stat().st_size for file in FILES.glob("*.pt")) < 20_000
