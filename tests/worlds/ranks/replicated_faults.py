"""Saves of two replicas that must fail on both, with what was there before left as it was; and some that must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.worlds.ranks import main


def model(seed: int = 0) -> Any:
    """A layer and a norm with statistics."""
    import torch

    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))


def trained(**options: Any) -> dict[str, Any]:
    """A model and the optimizer that took a step on it."""
    import torch

    made = model()
    optimizer = torch.optim.Adam(made.parameters(), **options)
    made(torch.ones(2, 3)).pow(2).sum().backward()
    optimizer.step()
    return {"model": made, "optimizer": optimizer}


def other_moment(rank: int) -> dict[str, Any]:
    """Optimizers that differ in one number."""
    run = trained()
    if rank:
        run["optimizer"].state[run["model"][0].bias]["exp_avg"][1] += 1
    return run


def other_memory(rank: int) -> Any:
    """Equal values, on one rank as a view of something larger."""
    import torch

    made = model()
    if rank:
        large = torch.zeros(5, 8)
        large[:4, 2:5] = made[0].weight.detach()
        made[0].weight = torch.nn.Parameter(large[:4, 2:5])
    return made


def drifted(rank: int) -> Any:
    """The same parameters and other statistics on each rank."""
    made = model()
    made[1].running_mean += rank
    return made


def full_disk(rank: int, save: Callable[[], Any]) -> Any:
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


def little(save: Callable[[], Any]) -> Any:
    """Have rank 0 take 8 KiB from the others and no more."""
    from unmoor.wiring import saving_world

    saving_world.MOST_BYTES, before = 1 << 13, saving_world.MOST_BYTES
    try:
        return save()
    finally:
        saving_world.MOST_BYTES = before


def saves(rank: int, place: str) -> dict[str, Callable[[], Any]]:
    """Name -> a save to make on both ranks."""
    import torch

    import unmoor

    path = f"{place}/run.pt"
    layer = torch.nn.Linear
    own = {"best": 1} if rank == 0 else {"mine": 2}
    replay = torch.full((1 << 12,), float(rank))
    return {
        "values": lambda: unmoor.save(path, model=model(seed=rank)),
        "moment": lambda: unmoor.save(path, **other_moment(rank)),
        "rate": lambda: unmoor.save(path, **trained(lr=0.1 + rank)),
        "names": lambda: unmoor.save(path, model=torch.nn.Sequential(layer(3, 4)) if rank else model()),
        "shape": lambda: unmoor.save(path, model=layer(3, 4 + rank)),
        "collect": lambda: unmoor.save(path, model=model(), note=object() if rank else 1),
        "folder": lambda: unmoor.save(f"{place}/missing/run.pt", model=model()),
        "disk": lambda: full_disk(rank, lambda: unmoor.save(path, model=model(), data=torch.zeros(1 << 18))),
        "root": lambda: unmoor.save(path, [model().state_dict(), rank]),
        "word": lambda: unmoor.save(path, model=model(), ranks=3),
        "large": lambda: little(lambda: unmoor.save(path, model=model(), replay=replay)),
        "paths": lambda: unmoor.save(f"{place}/run-{rank}.pt", model=model()),
        "flat values": lambda: unmoor.save(f"{place}/new.safetensors", model=model(seed=rank)),
        "alike": lambda: unmoor.save(f"{place}/alike.pt", model=other_memory(rank)),
        "one": lambda: unmoor.save(f"{place}/one.pt", model=model(), **own),
        "flat": lambda: unmoor.save(f"{place}/flat.safetensors", model=drifted(rank)),
        "alone": lambda: unmoor.save(f"{place}/alone.pt", model=model(seed=rank), mark=rank, group=None),
        "snapshot": lambda: unmoor.save(f"{place}/snapshot.pt", unmoor.snapshot(model=drifted(rank), own=rank)),
    }


def run(rank: int, world: int, folder: str, place: str) -> Any:
    import unmoor

    unmoor.save(f"{place}/run.pt", model=model(), mark="before")
    found: dict[str, Any] = {}
    for name, save in saves(rank, place).items():
        try:
            found[name] = str(save())
        except unmoor.UnmoorError as error:
            found[name] = [type(error).__name__, str(error), list(error.ranks)]
    for name in ("run", "alike", "one", "snapshot"):
        live = model(seed=9)
        found[f"{name}.pt"] = dict(unmoor.restore(f"{place}/{name}.pt", model=live).extra)
        found[f"{name} mean"] = live[1].running_mean
    return found


if __name__ == "__main__":
    main(run)
