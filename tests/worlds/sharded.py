"""Models whose parameters several ranks share out, and the referee that fills them by torch's own calls alone."""

from __future__ import annotations

from functools import cache, partial
from typing import Any, Final

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

__all__ = ["LAYOUTS", "OPTIMIZERS", "Uneven", "fill", "named", "step", "trained", "whole_state"]

STEPS: Final = 3


class Uneven(nn.Module):
    """Sizes that nothing divides: seven rows, one row, three elements; a BatchNorm; a table that is used twice."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.table = nn.Embedding(8, 4)
        self.first = nn.Linear(4, 7)
        self.norm = nn.BatchNorm1d(7)
        self.second = nn.Linear(7, 6)
        self.row = nn.Parameter(torch.randn(1, 6))
        self.last = nn.Linear(6, 4, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.second(torch.tanh(self.norm(self.first(self.table(words)))))
        return self.last(hidden * self.row) @ torch.ones(4)


def batch(number: int) -> torch.Tensor:
    return torch.randint(8, (12,), generator=torch.Generator().manual_seed(number))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    """One step on the whole batch, the same on every rank."""
    loss = model(batch(number)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@cache
def _mesh(*shape: int) -> Any:
    """One mesh for every model of a process: making its groups takes longer than all that is tested here."""
    return init_device_mesh("cpu", shape, mesh_dim_names=("outer", "inner")[-len(shape) :])


def _fsdp2(model: Uneven, *, shape: tuple[int, ...] = (), dim: int = 0) -> nn.Module:
    shape = shape or (dist.get_world_size(),)
    mesh = _mesh(*shape)

    def along(param: nn.Parameter) -> Shard | None:
        return Shard(dim) if param.dim() > 1 and param.shape[dim] % shape[-1] == 0 else None

    for part in (model.first, model.second, model):
        fully_shard(part, mesh=mesh, **({"shard_placement_fn": along} if dim else {}))
    return model


def _fsdp1(model: Uneven, strategy: str, *, original: bool, shape: tuple[int, ...] = ()) -> nn.Module:
    mesh = _mesh(*shape) if shape else None
    own = {
        "use_orig_params": original,
        "sharding_strategy": ShardingStrategy[strategy],
        "device_id": torch.device("cpu"),
        "device_mesh": mesh,
    }
    model.first = FullyShardedDataParallel(model.first, **own)
    model.second = FullyShardedDataParallel(model.second, **own)
    return FullyShardedDataParallel(model, **own)


def _cut(model: Uneven, mesh: Any) -> Uneven:
    """Layers by columns and by rows of a tensor parallel mesh."""
    whole = {"output_layouts": Replicate()}
    plan = {
        "table": RowwiseParallel(input_layouts=Replicate(), **whole),
        "first": ColwiseParallel(**whole),
        "second": RowwiseParallel(input_layouts=Replicate(), **whole),
        "last": ColwiseParallel(**whole),
    }
    parallelize_module(model, mesh, plan)
    return model


def _tensor_parallel(model: Uneven) -> nn.Module:
    return _cut(model, _mesh(dist.get_world_size()))


def _both(model: Uneven) -> nn.Module:
    mesh = _mesh(2, 2)
    _cut(model, mesh["inner"])
    for part in (model.first, model.second, model):
        fully_shard(part, mesh=mesh["outer"])
    return model


LAYOUTS: Final = {
    "fsdp2": _fsdp2,
    "fsdp2 columns": partial(_fsdp2, dim=1),
    "hsdp": partial(_fsdp2, shape=(2, 2)),
    "tp": _tensor_parallel,
    "fsdp2 tp": _both,
    "fsdp1": partial(_fsdp1, strategy="FULL_SHARD", original=True),
    "fsdp1 flat": partial(_fsdp1, strategy="FULL_SHARD", original=False),
    "fsdp1 grads": partial(_fsdp1, strategy="SHARD_GRAD_OP", original=True),
    "fsdp1 grads flat": partial(_fsdp1, strategy="SHARD_GRAD_OP", original=False),
    "fsdp1 none": partial(_fsdp1, strategy="NO_SHARD", original=True),
    "fsdp1 none flat": partial(_fsdp1, strategy="NO_SHARD", original=False),
    "fsdp1 hybrid": partial(_fsdp1, strategy="HYBRID_SHARD", original=True, shape=(2, 2)),
    "fsdp1 hybrid flat": partial(_fsdp1, strategy="HYBRID_SHARD", original=False, shape=(2, 2)),
}

OPTIMIZERS: Final = {
    "AdamW": partial(torch.optim.AdamW, lr=0.01),
    "Adam foreach": partial(torch.optim.Adam, lr=0.01, amsgrad=True, foreach=True),
    "Adam fused": partial(torch.optim.Adam, lr=0.01, fused=True),
    "SGD": partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.01),
    "RMSprop": partial(torch.optim.RMSprop, lr=0.01, momentum=0.5, centered=True),
}


def trained(optimizer: str) -> tuple[Uneven, torch.optim.Optimizer]:
    """A run of one process after a few steps."""
    model = Uneven(1)
    own = OPTIMIZERS[optimizer](model.parameters())
    for number in range(STEPS):
        step(model, own, number)
    return model, own


def whole_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """A plain run's weights, buffers and state by name, in the form that torch's set_state_dict takes."""
    names = [name for name, _ in model.named_parameters()]
    packed = optimizer.state_dict()
    groups = [{**group, "params": [names[i] for i in group["params"]]} for group in packed["param_groups"]]
    state = {names[i]: dict(entry) for i, entry in packed["state"].items()}
    return {"model": dict(model.state_dict()), "optimizer": {"state": state, "param_groups": groups}}


def fill(layout: str, model: nn.Module, optimizer: torch.optim.Optimizer, whole: dict[str, Any]) -> None:
    """Put a whole state into a run of any layout by torch's own calls."""
    if layout != "fsdp2 tp":
        set_state_dict(
            model,
            optimizer,
            model_state_dict=whole["model"],
            optim_state_dict=whole["optimizer"],
            options=StateDictOptions(full_state_dict=True),
        )
        return
    buffers = dict(model.named_buffers())
    with torch.no_grad():
        for name, value in _wrapped(layout, whole["model"]).items():
            model.get_parameter(name).copy_(value)
        for name, buffer in buffers.items():
            buffer.copy_(whole["model"][name])
    params = dict(model.named_parameters())
    states = whole["optimizer"]["state"]
    for key in sorted({key for entry in states.values() for key in entry}):
        shaped = {name: entry[key] for name, entry in states.items() if entry[key].dim()}
        for name, value in _wrapped(layout, shaped).items() if shaped else ():
            optimizer.state[params[name]][key] = value
        for name in states.keys() - shaped.keys():
            optimizer.state[params[name]][key] = states[name][key].clone()


def _wrapped(layout: str, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Whole tensors cut as the layout cuts parameters of those names: torch's set_state_dict fails on two meshes."""
    model = Uneven(0)
    model.load_state_dict(values, strict=False)
    return {name: param.detach() for name, param in LAYOUTS[layout](model).named_parameters()}


def named(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters by their names without FSDP's segments, as the ranks keep them."""
    return {name.replace("_fsdp_wrapped_module.", ""): param for name, param in model.named_parameters()}
