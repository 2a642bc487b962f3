"""Training goes on while a thread writes the checkpoint.

    torchrun --nproc-per-node 2 examples/async_save.py run

The state is copied to the CPU first, so that what is written is the run at the time of the call, whatever training does
meanwhile. A save that fails in the background raises at the next save, or where it is waited for, and the older
checkpoint stays.
"""

from __future__ import annotations

import sys

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import unmoor


def main(path: str) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = fully_shard(nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    pending = None
    for step in range(1, 7):
        optimizer.zero_grad()
        model(torch.randn(4, 64)).pow(2).mean().backward()
        optimizer.step()
        if step % 2 == 0:
            pending = unmoor.save(path, model=model, optimizer=optimizer, step=step, background=True)  # all ranks

    receipt = pending.wait()  # before the process group goes
    print(f"rank {rank} of {world}: {receipt.nbytes:,} bytes are on the disk", flush=True)

    before = [param.to_local().clone() for param in model.parameters()]
    with torch.no_grad():
        for param in model.parameters():
            param.zero_()
    report = unmoor.restore(path, model=model, optimizer=optimizer)
    after = [param.to_local() for param in model.parameters()]
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
    print(f"rank {rank} of {world}: step {report.extra['step']} is back, bit for bit", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
