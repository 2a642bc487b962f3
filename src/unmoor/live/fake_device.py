"""Which devices can be in pretence."""

from __future__ import annotations

from typing import Any, Final

import torch

from unmoor.errors import UsageError

__all__ = ["TYPES", "asked_device"]

TYPES: Final = ("cuda", "xpu", "mps", "mtia")
"""Kinds of device that can be in pretence: torch knows their names without their drivers."""


def asked_device(device: Any) -> torch.device:
    """The device that is to be in pretence, with its index.

    Raises UsageError for one that needs no pretence, and for a kind that torch cannot name without its driver.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise UsageError(f"{device!r} is no device", remedy='Say one such as "cuda:0".') from error
    if found.type not in TYPES:
        raise UsageError(
            f"a step on {found} cannot be taken in pretence", remedy=f"Say a device of type {', '.join(TYPES)}."
        )
    return torch.device(found.type, found.index or 0)
