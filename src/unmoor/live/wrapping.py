"""What wraps a model, by a word: the wrappers of torch that a run is resumed under."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from unmoor.errors import UsageError

__all__ = ["NEED_GROUP", "WORDS", "wrapper_of"]

WORDS: Final = ("ddp", "fsdp2", "compile", "data_parallel")
"""The words that are known; `compile:eager` names the backend of torch.compile."""

NEED_GROUP: Final = ("ddp", "fsdp2")
"""Those that want a process group, also where there is one process."""


def wrapper_of(word: str) -> Callable[[Any], Any]:
    """The function that wraps a model as `word` says. Raises UsageError for a word that is not known."""
    name, _, backend = word.partition(":")
    if name == "compile":
        return partial(torch.compile, backend=backend or "inductor")
    known: dict[str, Callable[[Any], Any]] = {"ddp": _ddp, "fsdp2": _fsdp2, "data_parallel": _data_parallel}
    found = known.get(word)
    if found is None:
        words = ", ".join(map(repr, WORDS))
        raise UsageError(f"wrap={word!r} is none of {words}", remedy='A function of yours: wrap="module:function".')
    return found


def _device(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _data_parallel(model: nn.Module) -> nn.Module:
    """Over all devices of the model's type; one on the CPU stays there, also where there are others."""
    made = nn.DataParallel(model)
    if _device(model).type == "cpu":
        made.device_ids = []
    return made


def _ddp(model: nn.Module) -> nn.Module:
    device = _device(model)
    ids = None if device.type == "cpu" or device.index is None else [device.index]
    return nn.parallel.DistributedDataParallel(model, device_ids=ids)


def _fsdp2(model: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh

    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:  # before torch 2.6
        from torch.distributed._composable.fsdp import fully_shard  # type: ignore[attr-defined]
    mesh = init_device_mesh(_device(model).type, (torch.distributed.get_world_size(),))
    fully_shard(model, mesh=mesh)
    return model
