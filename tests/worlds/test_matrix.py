"""Every layout saved, every layout restored: real processes, held against torch's own gathering and filling."""

from __future__ import annotations

import pytest

from .layouts import LAYOUTS
from .matrix import judge, restored, worlds


@pytest.mark.slow
@pytest.mark.parametrize("source", LAYOUTS)
@pytest.mark.parametrize("target", LAYOUTS)
def test_a_run_goes_on_in_any_other_world(tmp_path_factory, source, target):
    """Bit for bit the saved run on every rank, then the steps that torch's own calls give; losses but for rounding."""
    ranks = restored(worlds(tmp_path_factory), "unmoor", LAYOUTS[target].world)[source, target]
    cell = judge(source, target, ranks)
    assert cell.outcome.verdict == "equal", cell.outcome.reason
    assert max(cell.apart) <= (0.0 if LAYOUTS[source].arithmetic == LAYOUTS[target].arithmetic else 1e-6)
