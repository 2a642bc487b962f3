"""DeepSpeed: `save_checkpoint` folders of ZeRO stages 0 to 3, each of two ranks.

    python -m tests.dialects.writers.deepspeed OUT VARIANT        (started by torch.distributed.run)

DeepSpeed saves no random streams, so the model has no dropout; it does not share buffers between ranks either, so the
model has a norm without any.
"""

import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

from tests.dialects.training import AFTER, BEFORE, adamw, batch, halving, keep, leave, seed, unbuffered


def in_groups(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Two groups of parameters, and an embedding that is frozen."""
    model.embed.requires_grad_(False)
    free = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in free if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in free if p.ndim < 2], "weight_decay": 0.0, "lr": 0.02},
    ]
    return torch.optim.AdamW(groups, lr=0.01)


def started(stage: int, *, bf16: bool, groups: bool) -> deepspeed.DeepSpeedEngine:
    """An engine over PyTorch's own AdamW, with the scheduler that it steps."""
    settings = {
        "train_micro_batch_size_per_gpu": 8,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage, **({"stage3_param_persistence_threshold": 0} if stage == 3 else {})},
        "bf16": {"enabled": bf16},
        "steps_per_print": 1000,
    }
    seed(1)
    model = unbuffered()
    optimizer = in_groups(model) if groups else adamw(model)
    scheduler = halving(optimizer)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=scheduler, config=settings)
    return engine


def gathered(zero: Any, kind: str) -> dict[int, torch.Tensor]:
    """The state of each parameter of stages 1 and 2, by its id, from the flat parts that the ranks hold.

    DeepSpeed's own function for one parameter knows the state of the first group only.
    """
    found = {}
    for members, part in zip(zero.bit16_groups, zero.single_partition_of_fp32_groups, strict=True):
        own = zero.optimizer.state[part][kind]
        parts = [torch.empty_like(own) for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather(parts, own)
        sizes = [parameter.numel() for parameter in members]
        pieces = torch.cat(parts)[: sum(sizes)].split(sizes)
        found |= {id(parameter): piece for parameter, piece in zip(members, pieces, strict=True)}
    return found


def main(folder: Path, variant: str) -> None:
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # gloo alone: nothing to compile
    deepspeed.init_distributed("gloo")
    rank = torch.distributed.get_rank()
    stage = int(variant[len("zero")])
    engine = started(stage, bf16=variant.endswith("bf16"), groups=variant.endswith("groups"))
    losses, rates = [], []
    for step in range(BEFORE + AFTER):
        if step == BEFORE:
            engine.save_checkpoint(str(folder / "saved"), client_state={"words": 8 * step})
        loss = engine(**batch(step, rank))["loss"]
        engine.backward(loss)
        rates.append(engine.get_lr()[0])
        engine.step()
        losses.append(loss.item())
    model, state = {}, {}
    free = {name: p for name, p in engine.module.named_parameters() if p.requires_grad}
    kinds = ("exp_avg", "exp_avg_sq")
    for name, parameter in free.items():
        model[name] = safe_get_full_fp32_param(parameter).clone() if stage else parameter.detach().clone()
        if stage == 3:
            state[name] = {kind: safe_get_full_optimizer_state(parameter, kind) for kind in kinds}
        elif stage == 0:
            state[name] = {kind: engine.optimizer.state[parameter][kind] for kind in kinds}
    if stage in (1, 2):
        state = {name: {kind: gathered(engine.optimizer, kind)[id(p)] for kind in kinds} for name, p in free.items()}
    if rank == 0:
        shapes = {name: values.shape for name, values in model.items()}
        state = {
            name: {k: v.reshape(shapes[name]).clone() for k, v in values.items()} for name, values in state.items()
        }
        keep(folder, {"model": model, "optimizer": state, "losses": losses[BEFORE:], "rates": rates[BEFORE:]})
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
    leave()
