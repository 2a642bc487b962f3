"""What an optimizer holds beside each parameter, and where the parameter is: the facts behind a failed step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import torch
from torch.optim import Optimizer

from .context_frames import Step
from .context_look import items_of
from .context_names import state_key

__all__ = ["Apart", "apart", "capturable_on_cpu", "optimizer_of"]

_STEP: Final = "step"


class Apart(NamedTuple):
    """State or a gradient that is not where it has to be: `key` in the optimizer's words, the two tensors."""

    key: str
    parameter: torch.Tensor
    tensor: torch.Tensor


def optimizer_of(steps: list[Step]) -> Optimizer | None:
    """The optimizer whose step was being taken, None where none was, or where it had called the model again."""
    for step in reversed(steps):
        own = step.value("self")
        if isinstance(own, torch.nn.Module):
            return None
        if isinstance(own, Optimizer):
            return own
    return None


def apart(optimizer: Optimizer) -> list[Apart]:
    """Every state tensor and gradient that is not beside its parameter, in the order of the groups.

    A step counter may be on the CPU, whatever the device, unless the optimizer is capturable or fused.
    """
    return [
        Apart(key, parameter, tensor)
        for group in optimizer.param_groups
        for parameter in group["params"]
        for key, tensor in _beside(optimizer, parameter)
        if tensor.device != parameter.device and not _may_stay(key, tensor, group)
    ]


def _beside(optimizer: Optimizer, parameter: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    state = optimizer.state.get(parameter, {})
    for path, value in items_of(dict(state), most=2000):
        if isinstance(value, torch.Tensor):
            yield state_key(path), value
    if parameter.grad is not None:
        yield "gradient", parameter.grad


def _may_stay(key: str, tensor: torch.Tensor, group: dict[str, Any]) -> bool:
    """Whether a tensor may be on the CPU: a number that is read from there, as a step counter is."""
    beside = bool(group.get("capturable") or group.get("fused"))
    return tensor.dim() == 0 and tensor.device.type == "cpu" and not (beside and key == _STEP)


def capturable_on_cpu(optimizer: Optimizer) -> torch.Tensor | None:
    """A parameter on the CPU in a group that is capturable, which is for accelerators alone; None where none is."""
    for group in optimizer.param_groups:
        if group.get("capturable"):
            for parameter in group["params"]:
                if parameter.device.type == "cpu" and parameter.grad is not None:
                    return parameter if isinstance(parameter, torch.Tensor) else None
    return None
