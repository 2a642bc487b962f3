"""Sharded models on the meta device, with an optimizer built before they have memory, filled from one plain file."""

from __future__ import annotations

from typing import Any

from tests.worlds.ranks import main


def run(rank: int, world: int, folder: str, path: str) -> Any:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    import unmoor
    from tests.cases.files import tiny

    def sharded(model: Any) -> Any:
        for layer in (model[0], model[2], model):
            fully_shard(layer)
        return model

    def cut(model: Any) -> Any:
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        return parallelize_module(model, init_device_mesh("cpu", (world,)), plan)

    found = {}
    for name, wrap in (("FSDP2", sharded), ("TP", cut)):
        with torch.device("meta"):
            model = wrap(tiny().to("meta"))
        optimizer = torch.optim.Adam(model.parameters(), foreach=False)
        before = [id(param) for param in model.parameters()]
        unmoor.restore(path, model=model, optimizer=optimizer, model_device="cpu", rng=False)
        params = dict(model.named_parameters())
        whole = {key: (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone() for key, p in params.items()}
        found[name] = {
            "same": before == [id(p) for p in params.values()] == [id(p) for p in optimizer.param_groups[0]["params"]],
            "here": sum(p.to_local().numel() if isinstance(p, DTensor) else p.numel() for p in params.values()),
            "model": whole,
            "steps": [float(optimizer.state[p]["step"]) for p in params.values()],
        }
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        found[name]["after"] = [float(optimizer.state[p]["step"]) for p in params.values()]
    return found


if __name__ == "__main__":
    main(run)
