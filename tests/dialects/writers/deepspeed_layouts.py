"""DeepSpeed: folders of two ranks whose shares lie in other ways than the defaults, each beside what its ranks held.

    python -m tests.dialects.writers.deepspeed_layouts OUT all        (started by torch.distributed.run)

Parameters in round robin order, aligned, in small sub-groups, saved elastic, and bfloat16 with gradients in float32.
"""

import sys
from itertools import accumulate
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

from tests.dialects.training import AFTER, BEFORE, adamw, batch, halving, keep, leave, seed, unbuffered

KINDS = ("exp_avg", "exp_avg_sq")

LAYOUTS: dict[str, dict[str, Any]] = {
    "robin": {"zero_optimization": {"stage": 2, "round_robin_gradients": True}},
    "aligned": {"zero_optimization": {"stage": 2, "parameter_alignment": True}, "bf16": {"enabled": True}},
    "sub_groups": {"zero_optimization": {"stage": 3, "sub_group_size": 64, "stage3_param_persistence_threshold": 20}},
    "elastic": {"zero_optimization": {"stage": 1, "elastic_checkpoint": True}},
    "accumulated": {
        "zero_optimization": {"stage": 1},
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32"},
    },
}
"""Name -> what the configuration says beside the usual."""


def engine_of(name: str) -> deepspeed.DeepSpeedEngine:
    """An engine over PyTorch's own AdamW, with the scheduler that it steps."""
    settings = {
        "train_micro_batch_size_per_gpu": 8,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 1000,
        **LAYOUTS[name],
    }
    seed(1)
    model = unbuffered()
    optimizer = adamw(model)
    scheduler = halving(optimizer)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=scheduler, config=settings)
    return engine


def held(engine: Any) -> dict[str, dict[str, torch.Tensor]]:
    """Master weights and moments of every parameter, whole.

    Put together from the flat parts: DeepSpeed's own functions look for parameters in round robin order where they
    would be without it, and know no state right after loading.
    """
    zero = engine.optimizer
    if engine.zero_optimization_stage() == 3:
        return {name: _third(parameter) for name, parameter in engine.module.named_parameters()}
    names = {id(parameter): name for name, parameter in engine.module.named_parameters()}
    found: dict[str, dict[str, torch.Tensor]] = {name: {} for name in names.values()}
    own, members, starts = _flat(zero)
    for kind, part in {"weight": own.detach(), **{kind: zero.optimizer.state[own][kind] for kind in KINDS}}.items():
        parts = [torch.empty_like(part) for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather(parts, part)
        whole = torch.cat(parts)
        for parameter, start in zip(members, starts, strict=True):
            piece = whole[start : start + parameter.numel()]
            found[names[id(parameter)]][kind] = piece.reshape(parameter.shape).clone()
    return found


def _third(parameter: torch.nn.Parameter) -> dict[str, torch.Tensor]:
    own = {"weight": safe_get_full_fp32_param(parameter)}
    own |= {kind: safe_get_full_optimizer_state(parameter, kind) for kind in KINDS}
    return {kind: value.detach().clone() for kind, value in own.items()}


def _flat(zero: Any) -> tuple[torch.Tensor, list[Any], list[int]]:
    """This rank's flat weights of the one group, its parameters in their order, and where each of them begins."""
    if hasattr(zero, "round_robin_bit16_groups"):
        starts = zero.round_robin_bit16_offsets[0]
        return zero.single_partition_of_fp32_groups[0], zero.round_robin_bit16_groups[0], starts
    members = zero.bf16_groups[0]
    starts = [0, *accumulate(parameter.numel() for parameter in members)][:-1]
    return zero.fp32_groups_flat_partition[0], members, starts


def main(folder: Path) -> None:
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # gloo alone: nothing to compile
    deepspeed.init_distributed("gloo")
    rank = torch.distributed.get_rank()
    expected = {}
    for name in LAYOUTS:
        engine = engine_of(name)
        losses = []
        for step in range(BEFORE + AFTER):
            if step == BEFORE:
                saved = held(engine)
                engine.save_checkpoint(str(folder / name), client_state={"words": 8 * step})
            loss = engine(**batch(step, rank))["loss"]
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        expected[name] = {"held": saved, "losses": losses[BEFORE:]}
        engine.destroy()
    if rank == 0:
        keep(folder, expected)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    leave()
