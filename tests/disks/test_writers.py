"""Two writers of one path: the last complete one wins, a mix is never read, and nothing is left behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.zygote import Zygote

from .writers import FORMS

TIMES = 4 if os.environ.get("UNMOOR_DISKS") != "all" else 60


@pytest.mark.parametrize("form", FORMS)
def test_processes_that_write_one_path(zygote: Zygote, tmp_path: Path, form: str) -> None:
    """Three processes save to one path at once while a fourth reads it."""
    run = zygote.run("tests.disks.writers:race", tmp_path, str(tmp_path), form, 3, TIMES)
    assert run.value == [], run.error


def test_threads_that_write_one_path(zygote: Zygote, tmp_path: Path) -> None:
    """So do threads of one process, in the background."""
    run = zygote.run("tests.disks.writers:threads", tmp_path, str(tmp_path), 3)
    assert run.value == [], run.error
