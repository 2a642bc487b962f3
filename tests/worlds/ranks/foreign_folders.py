"""Folders of flat shares, restored by every rank of a world of another size and another layout."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import unmoor
from tests.worlds.ranks import main
from tests.worlds.ranks.flat_ranks import Network, optimizer_of


def wrapped(model: nn.Module, layout: str) -> nn.Module:
    """The model in the layout of this world."""
    if layout == "fsdp2":
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
        return model
    return DistributedDataParallel(model) if layout == "ddp" else model


def whole(value: torch.Tensor) -> torch.Tensor:
    """All of a tensor, from all ranks."""
    return (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()


def run(rank: int, world: int, folder: str, layout: str, *places: str) -> Any:
    found = []
    for place in places:
        torch.manual_seed(100 + rank)
        model = wrapped(Network(), layout)
        optimizer = optimizer_of(list(model.parameters()), 1)
        unmoor.restore(place, model=model, optimizer=optimizer, rng=False)
        named = [(name.removeprefix("module."), p) for name, p in model.named_parameters()]
        state = {name: {key: whole(value) for key, value in optimizer.state[p].items()} for name, p in named}
        held = {name.removeprefix("module."): whole(value) for name, value in model.state_dict().items()}
        found.append({"model": held, "state": state})
    return found


if __name__ == "__main__":
    main(run)
