"""Containers that lie: zips and headers of safetensors, each refused by name or read as what torch reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch

from tests.hostile.limits import MIB, cost
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
    nbytes = max(path.stat().st_size, MIB // 8)  # what is free to every file is the most that a small one may take
    return type(taken.outcome).__name__ if wrong else "sound", taken.faults(nbytes)


@pytest.mark.parametrize("name", _TABLE)
def test_a_container_that_lies_is_refused(name, tmp_path):
    """What comes of each is what its row allows, within 64 MiB and 2 s for a mebibyte.

    Of a zip that is read torch reads the same tensor, and a header that is read is none that its own library refuses.
    """
    make, allowed = _TABLE[name]
    path = tmp_path / ("f.safetensors" if name.startswith("safe") else "f.pt")
    path.write_bytes(make())
    found, faults = verdict(path)
    assert found in allowed.split()
    assert not faults
    if found == "sound" and name.startswith("zip"):
        agrees_with_torch(path)
    elif found == "sound" and name not in _MILDER:
        safetensors.torch.load(path.read_bytes())


_MILDER = {"safetensors: offsets of -0"}
"""JSON's own zero, which the format's library takes for a float."""


def agrees_with_torch(path: Path) -> None:
    try:
        loaded = torch.load(path, weights_only=True)
    except (RuntimeError, UnicodeDecodeError):
        return  # torch takes offence at a name that is none of its own
    assert loaded["w"].tolist() == [1, 2, 3]
