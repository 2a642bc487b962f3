"""torchtitan: what its CheckpointManager saves of its optimizers and schedulers, of one process and of two ranks.

    python -m tests.dialects.writers.torchtitan OUT VARIANT

Manager, containers and their layout are torchtitan's; the loop around them is a plain one. It saves no random streams.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig

from tests.dialects.training import AFTER, BEFORE, Run, batch, keep, leave, seed, unbuffered

from .gathering import whole


class State:
    """The counters of torchtitan's trainer."""

    def __init__(self) -> None:
        self.step, self.ntokens_seen = 0, 0

    def state_dict(self) -> dict[str, Any]:
        return {"step": torch.tensor(self.step), "ntokens_seen": torch.tensor(self.ntokens_seen)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.ntokens_seen = int(state["step"]), int(state["ntokens_seen"])


def main(folder: Path, variant: str) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "29512")):
        os.environ.setdefault(name, value)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    seed(1)
    model = unbuffered()
    if variant == "ranks":
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    kinds = {"lr": 0.01, "weight_decay": 0.1}
    groups = [
        ParamGroupConfig(
            pattern=r"bias$|norm", optimizer_name="AdamW", optimizer_kwargs={**kinds, "weight_decay": 0.0}
        ),
        ParamGroupConfig(pattern=r".*", optimizer_name="AdamW", optimizer_kwargs=kinds),
    ]
    config = OptimizersContainer.Config(param_groups=groups, implementation="for-loop")
    optimizers = OptimizersContainer(config, model_parts=[model])
    settings = LRSchedulersContainer.Config(warmup_steps=2, decay_type="linear")
    schedulers = settings.build(optimizers=optimizers, training_steps=BEFORE + AFTER)
    state = State()
    manager = CheckpointManager(
        CheckpointManager.Config(enable=True, folder="saved", interval=BEFORE, keep_latest_k=0),
        dataloader=None,
        model_parts=[model],
        optimizers=optimizers,
        lr_schedulers=schedulers,
        states={"train_state": state},
        sd_adapter=None,
        base_folder=str(folder),
    )
    (optimizer,) = optimizers.optimizers
    run = Run(model, optimizer)
    for step in range(BEFORE + AFTER):
        if step == BEFORE:
            manager.save(step)
        optimizers.zero_grad()
        words = batch(step, rank)
        loss = model(**words)["loss"]
        loss.backward()
        run.rates.append(optimizer.param_groups[0]["lr"])
        optimizers.step()
        schedulers.step()
        state.step, state.ntokens_seen = step + 1, state.ntokens_seen + words["input_ids"].numel()
        run.losses.append(loss.item())
    result = whole(run, losses=run.losses, rates=run.rates)
    if rank == 0:
        keep(folder, result)
    manager.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
    leave()
