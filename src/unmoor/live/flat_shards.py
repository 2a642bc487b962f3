"""FSDP's FlatParameter: many parameters in one run of memory, which several ranks may share out as flat ranges.

A range is cut into boxes of its parameter. With use_orig_params=True the model keeps its parameters, as flat windows of
the rank's share; which parameter such a window is of is noted when its module is looked at.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from unmoor.errors import UsageError
from unmoor.values.boxes import Box, flat_boxes

from .held import Held

__all__ = ["Piece", "is_flat", "joined", "memory_of", "note_flat", "numbers", "piece_of", "pieces", "refuse_busy"]


class Piece(NamedTuple):
    """One parameter of the model inside a FlatParameter. Those that share memory have the same number.

    `stride` is None for a contiguous one. This rank has its elements `first` to `stop`, counted as they lie in memory,
    from element `start` of the rank's share on; `spread` tells that several ranks share the FlatParameter, `replicated`
    that others have the same share.
    """

    module: nn.Module
    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None
    number: int
    start: int
    first: int
    stop: int
    spread: bool
    replicated: bool

    def cut(self, flat: torch.Tensor) -> Any:
        """What is this parameter's of a tensor laid out like the share: a view in its shape, or Held."""
        window = flat.detach()[self.start : self.start + self.stop - self.first]
        if self.spread:
            return self._held(window, requires_grad=flat.requires_grad)
        return window.view(self.shape) if self.stride is None else window.as_strided(self.shape, self.stride)

    def alone(self) -> Piece:
        """The piece of a tensor that holds nothing else."""
        return self._replace(start=0)

    def _held(self, window: torch.Tensor, *, requires_grad: bool) -> Held:
        order = self._order()
        back = sorted(range(len(order)), key=order.__getitem__)
        parts, begin = [], 0
        for box in flat_boxes(tuple(self.shape[axis] for axis in order), self.first, self.stop):
            view = window[begin : begin + box.numel].view(box.sizes).permute(back)
            begin += box.numel
            parts.append((Box(tuple(box.start[i] for i in back), tuple(box.sizes[i] for i in back)), view))
        shape, replicated = torch.Size(self.shape), self.replicated
        return Held(shape, window.dtype, window.device, tuple(parts), requires_grad, window, replicated)

    def _order(self) -> list[int]:
        """The dimensions, from the one that reaches farthest in memory on."""
        axes = range(len(self.shape))
        if self.stride is None:
            return list(axes)
        order = sorted(axes, key=lambda axis: (-self.stride[axis], axis))  # type: ignore[index]
        step = 1
        for axis in reversed(order):
            if self.shape[axis] != 1 and self.stride[axis] != step:
                raise UsageError(
                    f"{self.name} of {type(self.module).__name__} has gaps in memory, and FSDP spreads it over ranks: "
                    "its elements cannot be told apart",
                    remedy="Make the parameter contiguous before FullyShardedDataParallel wraps its module.",
                )
            step *= self.shape[axis]
        return order


def is_flat(tensor: Any) -> bool:
    """Whether a parameter is FSDP's FlatParameter: many parameters in one piece of memory."""
    return bool(getattr(tensor, "_is_flat_param", False))


def memory_of(flat: Any) -> torch.Tensor:
    """The memory that this rank keeps for a FlatParameter: its share, or all of it."""
    share: torch.Tensor | None = getattr(flat, "_local_shard", None)
    own: torch.Tensor = flat if share is None else share
    return own.detach()


def numbers(flat: Any) -> range:
    """The numbers of the parameters in a FlatParameter."""
    return range(len(flat._param_infos))


def pieces(flat: Any) -> Iterator[Piece]:
    """The parameters in a FlatParameter, in its order; parameters that share memory with one of them follow it."""
    contiguous = getattr(flat, "_contiguities", None) or [True] * len(flat._param_infos)
    strides = getattr(flat, "_strides", None) or [None] * len(flat._param_infos)
    shared = list(getattr(flat, "_shared_param_infos", None) or ())
    common = (_is_spread(flat), flat in _HYBRID)
    for number, own in enumerate(_ranges(flat)):
        info, shape = flat._param_infos[number], tuple(flat._shapes[number])
        stride = None if contiguous[number] else tuple(strides[number])
        yield Piece(info.module, info.param_name, shape, stride, number, *own, *common)
        for other in shared:
            if (other.prim_module, other.prim_param_name) == (info.module, info.param_name):
                yield Piece(other.module, other.param_name, shape, stride, number, *own, *common)


def _ranges(flat: Any) -> Iterator[tuple[int, int, int]]:
    """For each parameter: where its part begins in the share, and which of its elements that is.

    Padding stands between parameters, and behind the last on the last ranks.
    """
    if _is_spread(flat):
        for info in flat._shard_param_infos:
            here = info.in_shard
            first = info.intra_param_start_idx if here else 0
            yield (info.offset_in_shard, first, info.intra_param_end_idx + 1) if here else (0, 0, 0)
        return
    start = 0
    for size, padding in zip(flat._numels_with_padding, flat._is_padding_mask, strict=True):
        if not padding:
            yield start, 0, size
        start += size


def _is_spread(flat: Any) -> bool:
    """Whether several ranks share a FlatParameter. FSDP's handle knows; a share of one rank has all the elements."""
    noted = _FLATS.get(flat)
    if noted is not None:
        return bool(noted)
    share = getattr(flat, "_sharded_size", None)
    return share is not None and share.numel() < flat._unpadded_unsharded_size.numel()


_FLATS: Any = WeakTensorKeyDictionary()
"""FlatParameter -> whether it is spread over ranks, of modules that were looked at."""

_HYBRID: Any = WeakTensorKeyDictionary()
"""FlatParameters of which several groups of ranks may have a copy each."""

_ORIGINALS: Any = WeakTensorKeyDictionary()
"""Parameter that the model kept -> its FlatParameter (weakly), and its number there."""


def note_flat(handle: Any) -> None:
    """Note what an FSDP handle knows of its FlatParameter, which then holds the rank's share and nothing else.

    Local to this process: unsharded memory that waits for a backward pass is dropped, as after that pass.

    Raises UsageError in the middle of a pass and inside of summon_full_params.
    """
    flat = handle.flat_param
    spread = bool(handle.uses_sharded_strategy)
    if spread:
        refuse_busy(handle, "FullyShardedDataParallel")
    if spread and getattr(flat, "_local_shard", None) is not None:
        handle.reshard(free_unsharded_flat_param=True)
    _FLATS[flat] = spread
    if "HYBRID" in handle._sharding_strategy.name or handle.world_size < torch.distributed.get_world_size():
        _HYBRID[flat] = True
    for number, param in enumerate(getattr(flat, "_params", None) or ()):
        _ORIGINALS[param] = (weakref.ref(flat), number)


def refuse_busy(holder: Any, wrapper: str) -> None:
    """Refuse FSDP's parameters while it has them whole for a pass, or for a block that writes its own values back.

    `holder` is what keeps the parameters of one module: a handle, or a group of parameters.
    """
    state = getattr(holder, "_training_state", None)
    name = getattr(state, "name", "IDLE")
    if name != "IDLE":
        inside = "summon_full_params" if name.startswith("SUMMON") else "a forward or backward pass"
        raise UsageError(
            f"the parameters of {wrapper} are in use: {inside} has them whole, and this process's share of them stands "
            "still",
            remedy=f"Save and restore outside of {inside}.",
        )


def piece_of(param: Any) -> Piece | None:
    """What a parameter is that the model kept beside a FlatParameter which is spread over ranks; None for any other.

    Raises UsageError for one whose module was not looked at: nothing tells which elements it holds.
    """
    if not getattr(param, "_fsdp_flattened", False) or is_flat(param):
        return None
    flat, number = _ORIGINALS.get(param) or (lambda: None, 0)
    found = flat()
    if found is None and torch.distributed.get_world_size() == 1:
        return None
    if found is None:
        raise UsageError(
            "the optimizer holds parameters of FullyShardedDataParallel, and their model was not passed",
            details=("a rank's flat window of a parameter does not tell its shape",),
            remedy="Pass the model too: unmoor.restore(path, model=model, optimizer=optimizer).",
        )
    piece = next(piece for piece in pieces(found) if piece.number == number)
    return piece.alone() if piece.spread else None


def joined(flat: torch.Tensor, parts: Sequence[tuple[Piece, Mapping[str, Any]]]) -> dict[str, Any]:
    """The state of a FlatParameter from that of its parameters; padding is zero."""
    memory = memory_of(flat)
    made: dict[str, Any] = {}
    for key, value in parts[0][1].items():
        if not isinstance(value, torch.Tensor | Held) or (isinstance(value, torch.Tensor) and value.dim() == 0):
            made[key] = value
            continue
        made[key] = torch.zeros(memory.shape, dtype=value.dtype, device=value.device)
        for piece, entry in parts:
            _fill(piece.cut(made[key]), entry[key])
    return made


def _fill(target: Any, source: Any) -> None:
    if not isinstance(target, Held):
        target.copy_(source)
        return
    for (_, to), (_, values) in zip(target.parts, source.parts, strict=True):
        to.copy_(values)
