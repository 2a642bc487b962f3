"""Every call of every verb is refused once, with everything that a disk, a server or a limit refuses it with.

Whatever it is: a named error with its errno, a place and a remedy; the old checkpoint as it was; nothing left behind;
live objects untouched, or exactly those changed that the error names.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import unmoor
from tests.faults import Fault
from tests.faults.zygote import Zygote

from .cells import cells, counted, tried
from .verbs import READS, VERBS, WRITES, laid

FEW = os.environ.get("UNMOOR_DISKS") != "all"
"""The short form; UNMOOR_DISKS=all refuses every single call."""


SLOW = ("save apart", "save behind", "page", "convert to a folder")
"""Of these every third cell, in the short form."""


@pytest.mark.parametrize("verb", [*WRITES, *READS])
def test_whatever_the_system_refuses(zygote: Zygote, tmp_path: Path, verb: str) -> None:
    """Each cell of the table ends as it should."""
    table = list(cells(verb, counted(zygote, verb, tmp_path), few=FEW))
    table = table[:: 3 if FEW and verb in SLOW else 1]
    wrong = [f"{cell}: {what}" for cell in table if (what := tried(zygote, cell, tmp_path))]
    assert not wrong, f"{len(wrong)} of {len(table)}:\n" + "\n".join(wrong)


@pytest.mark.parametrize("verb", [*WRITES, *READS])
def test_calls_that_do_a_part_of_what_they_are_asked(zygote: Zygote, tmp_path: Path, verb: str) -> None:
    """Reads and writes that are cut short, and interrupted again and again, are gone on with."""
    laid(tmp_path, *VERBS[verb].needs)
    interrupted = [
        Fault(kind, errno.EINTR, first=2, times=3) for kind in ("write", "read", "open", "open_read", "fsync")
    ]
    faults = {"short_write": 4093, "short_read": 1021, "fail": interrupted}
    run = zygote.run("tests.disks.verbs:carry", tmp_path, verb, str(tmp_path), **faults)
    assert run.error is None
    assert run.value["told"] is None
    assert run.value["faults"] == []
    target = VERBS[verb].target
    if target and not target.endswith(".html"):
        assert unmoor.verify(tmp_path / target).ok


@pytest.mark.parametrize("verb", ["save", "save apart", "convert to a folder", "restore", "verify"])
def test_a_slow_disk(zygote: Zygote, tmp_path: Path, verb: str) -> None:
    """However long a call takes, it is waited for, and the processor is left alone meanwhile."""
    laid(tmp_path, *VERBS[verb].needs)
    slow = {"delay_us": 4000, "fail": Fault("any", errno.EIO, match="/none/")}
    run = zygote.run("tests.disks.verbs:timed", tmp_path, verb, str(tmp_path), **slow)
    assert run.value["told"] is None
    assert run.value["processor"] < max(1.0, 0.5 * run.value["seconds"]), run.value
