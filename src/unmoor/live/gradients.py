"""The gradients that a model has accumulated, as an object with a state: for saving between two optimizer steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn

from unmoor.errors import MismatchError, UsageError
from unmoor.values.text import listing

from .modules import state_tensors

__all__ = ["Gradients", "gradients"]


def gradients(module: nn.Module) -> Gradients:
    """The gradients of a module's parameters; UsageError for anything but a module. See `unmoor.gradients`."""
    if not isinstance(module, nn.Module):
        raise UsageError(f"gradients was given a {type(module).__qualname__}", remedy="It takes a torch.nn.Module.")
    return Gradients(module)


class Gradients:
    """Looks at the gradients of a module's parameters by canonical name, whenever it is asked."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def _parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        view = state_tensors(self._module)
        sharded = [name for name in view.parameters if not isinstance(view.tensors[name], nn.Parameter)]
        if sharded:
            raise UsageError(
                f"the gradients of {listing(sorted(sharded))} are kept by FSDP or as DTensors, not by the parameters "
                "that the model has",
                remedy="Save after optimizer.step() and zero_grad(), and leave gradients= out.",
            )
        yield from ((name, tensor) for name, tensor in view.tensors.items() if name in view.parameters)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Name -> gradient, for every parameter that has one."""
        return {name: p.grad.detach() for name, p in self._parameters() if p.grad is not None}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Set the gradient of every parameter, on its device: a copy of the saved one, or none."""
        params = dict(self._parameters())
        faults = [f"{name}: no such parameter" for name in state if name not in params]
        faults += [
            f"{name}: saved {tuple(grad.shape)} {grad.dtype}, live {tuple(params[name].shape)} {params[name].dtype}"
            for name, grad in state.items()
            if name in params and (grad.shape, grad.dtype) != (params[name].shape, params[name].dtype)
        ]
        if faults:
            raise MismatchError(
                "the saved gradients do not fit the model",
                details=faults[:10],
                remedy="Leave gradients= out and begin the accumulation again.",
            )
        for name, param in params.items():
            grad = state.get(name)
            param.grad = None if grad is None else grad.to(param.device, copy=True)
