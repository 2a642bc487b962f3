"""One rank of a run of accelerate on two, resumed through unmoor with PyTorch's own DDP.

python -m torch.distributed.run --standalone --nproc-per-node 2 -m tests.dialects.ranks CHECKPOINT OUT
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import unmoor

from .resuming import OTHER
from .training import AFTER, BEFORE, Counter, Net, Run, adamw, batch, halving, keep, leave, outcome, seed


def main(checkpoint: Path, out: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    seed(OTHER + rank)
    model = nn.parallel.DistributedDataParallel(Net())
    optimizer = adamw(model)
    run, counter = Run(model, optimizer, halving(optimizer), step=BEFORE), Counter()
    unmoor.restore(checkpoint, model=model, optimizer=optimizer, scheduler=run.scheduler, custom=counter, rng="exact")
    for _ in range(AFTER):
        words = batch(run.step, rank)
        loss = model(**words)["loss"]
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        run.rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        for _ in range(dist.get_world_size()):  # accelerate steps a scheduler once for each rank
            run.scheduler.step()
        optimizer.zero_grad()
        counter.words += words["input_ids"].numel()
        run.step += 1
        run.losses.append(loss.item())
    result = outcome(model.module, optimizer, losses=run.losses, rates=run.rates, rng=True)
    keep(out, {**result, "words": counter.words}, rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
    leave()
