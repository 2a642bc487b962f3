"""A folder that is gone in the midst of a verb, and clocks that go wrong."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import unmoor

from .small import detached, missing, mounted
from .verbs import SAVED, carry, contents, laid, run


def _moved(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def _removed(folder: Path) -> None:
    shutil.rmtree(folder)


GONE: dict[str, Callable[[Path], None]] = {"moved": _moved, "removed": _removed}


@pytest.mark.parametrize("form", ["run.pt", "old.safetensors", "folder"])
@pytest.mark.parametrize("how", GONE)
def test_a_folder_that_is_gone_while_it_is_saved_to(tmp_path: Path, how: str, form: str) -> None:
    """The save says that the folder is there no more, and what was there is where it went."""
    folder = tmp_path / "disk"
    folder.mkdir()
    laid(folder, "other.pt", *(["run.pt"] if form == "run.pt" else []))
    shutil.move(folder / "other.pt", tmp_path)
    before = contents(folder)
    gone: list[int] = []

    def progress(nbytes: int) -> None:
        if not gone:
            gone.append(nbytes)
            GONE[how](folder)

    def carried() -> None:
        if form == "folder":
            unmoor.convert(tmp_path / "other.pt", folder / "run", progress=progress)
        else:
            unmoor.save(folder / form, model=run(SAVED)["model"], progress=progress)

    with pytest.raises(unmoor.SaveError, match="does not exist, or not any more"):
        carried()
    assert gone
    assert not folder.exists()
    if how == "moved":
        after = contents(tmp_path / "elsewhere")
        assert {name: digest for name, digest in after.items() if ".unmoor-" not in name} == before


def test_a_disk_that_is_unmounted_while_it_is_saved_to(tmp_path: Path) -> None:
    """What is beneath the mount gets nothing, and the save says that its folder is gone."""
    folder = tmp_path / "disk"
    folder.mkdir()
    took = _moved if missing("tmpfs") else detached
    with mounted("tmpfs", folder) as disk:
        inside = disk.folder / "runs"
        inside.mkdir()
        gone: list[int] = []

        def progress(nbytes: int) -> None:
            if not gone:
                gone.append(nbytes)
                took(folder)

        with pytest.raises(unmoor.SaveError, match="does not exist, or not any more"):
            unmoor.save(inside / "run.pt", **run(SAVED), progress=progress)
    assert not folder.exists() or list(folder.iterdir()) == []


@pytest.mark.parametrize("seconds", [-10 * 365 * 86400, 10 * 365 * 86400, -1], ids=["past", "future", "a second back"])
def test_a_clock_that_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    """Files of any time, and a clock that jumps between two saves, change nothing about what is saved and restored."""
    laid(tmp_path, "run.pt", "old", "other.pt")
    when = time.time_ns() + seconds * 1_000_000_000
    for path in (tmp_path / "run.pt", tmp_path / "old", *(tmp_path / "old").iterdir()):
        os.utime(path, ns=(when, when))
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + seconds)
    for verb in ("restore", "restore a folder", "verify", "save", "convert to a folder", "save behind", "restore"):
        found = carry(verb, str(tmp_path))
        assert found["told"] is None, (verb, found)
        assert found["faults"] == []
    assert [name for name in os.listdir(tmp_path) if ".unmoor-" in name] == []
