"""docs/reliability.md shows the stored figures, and none of them is a failure."""

from __future__ import annotations

import json
import re

import pytest
from benchmarks.survival import JSON, PAGE, TABLES, filled

from tests.rot.subjects import SUBJECTS

FIGURES = json.loads(JSON.read_text())


def test_the_page_shows_the_stored_figures() -> None:
    """Filling the page anew changes nothing; every table has its place."""
    page = PAGE.read_text()
    assert filled(page, FIGURES) == page
    assert set(re.findall(r"<!-- (\w+) -->", page)) == set(TABLES) >= set(FIGURES)


@pytest.mark.parametrize("name", sorted({"kills", "disks"} & FIGURES.keys()))
def test_what_was_tried_held(name: str) -> None:
    """Each row of these tables has as many that held as were tried."""
    for row in FIGURES[name]["rows"][1:]:
        assert row[1] == row[2], row


def test_no_restore_gave_another_state_where_checksums_cover_it() -> None:
    """The column that must be 0 is 0 for every form that has checksums."""
    head, *rows = FIGURES.get("rot", {"rows": [["ANOTHER state"]]})["rows"]
    silent = {row[0]: row[head.index("ANOTHER state")] for row in rows}
    unsummed = {name for name, subject in SUBJECTS.items() if not subject.summed}
    assert {name for name, number in silent.items() if number != "0"} <= unsummed
