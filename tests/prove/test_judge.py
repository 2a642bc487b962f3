"""The judgement itself, on recordings made of literals: worlds, tolerances, what counts and what does not."""

from __future__ import annotations

import math

import pytest

from unmoor.diagnose.resumed import judge
from unmoor.diagnose.resumed_causes import Holdings
from unmoor.values.recording import Failure, Recording

from .recordings import mark, moment, recording, runs, state


def simple(change=None, *, at=3, **how):
    """A run of four steps; `change` gives another moment in the place of that after step `at` of the resumed run."""
    whole = [recording([moment(step, 1 / step, [step]) for step in (1, 2, 3, 4)])]
    first = [recording([moment(step, 1 / step, [step]) for step in (1, 2)])]
    later = [moment(step, 1 / step, [step]) if step != at or change is None else change for step in (3, 4)]
    restored = how.pop("restored", state())
    return judge(runs(whole, first, [recording(later, restored=restored)], **how))


def test_equal_recordings_are_equal():
    """Nothing differs, nothing is said to."""
    proof = simple()
    assert (proof.ok, proof.verdict, proof.difference, proof.largest) == (True, "equal", None, 0.0)


@pytest.mark.parametrize(
    ("change", "component", "both"),
    [
        (moment(3, 1 / 3, [7]), "data order", ("samples 7", "3")),
        (moment(3, 0.5, [3]), "loss", ("0.5", "0.333333")),
        (moment(3, 1 / 3, [3], state(2.0)), "parameters", ("2", "1")),
        (moment(3, 1 / 3, [3], {}), "parameters", ("not there", "1")),
        (moment(3, 1 / 3, [3], state(scaler={"scale": 8.0})), "scaler", ("8", "not there")),
    ],
)
def test_the_first_component_that_differs_is_told(change, component, both):
    """Data first, then the loss, then what the step left: the order in which a step makes them."""
    found = simple(change).difference
    assert (found.step, found.component, (found.resumed, found.uninterrupted)) == (3, component, both)


def test_losses_that_agree_in_six_digits_are_told_with_more():
    """Both sides are shown with as many digits as tell them apart."""
    found = simple(moment(3, 1 / 3 + 1e-12, [3])).difference
    assert found.resumed != found.uninterrupted


def test_nan_equals_nan():
    """A run that has gone to NaN resumes to NaN."""
    nan = [recording([moment(step, math.nan) for step in (1, 2, 3, 4)])]
    resumed = [recording([moment(3, math.nan), moment(4, math.nan)], restored=state())]
    proof = judge(runs(nan, nan, resumed))
    assert proof.verdict == "equal"
    assert proof.to_json()["losses"] == ["nan"] * 4


def test_what_is_not_restored_comes_before_what_follows_from_it():
    """The restore is named, and the step from which on it shows."""
    proof = simple(
        moment(4, 0.9, [4]), at=4, restored=state(2.0), holdings=Holdings(frozenset(), frozenset(), frozenset())
    )
    assert (proof.difference.step, proof.difference.component) == (2, "parameters")
    assert proof.cause == "the model is not in the checkpoint"
    assert dict(proof.notes)["effect"] == "the loss differs from step 4 on: 0.9; the uninterrupted run had 0.25"


def test_clues_alone_are_no_difference():
    """A variable that changed nothing is not held against the run."""
    whole = [recording([moment(s, 0.5, (), state(clue_value={"count": float(s)})) for s in (1, 2, 3, 4)])]
    resumed = [recording([moment(3), moment(4)], restored=state(clue_value={"count": 0.0}))]
    assert judge(runs(whole, whole, resumed)).verdict == "equal"


def test_buffers_outside_of_the_state_dict_count_once_a_step_was_taken():
    """A cache that the first forward pass fills is not there right after the restore, and that is no fault."""
    late = {"cache (not persistent)": 3.0}
    whole = [recording([moment(s, 0.5, (), state(buffers=late)) for s in (1, 2, 3, 4)])]
    good = [moment(3, 0.5, (), state(buffers=late)), moment(4, 0.5, (), state(buffers=late))]
    assert judge(runs(whole, whole, [recording(good, restored=state())])).ok
    bad = [moment(3, 0.5, (), state(buffers={"cache (not persistent)": 4.0})), good[1]]
    assert judge(runs(whole, whole, [recording(bad, restored=state())])).difference.step == 3


def ranks(number, samples, loss=0.5, **how):
    """Recordings of several ranks; `samples` are those of a step, dealt out to them."""
    return [
        recording([moment(s, loss, samples[s][r::number], how.get("made")) for s in sorted(samples)], rank=r)
        for r in range(number)
    ]


SAMPLES = {1: [0, 1, 2, 3], 2: [4, 5, 6, 7], 3: [8, 9, 10, 11], 4: [12, 13, 14, 15]}


def world(resumed, number=1, **how):
    """Saved by two ranks, resumed by `number`."""
    whole = ranks(2, SAMPLES)
    first = ranks(2, {s: SAMPLES[s] for s in (1, 2)})
    made = ranks(number, resumed)
    made = [recording(r.moments, rank=r.rank, restored=state(), **how) for r in made]
    return judge(runs(whole, first, made, exact=False, tolerance=1e-3))


def test_over_other_ranks_each_sample_counts_once():
    """Whichever rank a sample is on; the order within a step does not matter either."""
    assert world({3: [11, 9, 10, 8], 4: SAMPLES[4]}).ok
    assert world({3: SAMPLES[3], 4: SAMPLES[4]}, number=3).ok


def test_a_sample_that_comes_twice_is_found():
    """The same number of samples, and one of them again."""
    assert world({3: [8, 9, 10, 10], 4: SAMPLES[4]}).difference.component == "data order"


def test_a_batch_of_another_size_is_told_in_numbers():
    """A build function that does not share the batch out is the usual reason."""
    found = world({3: [8, 9], 4: [10, 11]}).difference
    assert (found.resumed, found.uninterrupted) == ("2 samples over 1 ranks", "4 samples over 2")


def test_batch_norm_over_other_ranks_is_known():
    """Its statistics are those of each rank's batch."""
    whole = [recording(r.moments, rank=r.rank, facts=frozenset({"batchnorm"})) for r in ranks(2, SAMPLES)]
    resumed = [recording([moment(s, 0.9, SAMPLES[s]) for s in (3, 4)], restored=state())]
    proof = judge(runs(whole, whole, resumed, exact=False))
    assert "BatchNorm takes the statistics of each rank's own batch" in proof.cause


@pytest.mark.parametrize(
    ("loss", "weight", "verdict"), [(0.5, 1.0, "equal"), (0.50001, 1.00001, "within"), (0.6, 1.0, "different")]
)
def test_another_arithmetic_is_held_within_a_tolerance(loss, weight, verdict):
    """Bits first; then the loss and the norms of tensors; what is too far apart differs."""
    whole = [recording([moment(s, 0.5, (), state(1.0, sketch=True)) for s in (1, 2, 3, 4)])]
    later = [moment(s, loss, (), state(weight, sketch=True)) for s in (3, 4)]
    resumed = [recording(later, device="cuda:0", restored=state(1.0, sketch=True))]
    proof = judge(runs(whole, whole, resumed, exact=False, tolerance=1e-3))
    assert proof.verdict == verdict
    assert proof.ok == (verdict != "different")


def test_the_restore_is_exact_whatever_the_tolerance():
    """A state that is only nearly right after the restore is a fault on any device."""
    whole = [recording([moment(s, 0.5, (), state(1.0, sketch=True)) for s in (1, 2, 3, 4)])]
    later = [moment(s, 0.5, (), state(1.0, sketch=True)) for s in (3, 4)]
    resumed = [recording(later, restored=state(1.0000001, sketch=True))]
    assert judge(runs(whole, whole, resumed, exact=False, tolerance=0.1)).difference.step == 2


def test_streams_of_devices_that_one_side_lacks_are_left_out():
    """A process that never had the device has no stream of it to restore."""
    whole = [recording([moment(s, 0.5, (), state(rng_torch={"torch": 1.0})) for s in (1, 2, 3, 4)])]
    mine = state(rng_torch={"torch": 1.0}, rng_cuda={"cuda:0": 5.0})
    resumed = [recording([moment(3, 0.5, (), mine), moment(4, 0.5, (), mine)], restored=mine)]
    assert judge(runs(whole, whole, resumed)).verdict == "equal"


def test_a_failed_resume_is_judged_without_a_table():
    """The error is the cause; its remedy is what to do."""
    failure = Failure("resume", "MismatchError", "1 fault", ("model  x",), "pass rename={...}", fault="fit")
    proof = judge(runs([recording([])], [recording([])], [recording([], failure=failure)]))
    assert (proof.ok, proof.table, proof.fix) == (False, (), "pass rename={...}")


def test_recordings_survive_the_way_between_processes():
    """What is written as JSON reads back as it was, losses to the last bit."""
    made = recording(
        [moment(1, 0.1 + 0.2, [1, 2], state(3.0, sketch=True)), moment(2, math.inf), moment(3, None)],
        restored=state(),
        saved={},
        unsaved={"loader": "why"},
        facts=frozenset({"dropout"}),
        failure=Failure("build", "KeyError", "x", ("a",)),
    )
    assert Recording.of(made.to_json()) == made
    assert mark(2.0) == mark(2.0)
