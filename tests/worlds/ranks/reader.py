"""dcp.load through CheckpointReader into sharded state: what is filled, and how many bytes each rank reads for it."""

from __future__ import annotations

import os
from typing import Any

from tests.worlds.ranks import main

WIDTH = 16384


def build(seed: int) -> Any:
    import torch
    from torch import nn

    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.BatchNorm1d(64), nn.Linear(64, WIDTH, bias=False))


def sharded(model: Any, world: int, layout: str) -> Any:
    """FSDP2 over all ranks, or tensor parallel over two of them with FSDP2 over the rest."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    if layout == "fsdp":
        fully_shard(model[0])
        return fully_shard(model)
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(model, mesh["tp"], {"0": RowwiseParallel(), "2": ColwiseParallel()})
    return fully_shard(model, mesh=mesh["dp"])


class Counted:
    """The bytes that this process reads by position while the block runs."""

    def __enter__(self) -> Any:
        self.nbytes, self._preadv = 0, os.preadv
        os.preadv = self._count
        return self

    def _count(self, descriptor: int, buffers: Any, offset: int) -> int:
        got = self._preadv(descriptor, buffers, offset)
        self.nbytes += got
        return got

    def __exit__(self, *_: object) -> None:
        os.preadv = self._preadv


def local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def whole(tensor: Any) -> Any:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def run(rank: int, world: int, folder: str, layout: str, *paths: str) -> Any:
    import torch
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import (
        get_model_state_dict,
        get_optimizer_state_dict,
        set_model_state_dict,
        set_optimizer_state_dict,
    )

    import unmoor

    expected = build(0).state_dict()
    found: dict[str, Any] = {}
    for path in paths:
        name = os.path.basename(path)
        model = sharded(build(1), world, layout)
        reader = unmoor.CheckpointReader(path, rename={} if name.startswith("run") else {"": "model."})
        state = {"model": get_model_state_dict(model)}
        with Counted() as read:
            dcp.load(state, storage_reader=reader)
        set_model_state_dict(model, state["model"])
        now = get_model_state_dict(model)
        found[name] = {
            "wrong": [key for key in expected if not torch.equal(whole(now[key]), expected[key])],
            "own": sum(local(t).numel() * t.element_size() for t in now.values()),
            "streamed": reader.streamed.nbytes,
            "read": read.nbytes,
        }
    run_path = next(path for path in paths if path.endswith("run.pt"))
    model = sharded(build(1), world, layout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    state = {"optimizer": get_optimizer_state_dict(model, optimizer), "step": 0, "history": None}
    dcp.load(state, storage_reader=unmoor.CheckpointReader(run_path))
    set_optimizer_state_dict(model, optimizer, state["optimizer"])
    filled = get_optimizer_state_dict(model, optimizer)
    found["optimizer"] = {
        "lr": filled["param_groups"][0]["lr"],
        "extra": [state["step"], state["history"]],
        "state": {name: {k: whole(v) for k, v in entry.items()} for name, entry in filled["state"].items()},
    }
    return {**found, "fault": fault(rank, run_path, model)}


def fault(rank: int, path: str, model: Any) -> str:
    """What this rank is told where rank 1 was given a path that leads nowhere."""
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    import unmoor

    reader = unmoor.CheckpointReader(path + ".gone" if rank == 1 else path)
    try:
        dcp.load({"model": get_model_state_dict(model)}, storage_reader=reader)
    except dcp.api.CheckpointException as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main(run)
