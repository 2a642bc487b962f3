"""A sharded run that resumes under any number of ranks: each rank writes its shards, each reads what it holds.

    torchrun --nproc-per-node 2 examples/fsdp2_save_resume.py run     # starts; run is a folder
    torchrun --nproc-per-node 3 examples/fsdp2_save_resume.py run     # goes on with three ranks

Each line ends with a digest of the whole weights and optimizer state, gathered by torch: what one run saves, the next
one resumes with, though no rank of either ever held the whole model while saving or restoring.
"""

from __future__ import annotations

import os
import sys
import zlib

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import unmoor

STEPS = 4


def main(path: str) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    model = nn.Sequential(nn.Linear(7, 13), nn.ReLU(), nn.Linear(13, 1))  # sizes that no world divides
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step, say = 0, f"rank {rank} of {world}:"

    if os.path.exists(path):
        report = unmoor.restore(path, model=model, optimizer=optimizer)  # all ranks call it
        step = report.extra["step"]
        print(f"{say} resumed at step {step}, {digest(model, optimizer)}", flush=True)
    else:
        torch.manual_seed(rank)  # saved and restored with the rest, for each rank

    for _ in range(STEPS):
        batch = torch.randn(6, 7)
        optimizer.zero_grad()
        (model(batch) - batch.sum(1, keepdim=True)).pow(2).mean().backward()
        optimizer.step()
        step += 1

    unmoor.save(path, model=model, optimizer=optimizer, step=step)  # all ranks call it
    print(f"{say} saved at step {step}, {digest(model, optimizer)}", flush=True)
    dist.destroy_process_group()


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    found = 0
    for param in model.parameters():
        for tensor in (param.detach(), optimizer.state[param]["exp_avg"]):
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            found = zlib.crc32(whole.numpy().tobytes(), found)
    return f"{found:08x}"


if __name__ == "__main__":
    main(sys.argv[1])
