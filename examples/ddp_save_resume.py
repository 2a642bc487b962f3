"""A training script that resumes under any number of ranks, data position included.

    torchrun --nproc-per-node 2 examples/ddp_save_resume.py run.pt     # starts
    torchrun --nproc-per-node 3 examples/ddp_save_resume.py run.pt     # goes on with three ranks
    python examples/ddp_save_resume.py run.pt                          # goes on in one process

Each line ends with a digest of weights and optimizer state: what one run saves, all ranks of the next resume with.
"""

from __future__ import annotations

import os
import sys
import zlib

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import unmoor

GLOBAL_BATCH = 12
STEPS = 4


def main(path: str) -> None:
    if "RANK" in os.environ:  # torchrun sets it
        dist.init_process_group("gloo")
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)

    model: nn.Module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    if world > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    data = TensorDataset(torch.linspace(-1, 1, 8 * 240).view(240, 8))
    sampler = DistributedSampler(data, world, rank, shuffle=True, seed=0)
    loader = unmoor.resumable(DataLoader(data, batch_size=GLOBAL_BATCH // world, sampler=sampler))
    step, say = 0, f"rank {rank} of {world}:"

    run = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "loader": loader}
    if os.path.exists(path):
        step = unmoor.restore(path, **run).extra["step"]  # all ranks call it
        print(f"{say} resumed at step {step}, {digest(model, optimizer)}", flush=True)

    last = step + STEPS
    for (batch,) in loader:
        optimizer.zero_grad()
        loss = (model(batch) - batch.sum(1, keepdim=True)).pow(2).mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        step += 1
        if step == last:
            break

    unmoor.save(path, **run, step=step)  # all ranks call it; one of them writes one file
    print(f"{say} saved at step {step}, {digest(model, optimizer)}", flush=True)
    if world > 1:
        dist.destroy_process_group()


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    found = 0
    for param in model.parameters():
        for tensor in (param.detach(), optimizer.state[param]["exp_avg"]):
            found = zlib.crc32(tensor.numpy().tobytes(), found)
    return f"{found:08x}"


if __name__ == "__main__":
    main(sys.argv[1])
