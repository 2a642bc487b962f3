"""Parameters that are kept in another form than the model has them, as whole tensors: DTensor and FSDP's FlatParameter.

In a world of one the local part is the whole, so nothing here talks to other ranks; with more ranks it is refused. An
optimizer sees such a parameter as one or several seats: one for each parameter that the model has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from unmoor.errors import UsageError

from .wrappers import Place

__all__ = [
    "Key",
    "Piece",
    "Seat",
    "gather",
    "group_seats",
    "is_flat",
    "is_shared_out",
    "keys_of",
    "pieces",
    "prepare",
    "seats",
    "state_dict",
    "state_of",
    "whole",
]

Key = tuple[int, int]
"""How an optimizer and a module know that they mean the same parameter: id of the live object, number of the piece."""


class Piece(NamedTuple):
    """One parameter of the model inside a FlatParameter. Those that share memory have the same number."""

    module: nn.Module
    name: str
    start: int
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None
    number: int

    def cut(self, flat: torch.Tensor) -> torch.Tensor:
        """The part of a tensor of the FlatParameter's length that is this parameter's, in its shape."""
        window = flat.detach()[self.start : self.start + torch.Size(self.shape).numel()]
        return window.view(self.shape) if self.stride is None else window.as_strided(self.shape, self.stride)


@dataclass(frozen=True, slots=True)
class Seat:
    """A parameter of the model as an optimizer holds it: `tensor` is its whole memory, `owner` what the group has."""

    key: Key
    owner: torch.Tensor
    tensor: torch.Tensor
    piece: Piece | None = None


def is_shared_out(tensor: Any) -> bool:
    """Whether a tensor is a DTensor: its values are spread over a mesh of ranks."""
    return type(tensor).__name__ == "DTensor" and type(tensor).__module__.startswith("torch.distributed")


def is_flat(tensor: Any) -> bool:
    """Whether a parameter is FSDP's FlatParameter: many parameters in one piece of memory."""
    return bool(getattr(tensor, "_is_flat_param", False))


def whole(tensor: Any) -> Any:
    """A DTensor's local tensor, which is all of it in a world of one; anything else as it is."""
    if not is_shared_out(tensor):
        return tensor
    _refuse_many(tensor.device_mesh.size(), "a DTensor")
    return tensor.to_local() if tensor.requires_grad is False else tensor.detach().to_local()


def prepare(place: Place) -> None:
    """Have a sharded module hold its sharded parameters, as its own hooks do before a state dict; refuse many ranks."""
    for wrapper in place.wrappers:
        if _is_fsdp1(wrapper):
            group: Any = wrapper.process_group
            _refuse_many(group.size(), type(wrapper).__name__)
    if any(cls.__name__ == "FSDPModule" and cls.__module__.startswith("torch.") for cls in type(place.module).__mro__):
        place.module.reshard()  # type: ignore[operator]


def _is_fsdp1(module: nn.Module) -> bool:
    names = [c.__name__ for c in type(module).__mro__ if c.__module__.startswith("torch.distributed.")]
    return "FullyShardedDataParallel" in names


def _refuse_many(ranks: int, what: str) -> None:
    if ranks != 1:
        raise UsageError(
            f"{what} is spread over {ranks} ranks: parameters of many ranks are not supported yet",
            remedy="Save and restore in a world of one, or use torch.distributed.checkpoint for this model.",
        )


def pieces(flat: Any) -> Iterator[Piece]:
    """The parameters in a FlatParameter, in its order; parameters that share memory with one of them follow it."""
    contiguous = getattr(flat, "_contiguities", None) or [True] * len(flat._param_infos)
    strides = getattr(flat, "_strides", None) or [None] * len(flat._param_infos)
    shared = list(getattr(flat, "_shared_param_infos", None) or ())
    start = number = 0
    for size, padding in zip(flat._numels_with_padding, flat._is_padding_mask, strict=True):
        if not padding:
            info, shape = flat._param_infos[number], tuple(flat._shapes[number])
            stride = None if contiguous[number] else tuple(strides[number])
            yield Piece(info.module, info.param_name, start, shape, stride, number)
            for other in shared:
                if (other.prim_module, other.prim_param_name) == (info.module, info.param_name):
                    yield Piece(other.module, other.param_name, start, shape, stride, number)
            number += 1
        start += size


def keys_of(param: torch.Tensor) -> list[Key]:
    """The keys of all that a parameter of an optimizer stands for."""
    if not is_flat(param):
        return [(id(param), 0)]
    return [(id(param), number) for number in range(len(param._param_infos))]  # type: ignore[attr-defined]


def seats(param: torch.Tensor) -> list[Seat]:
    """All that a parameter of an optimizer stands for, in its order."""
    if is_flat(param):
        found = {piece.number: piece for piece in reversed(list(pieces(param)))}
        return [Seat((id(param), n), param, found[n].cut(param), found[n]) for n in sorted(found)]
    return [Seat((id(param), 0), param, whole(param))]


def group_seats(group: Mapping[str, Any]) -> list[Seat]:
    """The seats of one parameter group."""
    return [seat for param in group["params"] for seat in seats(param)]


def state_of(optimizer: Optimizer, seat: Seat) -> dict[str, Any]:
    """The state of a seat that exists and can be looked at in place; nothing for a piece of a FlatParameter."""
    return {} if seat.piece is not None else {k: whole(v) for k, v in optimizer.state.get(seat.owner, {}).items()}


def gather(optimizer: Optimizer, entries: Mapping[int, Mapping[str, Any]]) -> dict[torch.Tensor, dict[str, Any]]:
    """State by position of the seat -> state by parameter of the optimizer, in the form that its parameters have."""
    everyone = [seat for group in optimizer.param_groups for seat in group_seats(group)]
    made: dict[torch.Tensor, dict[str, Any]] = {}
    parts: dict[torch.Tensor, list[tuple[Piece, Mapping[str, Any]]]] = {}
    for position, entry in entries.items():
        seat = everyone[position]
        if seat.piece is not None:
            parts.setdefault(seat.owner, []).append((seat.piece, entry))
        elif is_shared_out(seat.owner):
            existing = optimizer.state.get(seat.owner, {})
            made[seat.owner] = {key: _shared_out(seat.owner, v, existing.get(key)) for key, v in entry.items()}
        else:
            made[seat.owner] = dict(entry)
    return made | {flat: _joined(flat, found) for flat, found in parts.items()}


def _shared_out(param: Any, value: Any, existing: Any) -> Any:
    """A whole state tensor in the form of its parameter; counters stay plain tensors, as optimizers make them."""
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return value
    if is_shared_out(existing) and existing.to_local().data_ptr() == value.data_ptr():
        return existing
    placements = param.placements if value.shape == param.shape else None
    return type(param).from_local(value, param.device_mesh, placements, run_check=False)


def _joined(flat: torch.Tensor, parts: Sequence[tuple[Piece, Mapping[str, Any]]]) -> dict[str, Any]:
    joined: dict[str, Any] = {}
    for key, value in parts[0][1].items():
        if not isinstance(value, torch.Tensor) or value.dim() == 0:
            joined[key] = value
            continue
        joined[key] = torch.zeros(flat.shape, dtype=value.dtype, device=value.device)
        for piece, entry in parts:
            piece.cut(joined[key]).copy_(entry[key])
    return joined


def state_dict(optimizer: Optimizer) -> dict[str, Any]:
    """The optimizer's state dict with whole plain tensors, one entry for each parameter that the model has."""
    packed = optimizer.state_dict()
    params = [param for group in optimizer.param_groups for param in group["params"]]
    if not any(is_flat(p) or is_shared_out(p) for p in params):
        return packed
    numbers = [i for group in packed["param_groups"] for i in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    renumbered: dict[Any, list[int]] = {}
    for identity, param in zip(numbers, params, strict=True):
        renumbered[identity] = []
        for seat in seats(param):
            number = sum(map(len, renumbered.values()))
            renumbered[identity].append(number)
            if identity in packed["state"]:
                state[number] = {key: _cut(seat, key, v) for key, v in packed["state"][identity].items()}
    groups = [
        {**{k: whole(v) for k, v in group.items()}, "params": [n for i in group["params"] for n in renumbered[i]]}
        for group in packed["param_groups"]
    ]
    return {**packed, "state": state, "param_groups": groups}


def _cut(seat: Seat, key: str, value: Any) -> Any:
    if seat.piece is None or not isinstance(value, torch.Tensor) or value.dim() == 0:
        return whole(value)
    if value.shape != seat.owner.shape:
        raise UsageError(
            f"optimizer state {key!r} of a FlatParameter has shape {tuple(value.shape)}, and not one value for each "
            "of its elements: it cannot be told which parameter it belongs to",
            remedy="Wrap with FullyShardedDataParallel(..., use_orig_params=True), or with fully_shard.",
        )
    return seat.piece.cut(value)
