"""One plain file into a sharded model that never existed whole: each rank reads the bytes of its own slices.

    torchrun --nproc-per-node 2 examples/one_file_into_fsdp2.py weights.pt
    torchrun --nproc-per-node 2 examples/one_file_into_fsdp2.py weights.safetensors

The file may come from anywhere: torch.save, safetensors, the Hub. No rank holds the whole model, and none sends it to
the others. Here rank 0 makes one first, so that there is something to read; at the end the shards are held against it.
"""

from __future__ import annotations

import sys

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import unmoor


def build() -> nn.Module:
    return nn.Sequential(nn.Embedding(1000, 64), nn.Linear(64, 250), nn.Linear(250, 30))


def main(path: str) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        unmoor.save(path, build().state_dict(), group=None)  # this rank alone
    dist.barrier()

    with torch.device("meta"):
        model = build()  # no memory yet
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    report = unmoor.restore(path, model=model, model_device="cpu", rng=False)  # "auto": each rank's own GPU

    size = sum(param.numel() * param.element_size() for param in model.parameters())
    print(f"rank {rank} of {world}: read {report.nbytes:,} of {size:,} bytes", flush=True)
    whole = unmoor.load(path)
    for name, param in model.named_parameters():
        assert torch.equal(param.full_tensor(), whole[name]), name
    print(f"rank {rank} of {world}: every shard is the file's", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
