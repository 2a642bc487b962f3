"""A relocation of a folder that is cut off between two of its files: seen, taken back, and completed."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import unmoor
from tests.faults import Fault
from tests.faults.zygote import Zygote
from tests.relocate.files import save

from .verbs import contents

ALL = os.environ.get("UNMOOR_DISKS") == "all"
SWAP = {"cuda:0": "cuda:1", "cuda:1": "cuda:0"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model in a file for each of two pipeline stages, each on a device of its own."""
    place = tmp_path / "run"
    place.mkdir()
    index: dict[str, Any] = {"metadata": {}, "weight_map": {}}
    for number in (0, 1):
        name = f"pytorch_model-0000{number + 1}-of-00002.bin"
        save({f"layer.{number}.weight": torch.full((8,), float(number))}, place / name, tag=f"cuda:{number}")
        index["weight_map"][f"layer.{number}.weight"] = name
    (place / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return place


def tags(folder: Path) -> list[str]:
    """The devices of the two files."""
    return [next(iter(unmoor.describe(path).devices())) for path in sorted(folder.glob("*.bin"))]


def relocate(folder: str, to: str | None, mapping: dict[str, str] | None) -> None:
    unmoor.relocate(folder, to=to, map_location=mapping)


@pytest.mark.parametrize("how", [("cpu", None), (None, SWAP)], ids=["to", "swap"])
def test_wherever_a_relocation_of_a_folder_is_killed(zygote: Zygote, folder: Path, how: tuple[Any, Any]) -> None:
    """Each file is the old or the new one, --undo brings the old ones, the same call completes it or says why not."""
    kept = Path(shutil.copytree(folder, folder.parent / "kept"))
    call = ("tests.disks.test_relocated_folder:relocate", folder, str(folder), *how)
    number, halves, old = zygote.run(*call).operations, 0, tags(kept)
    new = tags(folder)
    points = range(1, number + 1) if ALL else (*range(1, number - 6, 9), *range(number - 6, number + 1))
    for at in points:
        for again in (False, True) if ALL or at > number - 6 else (at % 2 == 0,):
            shutil.rmtree(folder)
            shutil.copytree(kept, folder)
            assert zygote.run(*call, kill_at=at, when="after").killed
            met = tags(folder)
            assert all(tag in pair for tag, pair in zip(met, zip(old, new, strict=True), strict=True))
            half = met not in (old, new)
            halves += half
            if again and half and how[1] == SWAP:
                with pytest.raises(unmoor.UsageError, match="cut off between its files"):
                    relocate(str(folder), *how)
            elif again:
                if met != new:
                    relocate(str(folder), *how)
                assert tags(folder) == new
            else:
                if contents(folder) != contents(kept):
                    unmoor.undo_relocate(folder)
                assert contents(folder) == contents(kept)
    assert halves == 4


def test_a_disk_that_fails_between_two_files(zygote: Zygote, folder: Path) -> None:
    """The error says which file is changed already, and how that is taken back or completed."""
    call = (
        "tests.disks.verbs:called",
        folder,
        "tests.disks.test_relocated_folder:relocate",
        [str(folder), "cpu", None],
    )
    told = zygote.run(*call, fail=Fault("truncate", errno.EIO, first=2)).value
    assert told["errno"] == errno.EIO
    assert "already changed: pytorch_model-00002-of-00002.bin" in told["text"]
    assert "--undo" in told["text"]
    assert tags(folder) == ["cuda:0", "cpu"]
    unmoor.relocate(folder, to="cpu")
    assert tags(folder) == ["cpu", "cpu"]
