"""Parameters that are kept in another form than the model has them: DTensor and FSDP's FlatParameter.

In a world of one the local part is the whole. Where several ranks share a tensor out, what this rank has of it is Held;
nothing here talks to other ranks. An optimizer sees a parameter as one or several seats: one for each parameter that
the model has.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.optim import Optimizer

from unmoor.errors import DeviceError, UsageError
from unmoor.values.boxes import Box
from unmoor.values.quick import quickly_made
from unmoor.values.text import listing

from .flat_shards import Piece, is_flat, joined, memory_of, note_flat, numbers, piece_of, pieces, refuse_busy
from .held import Held
from .redundancy import is_redundancy, own_parts, stepping
from .wrappers import Place

__all__ = [
    "Key",
    "Piece",
    "Seat",
    "fresh",
    "gather",
    "group_seats",
    "in_form_of",
    "is_flat",
    "is_ordinary",
    "is_shared_out",
    "keys_of",
    "local_of",
    "memory_of",
    "pieces",
    "prepare",
    "refuse_move",
    "seats",
    "state_dict",
    "state_of",
    "whole",
]

_TORCHS: Final = frozenset({torch.Tensor, nn.Parameter})

Key = tuple[int, int]
"""How an optimizer and a module know that they mean the same parameter: id of the live object, number of the piece."""


@quickly_made
@dataclass(frozen=True, slots=True)
class Seat:
    """A parameter of the model as an optimizer holds it: `tensor` is its whole memory, or Held.

    `owner` is what the group has. `piece` is set for one of the parameters in a FlatParameter; `window` for one that
    the model kept beside a FlatParameter which is spread over ranks.
    """

    key: Key
    owner: torch.Tensor
    tensor: Any
    piece: Piece | None = None
    window: Piece | None = None

    def seen(self, value: Any) -> Any:
        """A state tensor, in the form of the owner's local memory, as this parameter's: whole, or Held."""
        own = self.piece or self.window
        if own is None and is_ordinary(value):
            return value
        if not isinstance(value, torch.Tensor) or value.dim() == 0:
            return whole(value)
        if own is not None and value.shape == memory_of(self.owner).shape:
            return own.cut(value)
        return _beside(self.tensor, value) if _laid_out_alike(self.owner, value) else whole(value)


def is_ordinary(tensor: Any) -> bool:
    """Whether a tensor is of torch's own class and FSDP has left no mark on it: most are, and are what they seem."""
    return type(tensor) in _TORCHS and not hasattr(tensor, "_is_flat_param") and not hasattr(tensor, "_fsdp_flattened")


def is_shared_out(tensor: Any) -> bool:
    """Whether a tensor is a DTensor: its values are spread over a mesh of ranks."""
    return (
        type(tensor) not in _TORCHS
        and type(tensor).__name__ == "DTensor"
        and type(tensor).__module__.startswith("torch.distributed")
    )


def whole(tensor: Any, name: str = "") -> Any:
    """A tensor as what it is to the model: all of it, or Held where several ranks share it out.

    A DTensor's local tensor is all of it in a world of one. Raises UsageError, with `name`, for a DTensor that no one
    place of the whole belongs to.
    """
    if is_ordinary(tensor):
        return tensor
    if is_shared_out(tensor):
        local = local_of(tensor)
        return local if tensor.device_mesh.size() == 1 else _held(tensor, local, name)
    window = piece_of(tensor) if isinstance(tensor, torch.Tensor) else None
    return tensor if window is None else window.cut(tensor)


def _held(tensor: Any, local: torch.Tensor, name: str) -> Held:
    """The box of a DTensor that is here."""
    boxes = _boxes(tensor, name)
    parts = tuple((box, local) for box in boxes if 0 not in box.sizes or not tensor.numel())
    if any(box.sizes != tuple(part.shape) for box, part in parts):
        raise UsageError(
            f"{name or 'a DTensor'} holds {tuple(local.shape)} on this rank, and its placements "
            f"{tuple(tensor.placements)} say {[box.sizes for box in boxes]}",
            remedy="Make it with distribute_tensor, or give DTensor.from_local its shape and stride.",
        )
    return Held(tensor.shape, tensor.dtype, local.device, parts, tensor.requires_grad, local, _is_replicated(tensor))


_BOXES: WeakKeyDictionary[Any, dict[Any, tuple[Box, ...]]] = WeakKeyDictionary()
"""Mesh -> shape, placements and the coordinate of this rank -> boxes, which torch works out for every tensor anew."""


def _boxes(tensor: Any, name: str) -> tuple[Box, ...]:
    """Where the local tensor of a DTensor belongs. Torch says it; nowhere on a rank outside of the mesh."""
    here = tensor.device_mesh.get_coordinate()
    if here is None:
        return ()
    known = _BOXES.setdefault(tensor.device_mesh, {})
    key = (tensor.shape, tuple(tensor.placements), tuple(here))
    if key not in known:
        why = _unclear(tensor)
        if why:
            raise UsageError(
                f"{name or 'a DTensor'} is laid out as {tuple(tensor.placements)} over a mesh of "
                f"{tuple(tensor.device_mesh.shape)}: {why}",
                remedy="Redistribute it before saving or restoring: tensor.redistribute(placements=[...]).",
            )
        chunks = tensor.__create_chunk_list__()
        known[key] = tuple(Box(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in chunks)
    return known[key]


def _is_replicated(tensor: Any) -> bool:
    """Whether other ranks may have the same elements: some of the DTensor's mesh, or of another mesh like it."""
    pairs = zip(tensor.placements, tensor.device_mesh.shape, strict=True)
    within = any(placement.is_replicate() and size > 1 for placement, size in pairs)
    return within or tensor.device_mesh.size() < torch.distributed.get_world_size()


def _laid_out_alike(param: Any, value: Any) -> bool:
    """Whether a DTensor of an optimizer has its elements where its parameter has them."""
    if not (is_shared_out(param) and is_shared_out(value)):
        return False
    return bool(
        (param.shape, param.placements) == (value.shape, value.placements) and param.device_mesh == value.device_mesh
    )


def _beside(own: Any, value: Any) -> Any:
    """Such a DTensor as its parameter is seen: asking torch where each of its parts lies would take longer."""
    local = local_of(value)
    if not isinstance(own, Held):
        return local
    parts = tuple((box, local) for box in own.boxes)
    return Held(own.shape, value.dtype, local.device, parts, value.requires_grad, local, own.replicated)


def _unclear(tensor: Any) -> str:
    """Why the local tensor of a DTensor is no box of the whole; "" where it is one."""
    if any(placement.is_partial() for placement in tensor.placements):
        return "each rank has a summand of its values and not a part of them"
    sizes = tensor.device_mesh.shape
    dims = [placement.dim for placement in tensor.placements if hasattr(placement, "dim")]
    if len(set(dims)) < len(dims) and not hasattr(sys.modules[type(tensor.placements[0]).__module__], "_StridedShard"):
        return f"torch {torch.__version__} does not tell which of two meshes cut one dimension first"
    for number, placement in enumerate(tensor.placements):
        factor = getattr(placement, "split_factor", None)
        if factor is None or sizes[number] == 1:
            continue
        later = [
            n for n in range(number + 1, len(sizes)) if getattr(tensor.placements[n], "dim", None) == placement.dim
        ]
        if factor != torch.Size([sizes[n] for n in later]).numel():
            return "each rank has elements that do not lie side by side"
    return ""


def local_of(value: Any) -> Any:
    """The memory of this process behind a value: its local tensor where it is spread over ranks."""
    if type(value) in _TORCHS:
        return value
    if isinstance(value, Held):
        return value.local
    if not is_shared_out(value):
        return value
    with torch.no_grad():  # detaching the DTensor itself takes twenty times as long
        return value.to_local().detach()


def prepare(place: Place) -> None:
    """Have a sharded module hold its sharded parameters, as its own hooks do before a state dict; on this rank only."""
    for wrapper in place.wrappers:
        handle = getattr(wrapper, "_handle", None) if _is_fsdp1(wrapper) else None
        if handle is not None:
            note_flat(handle)
    if _is_fsdp2(type(place.module)):  # type: ignore[arg-type]
        for group in _groups(place.module):
            refuse_busy(group, "fully_shard")
        place.module.reshard()  # type: ignore[operator]


@lru_cache(maxsize=512)
def _is_fsdp2(kind: type) -> bool:
    return any(cls.__name__ == "FSDPModule" and cls.__module__.startswith("torch.") for cls in kind.__mro__)


def _groups(module: Any) -> list[Any]:
    """What fully_shard keeps for the parameters of one module, as torch of any version has it."""
    state = module._get_fsdp_state()
    several = getattr(state, "_fsdp_param_groups", None)
    found = [getattr(state, "_fsdp_param_group", None)] if several is None else list(several)
    return [group for group in found if group is not None]


def _is_fsdp1(module: nn.Module) -> bool:
    names = [c.__name__ for c in type(module).__mro__ if c.__module__.startswith("torch.distributed.")]
    return "FullyShardedDataParallel" in names


def refuse_move(label: str, module: nn.Module, device: torch.device) -> None:
    """Raise DeviceError where parameters that ranks share would be taken from the device of their mesh."""
    stays = [name for name, param in module.named_parameters() if _would_leave(param, device)]
    if stays:
        raise DeviceError(
            f"model_device={device} would move {listing(stays)} of {label}, which ranks share: such parameters stay on "
            "the device of their mesh",
            remedy="Leave model_device out: restore fills them where they are.",
        )


def _would_leave(param: Any, device: torch.device) -> bool:
    if is_shared_out(param):
        mesh = param.device_mesh
        there = torch.device(mesh.device_type) if param.device.type == "meta" else param.device
        return mesh.size() > 1 and not _is_on(there, device)
    spread = is_flat(param) and any(piece.spread for piece in pieces(param))
    return (spread or piece_of(param) is not None) and not _is_on(param.device, device)


def _is_on(there: torch.device, asked: torch.device) -> bool:
    """Whether a device is the one that was asked for; either may leave its number open."""
    return there.type == asked.type and (None in (there.index, asked.index) or there.index == asked.index)


def keys_of(param: torch.Tensor) -> list[Key]:
    """The keys of all that a parameter of an optimizer stands for."""
    return [(id(param), number) for number in numbers(param)] if is_flat(param) else [(id(param), 0)]


def seats(param: torch.Tensor) -> list[Seat]:
    """All that a parameter of an optimizer stands for, in its order."""
    if is_ordinary(param):
        return [Seat((id(param), 0), param, param)]
    if is_flat(param):
        found = {piece.number: piece for piece in reversed(list(pieces(param)))}
        memory = memory_of(param)
        return [Seat((id(param), n), param, found[n].cut(memory), found[n]) for n in sorted(found)]
    return [Seat((id(param), 0), param, whole(param), window=piece_of(param))]


def group_seats(group: Mapping[str, Any]) -> list[Seat]:
    """The seats of one parameter group, in its order."""
    return [seat for param in group["params"] for seat in seats(param)]


def state_of(optimizer: Optimizer, seat: Seat) -> dict[str, Any]:
    """The state of a seat that exists and can be looked at in place; nothing for a piece of a FlatParameter."""
    if seat.piece is not None:
        return {}
    state = stepping(optimizer).state.get(seat.owner)
    return {k: seat.seen(v) for k, v in state.items()} if state else {}


def fresh(seat: Seat, dtype: torch.dtype, device: torch.device) -> Held:
    """Memory for state of a parameter that is spread over ranks, one element for each of the rank's own; not set."""
    held: Held = seat.tensor
    own = seat.piece or seat.window
    if own is not None:
        return own.alone().cut(torch.empty(own.stop - own.first, dtype=dtype, device=device))  # type: ignore[no-any-return]
    local = torch.empty_like(held.local, dtype=dtype, device=device, requires_grad=False)  # type: ignore[arg-type]
    return Held(held.shape, dtype, device, tuple((box, local) for box in held.boxes), local=local)


def in_form_of(live: Any, held: Held) -> Any:
    """What this rank has of a tensor as a DTensor that is laid out as the live one."""
    local = held.parts[0][1] if held.parts else torch.empty_like(local_of(live), dtype=held.dtype)
    sizes = {"shape": live.shape, "stride": live.stride()}
    return type(live).from_local(local, live.device_mesh, live.placements, run_check=False, **sizes)


def gather(optimizer: Optimizer, entries: Mapping[int, Mapping[str, Any]]) -> dict[torch.Tensor, dict[str, Any]]:
    """State by position of the seat -> state by parameter of the optimizer, in the form that its parameters have."""
    everyone = [seat for group in optimizer.param_groups for seat in group_seats(group)]
    made: dict[torch.Tensor, dict[str, Any]] = {}
    parts: dict[torch.Tensor, list[tuple[Piece, Mapping[str, Any]]]] = {}
    present = stepping(optimizer).state
    for position, entry in entries.items():
        seat = everyone[position]
        if seat.piece is not None:
            parts.setdefault(seat.owner, []).append((seat.piece, entry))
        elif seat.window is None or seat.owner.numel():  # FSDP steps no parameter of which a rank has nothing
            existing = present.get(seat.owner, {})
            made[seat.owner] = {key: _own_form(seat, value, existing.get(key)) for key, value in entry.items()}
    return made | {flat: joined(flat, found) for flat, found in parts.items()}


def _own_form(seat: Seat, value: Any, existing: Any) -> Any:
    """A state tensor in the form of its parameter; counters stay plain tensors, as optimizers make them."""
    param: Any = seat.owner
    if existing is None and type(value) is torch.Tensor and not is_shared_out(param):  # what most are
        return value
    local = local_of(value)
    if not isinstance(local, torch.Tensor) or not (isinstance(value, Held) or local.dim()):
        return local
    if isinstance(existing, torch.Tensor) and local_of(existing).data_ptr() == local.data_ptr():
        return existing
    if not is_shared_out(param):
        return local
    if isinstance(value, Held):
        return in_form_of(param, value)
    placements = param.placements if value.shape == param.shape else None
    return type(param).from_local(value, param.device_mesh, placements, run_check=False)


def state_dict(optimizer: Optimizer) -> dict[str, Any]:
    """The optimizer's state dict with tensors as the model has them, one entry for each parameter that it has."""
    if is_redundancy(optimizer):
        return own_parts(optimizer)
    packed = optimizer.state_dict()
    params = [param for group in optimizer.param_groups for param in group["params"]]
    if not any(is_flat(p) or is_shared_out(p) or piece_of(p) is not None for p in params):
        return packed
    names = [i for group in packed["param_groups"] for i in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    renumbered: dict[Any, list[int]] = {}
    for identity, param in zip(names, params, strict=True):
        renumbered[identity] = []
        for seat in seats(param):
            number = sum(map(len, renumbered.values()))
            renumbered[identity].append(number)
            if identity in packed["state"] and not _is_elsewhere(seat):
                state[number] = {key: _cut(seat, key, v) for key, v in packed["state"][identity].items()}
    groups = [
        {**{k: whole(v) for k, v in group.items()}, "params": [n for i in group["params"] for n in renumbered[i]]}
        for group in packed["param_groups"]
    ]
    return {**packed, "state": state, "param_groups": groups}


def _is_elsewhere(seat: Seat) -> bool:
    """Whether other ranks have all elements of a parameter: FSDP steps it there alone, and its counters stand there."""
    return seat.window is not None and not seat.owner.numel() and bool(math.prod(seat.window.shape))


def _cut(seat: Seat, key: str, value: Any) -> Any:
    odd = isinstance(value, torch.Tensor) and value.dim() and value.shape != memory_of(seat.owner).shape
    if odd and (seat.piece is not None or seat.window is not None):
        raise UsageError(
            f"optimizer state {key!r} of FSDP's flat memory has shape {tuple(value.shape)}, and not one value for each "
            "of its elements: it cannot be told which parameter it belongs to",
            remedy="Wrap with fully_shard, or, on one rank, with FullyShardedDataParallel(..., use_orig_params=True).",
        )
    return seat.seen(value)
