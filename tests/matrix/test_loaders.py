"""Every kind of data loader, cut within an epoch: the very batches that were left, and the same random draws."""

from __future__ import annotations

import pytest

from .carriers import CARRIERS
from .loaders import LOADERS, cases, judge


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("loader", LOADERS)
def test_resumed_loader_gives_the_batches_that_were_left(tmp_path, loader, workers):
    """Cut anywhere, with workers that run ahead or without, the run sees what the uninterrupted run sees."""
    if loader.startswith("torchdata"):
        pytest.importorskip("torchdata", reason="torchdata is not installed")
    chosen = [case for case in cases() if (case.loader, case.workers) == (loader, workers)]
    outcomes = [judge(case, CARRIERS["unmoor"], tmp_path) for case in chosen]
    assert [f"{o.cell}: {o.reason}" for o in outcomes if o.verdict != "equal"] == []
