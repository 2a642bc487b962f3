"""A tensor parallel run that goes on under another number of ranks, or in one process.

    torchrun --nproc-per-node 2 examples/tensor_parallel.py run     # starts; run is a folder
    torchrun --nproc-per-node 4 examples/tensor_parallel.py run     # goes on with four ranks

Each line ends with a digest of the whole weights and optimizer state: what one run saves, the next one resumes with.
"""

from __future__ import annotations

import os
import sys
import zlib

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import unmoor

STEPS = 4


def main(path: str) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    parallelize_module(model, init_device_mesh("cpu", (world,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    step, say = 0, f"rank {rank} of {world}:"

    if os.path.exists(path):
        step = unmoor.restore(path, model=model, optimizer=optimizer).extra["step"]  # all ranks call it
        print(f"{say} resumed at step {step}, {digest(model, optimizer)}", flush=True)

    for _ in range(STEPS):
        batch = torch.randn(6, 8, generator=torch.Generator().manual_seed(step))  # tensor parallel ranks share a batch
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
            found = zlib.crc32(whole.contiguous().numpy().tobytes(), found)
    return f"{found:08x}"


if __name__ == "__main__":
    main(sys.argv[1])
