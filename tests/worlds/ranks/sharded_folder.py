"""A sharded run saved by torch's own engine, and what it is as a whole beside it."""

from __future__ import annotations

from typing import Any

from tests.worlds.ranks import main


def run(rank: int, world: int, folder: str, layout: str, path: str) -> Any:
    import torch
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    from tests.worlds import sharded

    model = sharded.LAYOUTS[layout](sharded.Uneven(1))
    optimizer = sharded.OPTIMIZERS["AdamW"](model.parameters())
    for number in range(sharded.STEPS):
        sharded.step(model, optimizer, number)
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=path)
    weights, state = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        torch.save({"model": weights, "optimizer": state}, path + ".whole")
    return "saved"


if __name__ == "__main__":
    main(run)
