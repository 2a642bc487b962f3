"""Deeply nested values: read as deep as a description follows them, and refused in words where they cannot be saved."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import unmoor
from tests.cases.files import tiny

DEPTH = 900


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    """A file of a model and of a tensor under 900 lists, as a program with a higher recursion limit writes it."""
    nested: Any = torch.ones(1)
    for _ in range(DEPTH):
        nested = [nested]
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20 * DEPTH)
    try:
        torch.save({"model": tiny().state_dict(), "nested": nested}, tmp_path / "deep.pt")
    finally:
        sys.setrecursionlimit(before)
    return tmp_path / "deep.pt"


def bottom(value: Any) -> Any:
    while isinstance(value, list):
        (value,) = value
    return value


def test_deep_values_are_loaded(deep: Path) -> None:
    """The tensor at the bottom arrives."""
    assert torch.equal(bottom(unmoor.load(deep)["nested"]), torch.ones(1))


def test_deep_values_beside_a_model_are_in_the_report(deep: Path) -> None:
    """They do not stop a restore, and come back among the extra values."""
    report = unmoor.restore(deep, model=tiny(seed=3))
    assert torch.equal(bottom(report.extra["nested"]), torch.ones(1))


def test_a_tree_too_deep_to_save_is_refused_and_the_older_file_stays(deep: Path) -> None:
    """Nothing is written where Python's pickle could not follow."""
    before = deep.read_bytes()
    with pytest.raises(unmoor.UsageError, match="nested more deeply"):
        unmoor.save(deep, unmoor.load(deep))
    assert deep.read_bytes() == before
