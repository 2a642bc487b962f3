"""The ways in which the worlds of the matrix lay out one model over their ranks, and the run that is trained in each.

The model has an embedding whose weight the last layer shares, a BatchNorm, layers whose sizes nothing divides, and a
parameter of one element. `build(layout, rank)` makes it with other first weights for another seed. Every layout trains
on the same global batches: data parallel ranks take equal parts of them, tensor parallel ones the same part.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

__all__ = ["LAYOUTS", "Layout", "Network", "Run", "build"]

SAMPLES: Final = 12
"""Samples of a global batch: every number of data parallel ranks here divides it."""

WORDS: Final = 13


class Network(nn.Module):
    """Class scores of 13 words from three words each."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 7)
        self.first = nn.Linear(7, 13)
        self.norm = nn.BatchNorm1d(13)
        self.second = nn.Linear(13, 7)
        self.scale = nn.Parameter(torch.ones(1))
        self.head = nn.Linear(7, WORDS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.norm(self.first(self.embedding(words).sum(1))))
        return self.head(self.second(hidden) * self.scale)


def _plain(model: Network) -> nn.Module:
    return model


def _ddp(model: Network) -> nn.Module:
    return DistributedDataParallel(model)


def _fsdp2(model: Network, *, shape: tuple[int, ...] = ()) -> nn.Module:
    shape = shape or (dist.get_world_size(),)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    for part in (model.first, model.second, model):
        fully_shard(part, mesh=mesh)
    return model


def _fsdp1(model: Network) -> nn.Module:
    own = {"use_orig_params": True, "device_id": torch.device("cpu")}
    model.first = FullyShardedDataParallel(model.first, **own)
    model.second = FullyShardedDataParallel(model.second, **own)
    return FullyShardedDataParallel(model, **own)


def _tensor_parallel(model: Network) -> nn.Module:
    return _cut(model, init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",)))


def _both(model: Network) -> nn.Module:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    _cut(model, mesh["tp"])
    for part in (model.first, model.second, model):
        fully_shard(part, mesh=mesh["dp"])
    return model


def _cut(model: Network, mesh: Any) -> Network:
    """Layers by columns and rows. The tie is made again: parallelize_module gives each module its own parameter."""
    whole = {"output_layouts": Replicate()}
    plan = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), **whole),
        "first": ColwiseParallel(**whole),
        "second": RowwiseParallel(input_layouts=Replicate(), **whole),
        "head": ColwiseParallel(**whole),
    }
    parallelize_module(model, mesh, plan)
    model.head.weight = model.embedding.weight
    return model


class Scaler(torch.amp.GradScaler):
    """A scaler for an optimizer that holds DTensors and plain tensors, which torch's own cannot unscale together."""

    def _unscale_grads_(self, optimizer: Any, inv_scale: Any, found_inf: Any, _: bool) -> dict[Any, Any]:
        grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
        local = [grad.to_local() if isinstance(grad, DTensor) else grad for grad in grads]
        torch._amp_foreach_non_finite_check_and_unscale_(local, found_inf, inv_scale)
        return {found_inf.device: found_inf}


@dataclass(frozen=True, slots=True)
class Layout:
    """A world and how the model lies in it.

    `parts` is the number of data parallel ranks, each with its part of the global batch. Layouts of one `arithmetic`
    add the same numbers in the same order, so that steps are bit-equal across them.
    """

    name: str
    world: int
    parts: int
    wrap: Callable[[Network], nn.Module]
    arithmetic: str
    scaler: type[torch.amp.GradScaler] = torch.amp.GradScaler

    def part(self, rank: int) -> slice:
        """The samples of a global batch that a rank takes."""
        size = SAMPLES // self.parts
        index = rank * self.parts // self.world
        return slice(index * size, (index + 1) * size)


LAYOUTS: Final = {
    layout.name: layout
    for layout in (
        Layout("plain", 1, 1, _plain, "1"),
        Layout("DDP x2", 2, 2, _ddp, "2"),
        Layout("FSDP1 x2", 2, 2, _fsdp1, "2"),
        Layout("FSDP2 x2", 2, 2, _fsdp2, "2"),
        Layout("TP x2", 2, 1, _tensor_parallel, "TP", Scaler),
        Layout("FSDP2 x3", 3, 3, _fsdp2, "3"),
        Layout("DDP x4", 4, 4, _ddp, "4"),
        Layout("HSDP 2x2", 4, 4, partial(_fsdp2, shape=(2, 2)), "2x2"),
        Layout("FSDP2+TP 2x2", 4, 2, _both, "2xTP"),
    )
}
"""Name -> layout, by size of the world."""


@dataclass(slots=True)
class Run:
    """What one rank has of a run."""

    layout: Layout
    rank: int
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Any
    scaler: torch.amp.GradScaler
    step: int = 0

    @property
    def roles(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "scaler": self.scaler,
        }

    @property
    def inner(self) -> nn.Module:
        return self.model.module if isinstance(self.model, DistributedDataParallel) else self.model

    def buffers(self) -> dict[str, torch.Tensor]:
        """This rank's buffers, by their names in the model."""
        return {name.replace("_fsdp_wrapped_module.", ""): b for name, b in self.inner.named_buffers()}

    def train(self) -> list[float]:
        """Take a step; the losses of all samples of the global batch, in its order."""
        losses = self.losses(self.step)
        self.optimizer.zero_grad()
        self.scaler.scale(losses.mean()).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.step += 1
        return self.everyone(losses.detach())

    def losses(self, step: int) -> torch.Tensor:
        """The loss of each of this rank's samples."""
        data = torch.Generator().manual_seed(1000 + step)
        words = torch.randint(WORDS, (SAMPLES, 3), generator=data)[self.layout.part(self.rank)]
        wanted = torch.randint(WORDS, (SAMPLES,), generator=data)[self.layout.part(self.rank)]
        return cross_entropy(self.model(words), wanted, reduction="none")

    def everyone(self, losses: torch.Tensor) -> list[float]:
        """The losses of all parts of the batch."""
        if self.layout.world == 1:
            return losses.tolist()
        found = [torch.empty_like(losses) for _ in range(self.layout.world)]
        dist.all_gather(found, losses)
        return torch.cat(found[:: self.layout.world // self.layout.parts]).tolist()

    @contextmanager
    def same_statistics(self) -> Iterator[None]:
        """Every rank normalises with rank 0's running statistics, as DDP's broadcast gives them, and leaves them alone.

        Then the loss of a sample does not depend on the samples beside it, and layouts can be compared.
        """
        norms = [module for module in self.model.modules() if isinstance(module, nn.BatchNorm1d)]
        for norm in norms:
            norm.eval()
            if self.layout.world > 1:
                for buffer in norm.buffers():
                    dist.broadcast(buffer, 0)
        yield
        for norm in norms:
            norm.train()


def build(layout: Layout, rank: int, *, seed: int) -> Run:
    """A run that has taken no step. Each rank has random streams of its own."""
    torch.manual_seed(seed)
    model = layout.wrap(Network())
    torch.manual_seed(seed + rank)
    np.random.seed(seed + rank)
    random.seed(seed + rank)
    matrices = [p for name, p in model.named_parameters() if _is_matrix(name)]
    others = [p for name, p in model.named_parameters() if not _is_matrix(name)]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "lr": 0.02, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.01 + seed / 1e5)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    scaler = layout.scaler("cpu", init_scale=2.0**10 * (1 + seed), growth_interval=2)
    return Run(layout, rank, model, optimizer, scheduler, scaler)


def _is_matrix(name: str) -> bool:
    return name.endswith("weight") and "norm" not in name
