"""Folders whose files take minutes come first, so that two workers end together: a worker takes whole files in turn.

`make test` tells xdist to keep this order; by itself it would begin with the files of the most tests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

LONGEST: Final = ("worlds", "dialects", "matrix", "prove", "background", "benchmarks", "real")
_HERE: Final = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order by folder; within one all stays as it was."""
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    folder = item.path.relative_to(_HERE).parts[0] if item.path.is_relative_to(_HERE) else ""
    return LONGEST.index(folder) if folder in LONGEST else len(LONGEST)
