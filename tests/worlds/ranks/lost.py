"""A rank whose process is killed in the middle of a restore, and then the store's own, while the others wait."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from tests.worlds.ranks import main

VICTIM = 1


def run(rank: int, world: int, folder: str) -> Any:
    import torch

    import unmoor

    model = torch.nn.Linear(64, 64)
    path = os.path.join(folder, "run.pt")
    if rank == 0:
        unmoor.save(path, model=model, group=None)
        open(f"{path}.there", "w").close()
    while not os.path.exists(f"{path}.there"):
        time.sleep(0.05)

    def die(_: int) -> None:
        if rank == VICTIM:
            os.kill(os.getpid(), signal.SIGKILL)

    found = [_attempt(lambda: unmoor.restore(path, model=model, timeout=3.0, progress=die))]
    found.append(_attempt(lambda: unmoor.restore(path, model=model, timeout=1.0)))
    open(os.path.join(folder, f"ready{rank}"), "w").close()
    while not os.path.exists(os.path.join(folder, "gone")):
        time.sleep(0.05)
    found.append(_attempt(lambda: unmoor.restore(path, model=model, timeout=60.0)))
    found.append(_attempt(lambda: unmoor.restore(path, model=model, group=None)))
    raise Told(found)


class Told(Exception):
    """What a rank met, one line each."""

    def __init__(self, found: list[tuple[str, str]]) -> None:
        super().__init__("\n\n".join(f"{kind}: {text}" for kind, text in found))


def _attempt(work: Any) -> tuple[str, str]:
    import unmoor

    try:
        work()
    except unmoor.UnmoorError as error:
        return type(error).__name__, str(error)
    return "restored", ""


if __name__ == "__main__":
    main(run)
