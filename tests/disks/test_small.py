"""Small disks that fill up: real ones where they can be mounted, else made believe; no cell is left out."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import unmoor
from tests.faults.zygote import Zygote

from .cells import written
from .small import DISKS, Disk, mounted, read_only
from .verbs import SAVED, WRITES, carry, contents, laid, run

ALL = os.environ.get("UNMOOR_DISKS") == "all"
ROOM = (0.0, 0.5, 0.9)
"""Free bytes, as a share of what is needed."""
LITTLE = 100_000
"""Of so few bytes, what is a tenth less may be the same number of blocks."""
VERBS = [verb for verb in WRITES if verb != "save apart"]
SOME = ("save", "convert to shards", "relocate")
"""What stands for all on the second disk and those after it, in the short form."""
TABLE = [(way, verb) for way in DISKS for verb in (VERBS if ALL or way == DISKS[0] else SOME)]
disks = pytest.mark.parametrize(("disk", "verb"), TABLE, indirect=["disk"])


@pytest.fixture(scope="module")
def disk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    """Each small disk."""
    with mounted(request.param, tmp_path_factory.mktemp("disk")) as found:
        yield found


def _refused(zygote: Zygote, disk: Disk, verb: str, number: int, faults: dict[str, Any]) -> dict[str, Any]:
    """What a verb says that is refused; everything on the disk is then what it was."""
    before = contents(disk.folder)
    came = zygote.run("tests.disks.verbs:carry", disk.folder, verb, str(disk.folder), **faults)
    told = came.value["told"]
    assert told is not None, verb
    assert "SaveError" in told["kinds"], told
    assert told["errno"] == number, told
    assert told["remedy"], told
    assert came.value["changed"] == []
    assert contents(disk.folder) == before, told
    return told


@disks
def test_a_disk_that_fills_up(zygote: Zygote, disk: Disk, verb: str) -> None:
    """The error says what was needed and what is free; the older checkpoint stays, and nothing else; then it works."""
    laid(disk.folder, *WRITES[verb].needs)
    needed = written(zygote, verb, disk.folder)
    for share in ROOM if needed > LITTLE else ROOM[:2]:
        laid(disk.folder, *WRITES[verb].needs)
        with disk.with_room_for(int(share * needed)) as faults:
            told = _refused(zygote, disk, verb, errno.ENOSPC, faults)
        assert "the disk is full" in told["text"]
        assert "needed" in told["text"]
    assert carry(verb, str(disk.folder))["told"] is None


@pytest.mark.parametrize(("disk", "verb"), [row for row in TABLE if row[1] != "relocate"], indirect=["disk"])
def test_a_disk_that_takes_no_more_files(zygote: Zygote, disk: Disk, verb: str) -> None:
    """A table of files that is full is called so: the bytes would have had room."""
    laid(disk.folder, *WRITES[verb].needs)
    with disk.without_names() as faults:
        told = _refused(zygote, disk, verb, errno.ENOSPC, faults)
    if disk.real:
        assert "takes no more files" in told["text"]


@disks
def test_a_disk_that_is_read_only(zygote: Zygote, disk: Disk, verb: str) -> None:
    """It is said, with what to do."""
    laid(disk.folder, *WRITES[verb].needs)
    with read_only(disk) as faults:
        told = _refused(zygote, disk, verb, errno.EROFS, faults)
    assert "read-only file system" in told["text"]


def limited(path: str, most: int) -> list[str]:
    """A save under a limit on the size of files (ulimit -f): what it raises."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    try:
        unmoor.save(path, **run(SAVED + 1), epoch=42)
    except unmoor.SaveError as error:
        return [str(error.errno), str(error)]
    return []


def test_a_full_disk_leaves_the_good_file(zygote: Zygote, tmp_path: Path) -> None:
    """C54: the save says what it needed and that the older file is untouched, which loads; no other file is left."""
    path = tmp_path / "last.pt"
    unmoor.save(path, **run(SAVED), epoch=41)
    before = contents(tmp_path)
    number, text = zygote.run("tests.disks.test_small:limited", tmp_path, str(path), 200_000).value
    assert int(number) == errno.EFBIG
    assert "last.pt was not saved: the file would be larger than allowed" in text
    assert "needed" in text
    assert "the checkpoint that was there before is untouched" in text
    assert contents(tmp_path) == before
    assert unmoor.load(path)["epoch"] == 41
