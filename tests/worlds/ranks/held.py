"""A DTensor's parts against torch's own: saved by `Held` through torch's engine, read back whole."""

from __future__ import annotations

from typing import Any

from tests.worlds.ranks import main


def run(rank: int, world: int, folder: str) -> Any:
    import torch
    from torch.distributed import checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    from unmoor.distributed.planners import SavePlanner
    from unmoor.live.held import Held
    from unmoor.values.boxes import Box

    mesh = init_device_mesh("cpu", (world,))
    whole = torch.arange(35.0).reshape(7, 5)
    spread = distribute_tensor(whole, mesh, [Shard(0)])
    local = spread.to_local()
    (chunk,) = spread.__create_chunk_list__()
    held = Held(spread.shape, spread.dtype, local.device, ((Box(tuple(chunk.offsets), tuple(chunk.sizes)), local),))
    dcp.save({"a": held}, checkpoint_id=f"{folder}/saved", planner=SavePlanner())
    back = torch.zeros(7, 5)
    dcp.load({"a": back}, checkpoint_id=f"{folder}/saved")
    return {"back": back, "rank": rank}


if __name__ == "__main__":
    main(run)
