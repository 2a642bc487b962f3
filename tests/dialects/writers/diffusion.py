"""The triple of guided-diffusion: model, optimizer and averaged model, a file each, by the loop it inherited.

    python -m tests.dialects.writers.diffusion OUT VARIANT

The loop is improved-diffusion's, from which guided-diffusion took its own: names and content of the files are the
same. Its schedule sampler draws from numpy, whose state it does not save: the data seeds it for each step.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

# The loop imports mpi4py to find out its ranks, which needs an MPI library; here it is alone.
MPI = SimpleNamespace(COMM_WORLD=SimpleNamespace(Get_rank=lambda: 0, Get_size=lambda: 1, rank=0, size=1))
sys.modules["mpi4py"] = ModuleType("mpi4py")
sys.modules["mpi4py"].MPI = MPI  # type: ignore[attr-defined]

from improved_diffusion_for_SMLM.improved_diffusion import logger  # noqa: E402
from improved_diffusion_for_SMLM.improved_diffusion.train_util import TrainLoop  # noqa: E402

from tests.dialects.training import AFTER, BEFORE, Denoiser, Noising, keep, leave, on_cpu, pictures, seed  # noqa: E402

LAST = BEFORE + AFTER
"""The loop counts from 0 and saves after the step of that number."""


def data() -> Iterator[tuple[torch.Tensor, dict[str, torch.Tensor]]]:
    for step in range(LAST + 1):
        np.random.seed(step)
        yield pictures(step), {}


def main(folder: Path) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    (folder / "run").mkdir()
    logger.configure(dir=str(folder / "run"), format_strs=[])
    seed(1)
    model = Denoiser()
    options: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.1, "ema_rate": "0.9", "lr_anneal_steps": LAST + 4}
    loop = TrainLoop(
        model=model,
        diffusion=Noising(),
        data=data(),
        batch_size=8,
        microbatch=-1,
        log_interval=100,
        save_interval=BEFORE,
        resume_checkpoint="",
        **options,
    )
    loop.run_loop(LAST)
    names = [name for name, _ in model.named_parameters()]
    result = {
        "model": on_cpu(dict(model.state_dict())),
        "ema": dict(zip(names, map(on_cpu, loop.ema_params[0]), strict=True)),
        "optimizer": {n: on_cpu(dict(loop.opt.state[p])) for n, p in model.named_parameters()},
        "rate": loop.opt.param_groups[0]["lr"],
    }
    for later in (folder / "run").glob(f"*{LAST:06}.pt"):
        later.unlink()  # the run that is resumed did not get that far
    keep(folder, result)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    leave()
