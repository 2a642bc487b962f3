"""What is at the target of a save: nothing, or one whole generation of a checkpoint; anything else raises."""

from __future__ import annotations

import os
from typing import Any

import torch

import unmoor

__all__ = ["ABSENT", "Broken", "held"]

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


def _fills(value: Any) -> set[int]:
    if isinstance(value, torch.Tensor):
        return {int(each) for each in value.unique().tolist()}
    if isinstance(value, dict):
        return set().union(*map(_fills, value.values()))
    return {value} if isinstance(value, int) else set()
