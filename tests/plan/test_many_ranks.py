"""One rank among many plans for itself: what it reads are its own rows, and the work does not grow with the ranks."""

from __future__ import annotations

import pytest
from benchmarks.simulated import simulated_run

from unmoor.execute.takers import bytes_of
from unmoor.plan.policy import Policy
from unmoor.plan.restore import plan_restore

from .test_linear import opcodes

TENSORS = 400


@pytest.mark.parametrize("ranks", [1, 8, 64, 1024])
@pytest.mark.parametrize("which", ["first", "last"])
def test_a_rank_reads_its_own_rows(ranks, which):
    """The bytes that a plan reads are those of the rank's own boxes, and of what no rank shares."""
    catalog, target = simulated_run(TENSORS, 0 if which == "first" else ranks - 1, ranks)
    copies = plan_restore(catalog, target, Policy()).copies()
    whole = sum(entry.nbytes for entry in catalog.tensors)
    alone = sum(entry.nbytes for entry in catalog.tensors if not entry.shape)
    assert bytes_of(copies) == alone + (whole - alone) // ranks


def test_planning_does_not_grow_with_the_ranks():
    """The interpreter takes as many steps for one rank of 1,024 as for one of 8."""
    steps = {}
    for ranks in (8, 1024):
        catalog, target = simulated_run(TENSORS, ranks // 2, ranks)
        steps[ranks] = opcodes(lambda made=(catalog, target): bytes_of(plan_restore(*made, Policy()).copies()))
    assert abs(steps[1024] - steps[8]) < 0.02 * steps[8]
