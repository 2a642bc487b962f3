"""What runs inside of a world: one process of several."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

__all__ = ["main"]


def main(run: Callable[..., Any], *, backend: str = "gloo", seconds: float = 120.0) -> None:
    """Be one rank: join the group, call `run(rank, world, folder, *arguments)`, keep what it returns or raises.

    A process that torchrun did not start joins no group.
    A rank that has failed leaves at once, without waiting for the others, as a script does that ends with an error.
    """
    import torch
    from torch import distributed as dist

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    folder, *arguments = sys.argv[1:]
    alone = "RANK" not in os.environ
    if not alone:
        dist.init_process_group(backend, timeout=timedelta(seconds=seconds))
    rank, world = (0, 1) if alone else (dist.get_rank(), dist.get_world_size())
    failed, value = None, None
    try:
        value = run(rank, world, folder, *arguments)
    except Exception as error:  # noqa: BLE001 - whatever it is, the test wants to see it
        traceback.print_exc()
        failed = [type(error).__name__, tuple(c.__name__ for c in type(error).__mro__), str(error)]
    place = os.path.join(folder, f"result-{rank}.pt")
    torch.save({"failed": failed, "value": value}, place + ".tmp")
    os.replace(place + ".tmp", place)
    sys.stdout.flush()
    sys.stderr.flush()
    if failed is None and not alone:
        dist.barrier()
        dist.destroy_process_group()
    os._exit(0)
