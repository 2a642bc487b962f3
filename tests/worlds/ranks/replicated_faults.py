"""Saves of two replicas that must fail on both, with what was there before left as it was; and some that must not."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from tests.worlds.ranks import main


def run(rank: int, world: int, folder: str, place: str) -> Any:
    import torch

    import unmoor
    from unmoor.errors import UnmoorError

    def model(seed: int = 0) -> torch.nn.Module:
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))

    def trained(**options: Any) -> dict[str, Any]:
        run = model()
        optimizer = torch.optim.Adam(run.parameters(), **options)
        run(torch.ones(2, 3)).pow(2).sum().backward()
        optimizer.step()
        return {"model": run, "optimizer": optimizer}

    def other_moment() -> dict[str, Any]:
        run = trained()
        if rank:
            run["optimizer"].state[run["model"][0].bias]["exp_avg"][1] += 1
        return run

    def shared_memory() -> dict[str, Any]:
        run = model()
        if rank:  # equal values in other memory: a view of something larger
            with torch.no_grad():
                large = torch.zeros(5, 8)
                large[:4, 2:5] = run[0].weight
                run[0].weight = torch.nn.Parameter(large[:4, 2:5])
        return {"model": run}

    path = f"{place}/run.pt"
    unmoor.save(path, model=model(), mark="before")
    saves: dict[str, Callable[[], Any]] = {
        "values": lambda: unmoor.save(path, model=model(seed=rank)),
        "moment": lambda: unmoor.save(path, **other_moment()),
        "rate": lambda: unmoor.save(path, **trained(lr=0.1 + rank)),
        "names": lambda: unmoor.save(path, model=model() if rank == 0 else torch.nn.Sequential(torch.nn.Linear(3, 4))),
        "shape": lambda: unmoor.save(path, model=torch.nn.Linear(3, 4 + rank)),
        "collect": lambda: unmoor.save(path, model=model(), note=object() if rank else 1),
        "folder": lambda: unmoor.save(f"{place}/missing/run.pt", model=model()),
        "disk": lambda: full_disk(lambda: unmoor.save(path, model=model(), data=torch.zeros(1 << 18))),
        "root": lambda: unmoor.save(path, [model().state_dict(), rank]),
        "word": lambda: unmoor.save(path, model=model(), ranks=3),
        "large": lambda: small(lambda: unmoor.save(path, model=model(), replay=torch.full((1 << 12,), float(rank)))),
        "paths": lambda: unmoor.save(f"{place}/run-{rank}.pt", model=model()),
        "flat values": lambda: unmoor.save(f"{place}/new.safetensors", model=model(seed=rank)),
        "alike": lambda: str(unmoor.save(f"{place}/alike.pt", **shared_memory())),
        "one has it": lambda: str(
            unmoor.save(f"{place}/one.pt", model=model(), **({"best": 1} if rank == 0 else {"mine": 2}))
        ),
        "flat": lambda: str(unmoor.save(f"{place}/flat.safetensors", model=drifted(model(), rank))),
        "alone": lambda: str(unmoor.save(f"{place}/alone.pt", model=model(seed=rank), mark=rank, group=None)),
        "snapshot": lambda: str(
            unmoor.save(f"{place}/snapshot.pt", unmoor.snapshot(model=drifted(model(), rank), own=rank))
        ),
    }

    def full_disk(save: Callable[[], Any]) -> Any:
        """Have the system refuse files beyond 64 KiB on rank 0, as a full disk would, in the middle of writing."""
        import resource
        import signal

        if rank:
            return save()
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
        try:
            return save()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    def small(save: Callable[[], Any]) -> Any:
        from unmoor.wiring import saving_world

        saving_world.MOST_BYTES, before = 1 << 13, saving_world.MOST_BYTES
        try:
            return save()
        finally:
            saving_world.MOST_BYTES = before

    found: dict[str, Any] = {}
    for name, save in saves.items():
        try:
            found[name] = save()
        except UnmoorError as error:
            found[name] = [type(error).__name__, str(error), list(error.ranks)]
    found["mark"] = unmoor.restore(path, model=model()).extra
    for name in ("alike", "one", "snapshot"):
        found[f"{name}.pt"] = dict(unmoor.restore(f"{place}/{name}.pt", model=model()).extra)
    found["left"] = sorted(os.listdir(place))
    return found


def drifted(model: Any, rank: int) -> Any:
    """The same parameters and other statistics on each rank."""
    model[1].running_mean += rank
    return model


if __name__ == "__main__":
    main(run)
