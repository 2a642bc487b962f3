"""Every call of every verb is refused once, with everything that a disk, a server or a limit refuses it with.

Whatever it is: a named error with its errno, a place and a remedy; the old checkpoint as it was; nothing left behind;
live objects untouched, or exactly those changed that the error names.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.zygote import Zygote

from .cells import cells, counted, tried
from .verbs import READS, WRITES

FEW = os.environ.get("UNMOOR_DISKS") != "all"
"""The short form; UNMOOR_DISKS=all refuses every single call."""


@pytest.mark.parametrize("verb", [*WRITES, *READS])
def test_whatever_the_system_refuses(zygote: Zygote, tmp_path: Path, verb: str) -> None:
    """Each cell of the table ends as it should."""
    table = list(cells(verb, counted(zygote, verb, tmp_path), few=FEW))
    wrong = [f"{cell}: {what}" for cell in table if (what := tried(zygote, cell, tmp_path))]
    assert not wrong, f"{len(wrong)} of {len(table)}:\n" + "\n".join(wrong)
