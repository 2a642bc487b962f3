"""DeepSpeed folders made by hand for any stage and world: the layout alone, from a model and its optimizer.

Real files of DeepSpeed are few and small; these cover the shapes, worlds and paddings that those do not have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

MOMENTS = ("exp_avg", "exp_avg_sq")


class fragment_address:
    """Where a parameter lies in a partition."""

    def __init__(self, numel: int, start: int) -> None:
        self.numel, self.start = numel, start


fragment_address.__module__ = "deepspeed.utils.tensor_fragment"


@dataclass(frozen=True)
class Shape:
    """What a folder looks like. `groups` are sizes of parameter groups, `dtype` that of the module's copy."""

    stage: int
    world: int
    groups: tuple[int, ...] = (4,)
    dtype: torch.dtype = torch.bfloat16
    maps: bool = False
    elastic: bool = False
    lean: bool = True


class ZeroMaker:
    """The trees of all files of one step; `write` writes them, tests change them first."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, shape: Shape) -> None:
        self.shape = shape
        named = list(model.named_parameters())
        self.units, done = [], 0
        for size in shape.groups:
            self.units.append(named[done : done + size])
            done += size
        self.optimizer = optimizer
        stored = model.state_dict()
        module = {name: v.to(shape.dtype) if v.is_floating_point() else v for name, v in stored.items()}
        self.models = [self._model(module, model) for _ in range(shape.world if shape.stage == 3 else 1)]
        self.optimizers = [self._optimizer(rank) for rank in range(shape.world)]

    def write(self, folder: Path, step: str = "global_step3") -> Path:
        """Write `latest` and the step's folder."""
        inner = folder / step
        inner.mkdir(parents=True)
        (folder / "latest").write_text(step)
        for rank, tree in enumerate(self.models):
            lead = f"zero_pp_rank_{rank}_" if self.shape.stage == 3 else ""
            torch.save(tree, inner / f"{lead}mp_rank_00_model_states.pt")
        kind = "bf16_" if self.shape.dtype == torch.bfloat16 else ""
        for rank, tree in enumerate(self.optimizers):
            torch.save(tree, inner / f"{kind}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        return folder

    def _model(self, module: dict[str, torch.Tensor], model: nn.Module) -> dict[str, Any]:
        names = {name for name, _ in model.named_parameters()}
        stubs = {name: torch.empty(0, dtype=self.shape.dtype) for name in names} if self.shape.stage == 3 else {}
        return {
            "module": {**module, **stubs},
            "buffer_names": [name for name, _ in model.named_buffers()],
            "optimizer": None,
            "param_shapes": [{name: p.shape for name, p in unit} for unit in self.units],
            "frozen_param_shapes": None,
            "frozen_param_fragments": None,
            "shared_params": {},
            "lr_scheduler": {"last_batch_iteration": 3},
            "global_steps": 3,
            "ds_version": "0.19.8",
        }

    def _optimizer(self, rank: int) -> dict[str, Any]:
        third = self.shape.stage == 3
        masters = [self._part(rank, unit, None, lean=self.shape.lean) for unit in self.units]
        state = {i: self._state(rank, unit) for i, unit in enumerate(self.units)}
        options = [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
        groups = [{**option, "params": [i]} for i, option in enumerate(options)]
        base: Any = list(state.values()) if self.shape.elastic else {"state": state, "param_groups": groups}
        inner = {
            "zero_stage": self.shape.stage,
            "partition_count": self.shape.world if third else [self.shape.world] * len(self.units),
            "optimizer_state_dict" if third else "base_optimizer_state": base,
            "fp32_flat_groups" if third else "single_partition_of_fp32_groups": masters,
            "loss_scaler": None,
        }
        if self.shape.maps:
            inner["param_slice_mappings"] = [self._map(rank, unit) for unit in self.units]
        return {"optimizer_state_dict": inner, "ds_config": {}, "ds_version": "0.19.8"}

    def _state(self, rank: int, unit: Sequence[tuple[str, nn.Parameter]]) -> dict[str, Any]:
        first = self.optimizer.state[unit[0][1]]
        lean = self.shape.elastic
        return {"step": first["step"].clone(), **{key: self._part(rank, unit, key, lean=lean) for key in MOMENTS}}

    def _part(
        self, rank: int, unit: Sequence[tuple[str, nn.Parameter]], key: str | None, *, lean: bool
    ) -> torch.Tensor:
        """A rank's share of the weights (`key` None) or of a moment of one unit."""
        values = [p.detach() if key is None else self.optimizer.state[p][key] for _, p in unit]
        world = self.shape.world
        if self.shape.stage == 3:
            return torch.cat([_share(value.flatten(), rank, world) for value in values])
        flat = torch.cat([v.flatten() for v in values])
        each = math.ceil(len(flat) / (2 * world)) * 2
        padded = torch.cat([flat, torch.zeros(each * world - len(flat))])
        stop = min((rank + 1) * each, len(flat)) if lean else (rank + 1) * each
        return padded[rank * each : max(stop, rank * each)].clone()

    def _map(self, rank: int, unit: Sequence[tuple[str, nn.Parameter]]) -> dict[str, fragment_address]:
        total = sum(p.numel() for _, p in unit)
        each = math.ceil(total / (2 * self.shape.world)) * 2
        found, start = {}, 0
        for name, p in unit:
            low, high = max(start, rank * each), min(start + p.numel(), (rank + 1) * each)
            if low < high:
                found[name] = fragment_address(high - low, low - rank * each)
            start += p.numel()
        return found


def _share(flat: torch.Tensor, rank: int, world: int) -> torch.Tensor:
    """An even share of a flat tensor, padded."""
    each = math.ceil(len(flat) / world)
    return torch.cat([flat, torch.zeros(each * world - len(flat))])[rank * each : (rank + 1) * each]
