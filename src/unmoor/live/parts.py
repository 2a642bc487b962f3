"""Whether ranks hold parts of a run's tensors, so that only all of them together can save it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from .held import Held
from .modules import state_tensors
from .survey import members

__all__ = ["holds_parts"]


def holds_parts(roles: Mapping[str, Any]) -> bool:
    """Whether any module among the objects of a run has a tensor of which other ranks hold parts too."""
    items = (item for role, value in roles.items() for _, _, item in members(role, value))
    modules = (item for item in items if isinstance(item, nn.Module))
    return any(isinstance(tensor, Held) for module in modules for tensor in state_tensors(module).tensors.values())
