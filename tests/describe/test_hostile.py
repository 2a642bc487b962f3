"""Every file of tests/hostile gives the error or the finding that its README names, fast and without a trace."""

from __future__ import annotations

import json
import os

import pytest

from tests.describe.makers import outcome
from tests.hostile.make_hostile import FILES, HERE
from unmoor.errors import FileError
from unmoor.values.catalog import Catalog


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_judged_as_its_line_says(name):
    """The class of the error or the code of a finding is the one that the README names."""
    verdict = FILES[name][1]
    answer = outcome(HERE / name)
    if isinstance(answer, FileError):
        assert type(answer).__name__ == verdict
    else:
        codes = {finding.code for finding in answer.findings}
        assert verdict in codes or (verdict == "sound" and not codes & {"runs-code", "walk-cut"})


@pytest.mark.parametrize("name", FILES)
def test_an_answer_names_its_file_and_fits_json(name):
    """An error says which file it speaks of and never advises to switch safety off; a catalog fits JSON."""
    path = HERE / name
    answer = outcome(path)
    if isinstance(answer, Catalog):
        json.dumps(answer.to_json())
        assert str(path) in str(answer)
    else:
        assert str(path) in str(answer)
        assert answer.path == str(path)
        assert "weights_only" not in str(answer)


@pytest.mark.parametrize("name", FILES)
def test_the_committed_file_is_what_its_maker_makes(name):
    """The files do not depend on when or where they were made."""
    assert (HERE / name).read_bytes() == FILES[name][0]


def test_every_hostile_file_has_its_line():
    """README.md has one line for each file, and no file is without one."""
    readme = (HERE / "README.md").read_text()
    others = (".py", ".md", ".json", ".txt")
    names = {name for name in os.listdir(HERE) if not name.endswith(others) and not name.startswith("__")}
    assert names == set(FILES)
    assert all(f"`{name}`" in readme for name in names)
