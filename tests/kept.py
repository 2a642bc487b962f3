"""Folders that tests make once and keep."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["kept"]


def kept(folder: Path, make: Callable[[Path], Path]) -> Path:
    """`folder`; where it is absent, what `make(scratch)` made in a scratch folder beside it.

    It is renamed whole: a run that is killed leaves no half folder, and of two processes that make it at once the
    second finds the first one's.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made = make(Path(scratch))
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    return folder
