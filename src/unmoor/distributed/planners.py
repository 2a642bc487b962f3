"""Torch's own planner, which also asks objects that are no tensors for the parts they hold.

torch.distributed.checkpoint plans the writing of anything that has `__create_write_items__`, but asks only tensors for
`__get_tensor_shard__`; what it calls the extension of its planner is where that is mended.
"""

from __future__ import annotations

from typing import Any

from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex

__all__ = ["SavePlanner"]


class SavePlanner(DefaultSavePlanner):
    """Saves tensors, and objects that hold parts of one."""

    def lookup_object(self, index: MetadataIndex) -> Any:
        """The data at an index of the plan."""
        held = self.state_dict.get(index.fqn)
        return _part(held, index) if _holds_parts(held) else super().lookup_object(index)


def _holds_parts(value: Any) -> bool:
    return hasattr(value, "__get_tensor_shard__")


def _part(held: Any, index: MetadataIndex) -> Any:
    return held.__get_tensor_shard__(index)
