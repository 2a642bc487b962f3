"""What the speed suite compares does the job: every way restores the very run that was saved."""

from __future__ import annotations

import pytest
import torch
from benchmarks.peers_packages import Unavailable, fetched
from benchmarks.speed_child import BEHIND, RESTORES, SAVES
from benchmarks.speed_runs import TENSORS_OF_ONE, Shape, equal, filled, fresh
from benchmarks.speed_tables import child

from benchmarks import speed_others, speed_ways
from tests.dialects import environment

ASKED = {"nbytes": 1 << 16, "tensors": 12, "tiny": False, "cold": False, "fsync": False}
COPIES = [way for way, behind in BEHIND.items() if behind.read]


def _needed(way):
    """Build what a way of another environment needs, or skip."""
    if way.startswith("moonclip"):
        try:
            fetched("moonclip")
        except Unavailable as reason:
            pytest.skip(str(reason))
    elif way in speed_others.RESTORES or way in speed_others.BEHIND:
        environment.python()


@pytest.mark.slow
@pytest.mark.parametrize("way", RESTORES)
def test_every_way_restores_the_run_that_was_saved(way, tmp_path):
    """Parameters and optimizer state are equal bit for bit after a save and a restore into a fresh run."""
    _needed(way)
    found = child({**ASKED, "what": "proved", "way": way, "folder": str(tmp_path)}, 120)
    assert found.get("equal"), found


@pytest.mark.slow
@pytest.mark.parametrize("way", COPIES)
def test_a_save_in_the_background_holds_one_step(way, tmp_path):
    """All tensors change as soon as the call has returned; what was written is the run before."""
    _needed(way)
    found = child({**ASKED, "what": "proved behind", "way": way, "folder": str(tmp_path)}, 120)
    assert found.get("equal"), found
    assert found["changed"]


def test_what_is_read_is_written_by_a_way_of_the_tables():
    """Each way of restoring names a way of saving, each save in the background a way of restoring."""
    assert {restore.file for restore in RESTORES.values()} <= set(SAVES)
    assert {behind.read for behind in BEHIND.values()} <= {*RESTORES, ""}


def test_ways_of_ours_need_no_other_environment():
    """The quick run has unmoor, torch, safetensors and DCP, with the floors last."""
    for table in (speed_ways.SAVES, speed_ways.RESTORES, speed_ways.BEHIND):
        assert next(iter(table)).startswith("unmoor")
        assert list(table)[-1].startswith("floor")


@pytest.mark.parametrize(
    ("shape", "params", "nbytes"),
    [
        (Shape(12_000, 40), 10, 12_000),
        (Shape(120_000_000, -1), 10, 10 * 12 * 1024**2),
        (Shape(1), 6, None),
    ],
)
def test_a_run_has_the_size_that_was_asked_for(shape, params, nbytes):
    """Parameters, and bytes of parameters and moments."""
    found = list(shape.blank().parameters())
    assert len(found) == params
    assert nbytes is None or 3 * sum(p.numel() * p.itemsize for p in found) == nbytes


def test_a_run_is_filled_with_noise_everywhere():
    """A filled run has state for every parameter, no tensor is like another one, and seeds differ."""
    shape = Shape(1 << 16, 12)
    run, other = filled(shape), filled(shape, seed=1)
    tensors = [p.detach() for p in run[0].parameters()]
    for parameter in run[0].parameters():
        state = run[1].state[parameter]
        assert len(state) + 1 == TENSORS_OF_ONE
        tensors += [state["exp_avg"], state["exp_avg_sq"]]
    assert all(tensor.std() > 0.1 for tensor in tensors)
    assert len({tensor.abs().sum().item() for tensor in tensors}) == len(tensors)
    assert equal(run, filled(shape))
    assert not equal(run, other)


def test_equal_sees_one_bit_of_optimizer_state():
    """A single changed element of a moment is seen."""
    one, other = filled(Shape(1 << 12, 8)), filled(Shape(1 << 12, 8))
    parameter = list(other[0].parameters())[-1]
    other[1].state[parameter]["exp_avg"].view(torch.int32)[-1] += 1
    assert not equal(one, other)


def test_a_fresh_run_has_no_state():
    """What a restore fills has parameters of zeros and an optimizer that never stepped."""
    model, optimizer = fresh(Shape(1 << 12, 8))
    assert not optimizer.state
    assert all(not p.any() and p.device.type == "cpu" for p in model.parameters())
