"""Texts that are kept as files: `UPDATE_GOLDEN=1 pytest tests/report` writes them anew, a person reads the diff."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "golden"


def check_golden(name: str, text: str) -> None:
    """Hold `text` against the file golden/`name`.txt."""
    path = FOLDER / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text + "\n", encoding="utf-8")
    assert text + "\n" == path.read_text(encoding="utf-8"), f"the text differs from {path.name}"
