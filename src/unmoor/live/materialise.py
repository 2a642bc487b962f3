"""Modules on the meta device: which tensors hold no data, and how they get memory with their parameters kept the same.

`Module.to_empty` puts new parameters in the place of the old ones, and an optimizer would go on training the old. Here
the new memory is swapped into the Parameter that is there, so that whoever holds it holds the new one.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from unmoor.errors import DeviceError

from .memory import roomy_all
from .shards import is_shared_out, local_of
from .wrappers import Place

__all__ = ["check_swaps", "materialise", "meta_names", "unsaved_meta"]


def meta_names(tensors: Mapping[str, torch.Tensor]) -> frozenset[str]:
    """The names of tensors without data."""
    return frozenset(name for name, tensor in tensors.items() if _is_meta(tensor))


def _is_meta(tensor: Any) -> bool:
    return tensor.is_meta if isinstance(tensor, torch.Tensor) else tensor.device.type == "meta"


def unsaved_meta(module: nn.Module, places: Iterable[Place]) -> tuple[str, ...]:
    """Buffers on the meta device that no state dict holds, by name: nothing will fill them.

    `places` is the walk over the module, which tells at less cost that there is none.
    """
    if not any(m._non_persistent_buffers_set for place in places for m in (place.module, *place.wrappers)):
        return ()
    return tuple(
        f"{prefix}.{name}" if prefix else name
        for prefix, inner in module.named_modules()
        for name, buffer in inner._buffers.items()
        if buffer is not None and buffer.device.type == "meta" and name in inner._non_persistent_buffers_set
    )


def check_swaps(label: str, params: list[torch.Tensor], names: list[str]) -> None:
    """Raise DeviceError for parameters of an optimizer that cannot get memory and stay the same objects."""
    stuck = [name for name, param in zip(names, params, strict=True) if param.device.type == "meta" and _held(param)]
    if stuck:
        raise DeviceError(
            f"giving memory to {', '.join(stuck[:4])}{' ...' if len(stuck) > 4 else ''} would make new parameters, and "
            f"{label} would go on training the old ones; nothing was changed",
            remedy="Something else holds on to them (a weak reference, a graph). Make the model first, then the "
            "optimizer: model.to_empty(device=...); optimizer = ...; unmoor.restore(path, model=model, optimizer=...).",
        )


_KINDS = (torch.Tensor, nn.Parameter)


def _held(param: torch.Tensor) -> bool:
    """Whether something besides Python's own references keeps the tensor from being swapped."""
    known = type(param) in _KINDS or is_shared_out(param)
    return bool(weakref.getweakrefs(param)) or not known or param._use_count() > 1  # type: ignore[attr-defined]


def materialise(module: nn.Module, device: str) -> bool:
    """Give memory on `device` to every tensor on the meta device, its values not set; whether there were any.

    Tied tensors stay tied.
    """
    made: dict[int, torch.Tensor] = {}
    for owner, name, tensor in list(_on_meta(module)):
        if id(tensor) not in made:
            made[id(tensor)] = _with_memory(tensor, device)
        if made[id(tensor)] is not tensor:
            owner[name] = made[id(tensor)]
    roomy_all(map(local_of, made.values()))
    return bool(made)


def _on_meta(module: nn.Module) -> Iterator[tuple[dict[str, torch.Tensor | None], str, torch.Tensor]]:
    for inner in module.modules():
        for owner in (inner._parameters, inner._buffers):
            for name, tensor in owner.items():
                if tensor is not None and tensor.device.type == "meta":
                    yield owner, name, tensor  # type: ignore[misc]


def _with_memory(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """The same tensor with memory where that can be; else another."""
    memory = _memory(tensor, device)
    if isinstance(tensor, nn.Parameter):
        fresh: torch.Tensor = nn.Parameter(memory, requires_grad=tensor.requires_grad)
    else:
        fresh = memory
    if _held(tensor) or type(fresh) is not type(tensor):
        return fresh
    torch.utils.swap_tensors(tensor, fresh)  # type: ignore[no-untyped-call]
    return tensor


def _memory(tensor: Any, device: str) -> torch.Tensor:
    """Memory for a tensor; of a DTensor for the part that this rank holds, and no more."""
    if not is_shared_out(tensor):
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    own = tensor.detach().to_local()
    made: torch.Tensor = type(tensor).from_local(
        torch.empty_strided(own.shape, own.stride(), dtype=own.dtype, device=device),
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )
    return made
