"""Containers that lie: zips and headers of safetensors, each refused by name or read as what torch reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.limits import cost
from tests.hostile.tensors import HEADERS
from tests.hostile.zips import ZIPS
from unmoor.describe.file import describe_file
from unmoor.errors import FileError

_TABLE = {**{f"zip: {name}": row for name, row in ZIPS.items()},
          **{f"safetensors: {name}": row for name, row in HEADERS.items()}}  # fmt: skip


def verdict(path: Path) -> tuple[str, list[str]]:
    """The class of the error or "sound", and which bounds were broken."""
    taken = cost(lambda: describe_file(path))
    wrong = isinstance(taken.outcome, FileError)
    return type(taken.outcome).__name__ if wrong else "sound", taken.faults(path.stat().st_size)


@pytest.mark.parametrize("name", _TABLE)
def test_a_container_that_lies_is_refused(name, tmp_path):
    """What comes of each is what its row allows, within 64 MiB and 2 s for a mebibyte."""
    make, allowed = _TABLE[name]
    path = tmp_path / ("f.safetensors" if name.startswith("safe") else "f.pt")
    path.write_bytes(make())
    found, faults = verdict(path)
    assert found in allowed.split()
    assert not faults


@pytest.mark.parametrize("name", ZIPS)
def test_a_zip_gives_what_torch_reads_of_it(name, tmp_path):
    """Of a zip that is read, torch reads the same tensor; a reader that is shown another archive would not."""
    torch = pytest.importorskip("torch")
    path = tmp_path / "f.pt"
    path.write_bytes(ZIPS[name][0]())
    if verdict(path)[0] != "sound":
        return
    try:
        loaded = torch.load(path, weights_only=True)
    except (RuntimeError, UnicodeDecodeError):
        return  # torch takes offence at a name that is none of its own
    assert loaded["w"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_is_not_judged_milder_than_by_its_own_library(name, tmp_path):
    """What the format's own library refuses is refused here."""
    safetensors = pytest.importorskip("safetensors.torch")
    data = HEADERS[name][0]()
    path = tmp_path / "f.safetensors"
    path.write_bytes(data)
    if verdict(path)[0] == "sound":
        safetensors.load(data)
