"""What objects were passed under which keywords, in words that ranks can compare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from .survey import members

__all__ = ["objects_text"]


def objects_text(roles: Mapping[str, Any]) -> str:
    """Each label with the kind of its object: `model (module), optimizer (optimizer), sampler (object)`.

    Classes are left out: stages of a pipeline have a class each.
    """
    pairs = ((label, item) for role, value in roles.items() for label, _, item in members(role, value))
    return ", ".join(f"{label} ({_kind(item)})" for label, item in sorted(pairs, key=lambda pair: pair[0])) or "nothing"


def _kind(item: Any) -> str:
    if isinstance(item, nn.Module):
        return "module"
    return "optimizer" if isinstance(item, torch.optim.Optimizer) else "object"
