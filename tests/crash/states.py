"""What is at the target of a save: nothing, or one whole generation of a checkpoint; anything else raises."""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

import unmoor

__all__ = ["ABSENT", "Broken", "Seen", "held"]

ABSENT = "absent"


class Broken(AssertionError):
    """What is there is neither one generation nor another."""


def held(path: str) -> str:
    """The generation that a checkpoint holds. Every checksum is held against its data, and all of it is loaded."""
    if not os.path.lexists(path):
        return ABSENT
    try:
        verification = unmoor.verify(path)
        found = unmoor.load(path, map_location="cpu")
        if os.path.isfile(path) and not path.endswith(".safetensors"):
            torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise Broken(f"{type(error).__name__}: {error}") from error
    if not verification.ok:
        raise Broken(str(verification))
    fills = _fills(found)
    if len(fills) != 1:
        raise Broken(f"values of several generations: {sorted(fills)}")
    return str(next(iter(fills)))


class Seen:
    """Says what is at a target, and does not look twice at the same bytes; what is broken is said, not raised."""

    def __init__(self, read: Callable[[str], str]) -> None:
        self._read = read
        self._known: dict[str, str] = {}

    def __call__(self, target: str) -> str:
        mark = _mark(Path(target))
        if mark not in self._known:
            try:
                self._known[mark] = self._read(target)
            except Broken as error:
                self._known[mark] = f"broken: {error}"
        return self._known[mark]


def _mark(path: Path) -> str:
    """Tells what lies at a path from all else that may."""
    if path.is_dir():
        rows = [(entry.name, _mark(entry)) for entry in sorted(path.iterdir())]
        return sha256(repr(rows).encode()).hexdigest()
    return sha256(path.read_bytes()).hexdigest() if path.exists() else ABSENT


def _fills(value: Any) -> set[int]:
    if isinstance(value, torch.Tensor):
        return {int(value.min()), int(value.max())}
    if isinstance(value, dict):
        return set().union(*map(_fills, value.values()))
    return {value} if isinstance(value, int) else set()
