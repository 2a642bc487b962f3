"""Runs that carry all of their state are proved equal, wherever they are cut."""

from __future__ import annotations

import pytest

from .in_process import proved

WHOLE = {
    "everything": ("build", {}),
    "a scaler": ("scaled", {}),
    "a counter in a dict": ("counting_saved", {}),
    "gradients in the middle of an accumulation": ("accumulating_saved", {}),
    "a step that draws its own batches": ("drawing", {"steps": 7, "cut": 3}),
    "one batch, a model with a loss of its own": ("one_batch", {}),
    "loaders by name": ("two_loaders", {}),
    "the usual step with a closure": ("closing", {}),
    "the usual step with a scheduler of the loss": ("on_plateau", {}),
    "a loader without a length": ("unsized", {}),
    "containers that fill up": ("growing", {}),
    "an optimizer within an optimizer": ("two_steps_saved", {}),
    "by hand": ("build", {"save": "save_all", "resume": "resume_all"}),
    "the sampler's generator, between epochs": ("with_sampler_generator", {"steps": 12, "cut": 8}),
    "after the first step": ("build", {"steps": 4, "cut": 1}),
    "at the end of an epoch": ("build", {"steps": 10, "cut": 8}),
    "before the last step": ("build", {"steps": 9, "cut": 8}),
    "in the next epoch": ("build", {"steps": 12, "cut": 9}),
}


@pytest.mark.parametrize("what", WHOLE)
def test_a_whole_checkpoint_is_proved_equal(what):
    """Every component is equal right after the restore and after every step."""
    build, how = WHOLE[what]
    proof = proved(build, **how)
    assert (proof.ok, proof.verdict, proof.difference, proof.cause) == (True, "equal", None, ""), str(proof)
    assert {row.verdict for row in proof.table} == {"equal"}
    assert all(row.equal == row.steps == proof.steps - proof.cut for row in proof.table)
    assert proof.resumed == proof.losses[proof.cut :]
    assert str(proof).startswith("resumed run equals the uninterrupted run")


def test_the_table_names_every_component():
    """Nothing that a run consists of is left out of the comparison."""
    proof = proved("build")
    assert [row.component for row in proof.table] == [
        "data order",
        "loss",
        "gradients",
        "parameters",
        "buffers",
        "optimizer",
        "options",
        "scheduler",
        "loss function",
        "metrics",
        "ema",
        "rng torch",
        "rng numpy",
        "rng python",
        *[row.component for row in proof.table if row.component == "rng sim"],
        "rng noise",
    ]


def test_the_folder_keeps_checkpoint_and_recordings(tmp_path):
    """With folder= everything stays: the checkpoint that the run was resumed from is there to be looked at."""
    import unmoor
    from unmoor.wiring.proving_run import Wanted, prove_run

    from .in_process import _launch

    place = tmp_path / "proof"
    prove_run(Wanted("tests.prove.runs:plain", 4, 2), folder=place, picture=None, launch=_launch)
    assert sorted(p.name for p in place.iterdir()) == ["checkpoint.pt", "first", "resumed", "whole"]
    assert unmoor.describe(place / "checkpoint.pt").roles().keys() >= {"model", "optimizer"}
