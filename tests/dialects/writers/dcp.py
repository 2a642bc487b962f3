"""torch.distributed.checkpoint: a folder of one process, and one of two ranks whose parameters are sharded.

    python -m tests.dialects.writers.dcp OUT VARIANT

The writer is PyTorch's own, with the state dicts that its state_dict module makes. No random streams are saved.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.dialects.training import AFTER, BEFORE, Run, adamw, batch, halving, keep, leave, seed, unbuffered

from .gathering import whole


def main(folder: Path, variant: str) -> None:
    ranks = variant == "ranks"
    if ranks:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if ranks else 0
    seed(1)
    model = unbuffered()
    if ranks:
        mesh = init_device_mesh("cpu", (2,))
        fully_shard(model.hidden, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = adamw(model)
    run = Run(model, optimizer, halving(optimizer))
    for step in range(BEFORE + AFTER):
        if step == BEFORE:
            of_model, of_optimizer = get_state_dict(model, optimizer)
            state = {"model": of_model, "optimizer": of_optimizer, "scheduler": run.scheduler.state_dict()}
            dcp.save({**state, "step": step}, checkpoint_id=folder / "saved")
        optimizer.zero_grad()
        loss = model(**batch(step, rank))["loss"]
        loss.backward()
        run.rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        run.scheduler.step()
        run.losses.append(loss.item())
    result = whole(run, losses=run.losses, rates=run.rates)
    if rank == 0:
        keep(folder, result)
    if ranks:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2])
    leave()
