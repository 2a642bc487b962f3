"""Torch's own planner, which also asks objects that are no tensors for the parts they hold.

torch.distributed.checkpoint plans the writing of anything that has `__create_write_items__`, but asks only tensors for
`__get_tensor_shard__`; what it calls the extension of its planner is where that is mended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import _create_write_items

from unmoor.describe.chunks import tiling_fault
from unmoor.errors import SaveError
from unmoor.values.boxes import Box
from unmoor.values.text import count

__all__ = ["SavePlanner"]

_SHOWN: Final = 10


class SavePlanner(DefaultSavePlanner):
    """Saves tensors, objects that hold parts of one, and any other value as torch.save writes it.

    `paths` are the key paths of a state dict that is flat already, each key with its own; without them the state dict
    is flattened as torch does. What a rank offers is what it has: torch's planner would let any rank write a value that
    several have.
    """

    def __init__(self, paths: Mapping[str, tuple[str | int, ...]] | None = None) -> None:
        super().__init__(flatten_state_dict=True, flatten_sharded_tensors=False)
        self._paths = paths

    def set_up_planner(
        self,
        state_dict: Any,
        storage_meta: Any = None,
        is_coordinator: bool = False,  # noqa: FBT001, FBT002 - torch's own signature
    ) -> None:
        """Take a rank's state dict."""
        if self._paths is None:
            super().set_up_planner(state_dict, storage_meta, is_coordinator)
            return
        self.state_dict, self.mappings = state_dict, dict(self._paths)
        self.is_coordinator = is_coordinator

    def create_local_plan(self) -> SavePlan:
        """What this rank offers to write."""
        items = [item for key, value in self.state_dict.items() for item in _items(key, value)]
        self.plan = SavePlan(items, planner_data=self.mappings)
        return self.plan

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Who writes what. Raises SaveError, before anything is written, for tensors that the ranks do not fill."""
        _refuse_holes(all_plans)
        plans, metadata = super().create_global_plan(all_plans)
        return plans, replace(metadata, planner_data=_in_order(all_plans))

    def lookup_object(self, index: MetadataIndex) -> Any:
        """The data at an index of the plan."""
        value = self.state_dict.get(index.fqn)
        if index.offset is None:
            return value
        return _part(value, index) if _holds_parts(value) else super().lookup_object(index)


def _items(key: str, value: Any) -> list[WriteItem]:
    if isinstance(value, torch.Tensor) and not _holds_parts(value) and _is_composite(value):
        return [WriteItem(index=MetadataIndex(key), type=WriteItemType.BYTE_IO)]
    made: list[WriteItem] = _create_write_items(key, value)
    return made


def _is_composite(tensor: torch.Tensor) -> bool:
    """Whether a tensor is more than numbers in one storage, so that it is saved as a value and not as a box."""
    return (
        tensor.layout != torch.strided
        or tensor.is_nested
        or tensor.is_quantized
        or tensor.is_conj()
        or tensor.is_neg()
        or str(tensor.dtype).startswith("torch.bits")  # torch's planner knows no size of their elements
    )


def _in_order(plans: Sequence[SavePlan]) -> dict[str, tuple[str | int, ...]]:
    """The key paths of all ranks, those of the first in its order before those that others add."""
    merged: dict[str, tuple[str | int, ...]] = {}
    for plan in plans:
        for key, path in (plan.planner_data or {}).items():
            merged.setdefault(key, path)
    return merged


def _refuse_holes(plans: Sequence[SavePlan]) -> None:
    boxes: dict[str, dict[tuple[int, ...], Box]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for item in (item for plan in plans for item in plan.items):
        if item.tensor_data is None:
            continue
        box = Box(tuple(item.tensor_data.chunk.offsets), tuple(item.tensor_data.chunk.sizes))
        boxes.setdefault(item.index.fqn, {})[box.start] = box
        shapes[item.index.fqn] = tuple(item.tensor_data.size)
    faults = [f"{key}: {fault}" for key in boxes if (fault := tiling_fault(shapes[key], list(boxes[key].values())))]
    if faults:
        more = [f"and {len(faults) - _SHOWN:,} more"] if len(faults) > _SHOWN else []
        raise SaveError(
            f"the {count(len(plans), 'rank')} of this save do not hold all of {count(len(faults), 'tensor')}",
            details=[*faults[:_SHOWN], *more],
            remedy="Pass the group of all ranks over which the state is spread: group=...",
        )


def _holds_parts(value: Any) -> bool:
    return hasattr(value, "__get_tensor_shard__")


def _part(held: Any, index: MetadataIndex) -> Any:
    return held.__get_tensor_shard__(index)
