"""DeepSpeed goes on with folders that were cut for another number of ranks: what it loaded, and what came of it.

    python -m tests.dialects.writers.deepspeed_resumed OUT VARIANT=FOLDER ...       (started by torch.distributed.run)

Each run takes the batches of the two ranks that saved, in as many parts as there are ranks now. Its loss of the first
rank's batch is taken before every step.
"""

import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

from tests.dialects.training import AFTER, BEFORE, batch, leave
from tests.dialects.writers.deepspeed import gathered, started
from tests.dialects.writers.deepspeed_layouts import LAYOUTS, engine_of
from tests.dialects.writers.deepspeed_layouts import held as held_in_one_group

KINDS = ("exp_avg", "exp_avg_sq")


def part(step: int, rank: int, world: int) -> dict[str, torch.Tensor]:
    """This rank's part of what both ranks had."""
    halves = [batch(step, other) for other in (0, 1)]
    whole = {name: torch.cat([half[name] for half in halves]) for name in halves[0]}
    each = len(whole["labels"]) // world
    return {name: values[rank * each : (rank + 1) * each] for name, values in whole.items()}


def held(engine: Any, stage: int) -> dict[str, dict[str, torch.Tensor]]:
    """Master weights and moments of every parameter, whole."""
    found = {}
    free = {name: p for name, p in engine.module.named_parameters() if p.requires_grad}
    moments = {kind: gathered(engine.optimizer, kind) for kind in KINDS} if stage in (1, 2) else {}
    for name, parameter in free.items():
        own = {"weight": safe_get_full_fp32_param(parameter)}
        for kind in KINDS:
            flat = moments[kind][id(parameter)] if moments else safe_get_full_optimizer_state(parameter, kind)
            own[kind] = flat.reshape(own["weight"].shape)
        found[name] = {kind: value.clone() for kind, value in own.items()}
    return found


def resumed(variant: str, folder: str, rank: int, world: int) -> dict[str, Any]:
    """What one run held after loading, its losses, and its learning rates."""
    if variant in LAYOUTS:
        engine = engine_of(variant)
    else:
        stage = int(variant[len("zero")])
        engine = started(stage, bf16=variant.endswith("bf16"), groups=variant.endswith("groups"))
    path, client = engine.load_checkpoint(folder)
    assert path is not None
    loaded = held_in_one_group(engine) if variant in LAYOUTS else held(engine, stage)
    losses, rates = [], []
    for step in range(BEFORE, BEFORE + AFTER):
        with torch.no_grad():
            losses.append(engine(**batch(step))["loss"].item())
        engine.backward(engine(**part(step, rank, world))["loss"])
        rates.append(engine.get_lr()[0])
        engine.step()
    engine.destroy()
    return {"loaded": loaded, "losses": losses, "rates": rates, "words": client["words"]}


def main(out: Path, runs: dict[str, str]) -> None:
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # gloo alone: nothing to compile
    deepspeed.init_distributed("gloo")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    found = {variant: resumed(variant, folder, rank, world) for variant, folder in runs.items()}
    if rank == 0:
        torch.save(found, out)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), dict(argument.split("=", 1) for argument in sys.argv[2:]))
    leave()
