"""One file into shards of two ranks: whole, and with one byte changed in what only the second rank reads."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from tests.worlds.ranks import main


def run(rank: int, world: int, folder: str) -> Any:
    import torch
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    import unmoor

    path = Path(folder) / "run.pt"
    torch.manual_seed(0)
    whole = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
    if rank == 0:
        unmoor.save(path, model=whole, group=None)
    dist.barrier()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(1)
    model = fully_shard(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8)), mesh=mesh)
    report = unmoor.restore(path, model=model, rng=False)
    equal = all(torch.equal(a.full_tensor(), b) for a, b in zip(model.parameters(), whole.parameters(), strict=True))
    found = {"equal": equal, "in part": report.in_part, "verified": report.verified, "text": str(report)}
    if rank == 0:
        _damage(path, whole[0].weight)
    dist.barrier()
    try:
        unmoor.restore(path, model=model, rng=False)
    except unmoor.CorruptFile as error:
        found["error"] = str(error)
    return found


def _damage(path: Path, weight: Any) -> None:
    """Change the last byte of a tensor's data."""
    data = bytearray(path.read_bytes())
    raw = struct.pack(f"<{weight.numel()}f", *weight.detach().flatten().tolist())
    data[data.index(raw) + len(raw) - 1] ^= 1
    path.write_bytes(data)


if __name__ == "__main__":
    main(run)
