"""Checkpoints that other programs really wrote, laid out plain by convert: resumed as they are, and loaded by torch."""

from pathlib import Path

import pytest
import torch

import unmoor
from tests.real.compare import differences

from .resuming import CASES, Case

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_plain_file_goes_on_as_the_source_does(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next steps after a restore of the plain file are those of the uninterrupted run; torch loads it safely."""
    restore = unmoor.restore
    plain = tmp_path / "plain.pt"

    def from_plain(path: object, **objects: object) -> object:
        unmoor.convert(path, plain, layout="plain", opaque="drop")
        return restore(plain, **objects)

    monkeypatch.setattr(unmoor, "restore", from_plain)
    resumed = case.run()
    assert not list(differences(resumed.wanted, resumed.got))
    assert isinstance(torch.load(plain, weights_only=True), dict)
