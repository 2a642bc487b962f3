"""Folders that several ranks of torch.distributed.checkpoint wrote, each a real run over gloo in processes of its own.

    python -m tests.describe.dcp_ranks FOLDER

`FOLDERS` says what each holds; `written(factory)` gives the folder of all of them, made once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.kept import kept

FOLDERS = {
    "two": "FSDP2 over ranks 0 and 1",
    "four": "FSDP2 over four ranks, of which some have an empty share of a parameter",
    "hybrid": "FSDP2 over a mesh of 2 x 2: replicated along one dimension, sharded along the other",
    "titan": "what torchtitan writes: weights beside the other parts, the optimizer flattened",
    "grid": "DTensors on a mesh of 2 x 2 in every way of placing them",
}
"""Name of the folder and what wrote it."""

STEPS = 3
WORLD = 4


def written(factory: pytest.TempPathFactory) -> Path:
    """The folder with all of `FOLDERS`, shared by all workers; of two that make it at once one wins."""
    base = factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return kept(base / "dcp-ranks", _run_the_ranks)


def _run_the_ranks(scratch: Path) -> Path:
    made = scratch / "made"
    made.mkdir()
    code = [sys.executable, "-m", "tests.describe.dcp_ranks", str(made)]
    done = subprocess.run(code, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"the ranks failed:\n{done.stderr[-4000:]}")
    return made


def rank_main(rank: int, folder: str) -> None:
    """One rank of the run that writes all folders."""
    import torch
    from torch import distributed as dist
    from torch.distributed import checkpoint as dcp
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/../meeting", rank=rank, world_size=WORLD)
    line = init_device_mesh("cpu", (WORLD,))
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    pair = DeviceMesh("cpu", [0, 1])
    for name, mesh in (("four", line), ("hybrid", square), ("two", pair)):
        if name == "two" and rank > 1:
            continue
        tree = _trained(mesh, flat=False)
        dcp.save(tree, checkpoint_id=f"{folder}/{name}", process_group=pair.get_group() if name == "two" else None)
    dcp.save(_titan(line), checkpoint_id=f"{folder}/titan")
    dcp.save(_grid(square), checkpoint_id=f"{folder}/grid")
    dist.barrier()
    dist.destroy_process_group()


def _trained(mesh: Any, *, flat: bool) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
    from torch.distributed.fsdp import fully_shard

    from tests.runs.training import start

    run = start("AdamW", seed=4)
    fully_shard(run.model, mesh=mesh)
    run.optimizer = type(run.optimizer)(run.model.parameters(), lr=0.01, weight_decay=0.1)
    run.scheduler = type(run.scheduler)(run.optimizer, 2, 0.5)
    run.train(STEPS)
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    model, optimizer = get_state_dict(run.model, run.optimizer, options=options)
    return {"model": model, "optimizer": optimizer, "scheduler": run.scheduler.state_dict(), "step": run.step}


def _titan(mesh: Any) -> dict[str, Any]:
    import torch
    from torch import distributed as dist

    tree = _trained(mesh, flat=True)
    return {
        **tree["model"],
        "optimizer": tree["optimizer"],
        "lr_scheduler": tree["scheduler"],
        "train_state": {"step": torch.tensor(tree["step"], dtype=torch.int32)},
        "dataloader": {f"dp_rank_{dist.get_rank()}": bytes([dist.get_rank()]), "world_size": WORLD},
    }


def _grid(mesh: Any) -> dict[str, Any]:
    """A tensor of 7 x 6 in every pair of placements, and some that a grid leaves ranks without."""
    import torch
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    places = {"r": Replicate(), "0": Shard(0), "1": Shard(1)}
    whole = torch.arange(42.0).reshape(7, 6)
    tree = {a + b: distribute_tensor(whole, mesh, [places[a], places[b]]) for a in places for b in places}
    tree["one_row"] = distribute_tensor(torch.arange(5.0).reshape(1, 5), mesh, [Shard(0), Shard(1)])
    tree["half"] = distribute_tensor(whole.bfloat16(), mesh, [Shard(0), Shard(0)])
    return {"weights": tree, "plain": torch.arange(4.0)}


def main(folder: str) -> None:
    """Start the ranks and wait for them. Forked, they share what is imported here, which costs more than the rest."""
    import multiprocessing

    import torch.multiprocessing as mp
    from torch.distributed import checkpoint, device_mesh, fsdp, tensor  # noqa: F401

    how = "fork" if "fork" in multiprocessing.get_all_start_methods() and sys.platform != "darwin" else "spawn"
    mp.start_processes(rank_main, args=(folder,), nprocs=WORLD, start_method=how)


if __name__ == "__main__":
    main(sys.argv[1])
