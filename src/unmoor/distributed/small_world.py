"""A process group for the processes of one program on this machine, which meet through a folder that they share.

Rank 0 opens a store on a port that is free, and writes the port down: no port is guessed, and two programs cannot meet.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

import torch
from torch import distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from unmoor.errors import RankError

__all__ = ["group_of"]

_PORT: Final = "port"
_HOST: Final = "127.0.0.1"


@contextmanager
def group_of(folder: str, rank: int, world: int, *, seconds: float) -> Iterator[None]:
    """The default group of `world` processes for as long as the block lasts, as torchrun's environment has it.

    `folder` is empty at first. Raises RankError where rank 0 does not come within `seconds`.
    """
    wait = timedelta(seconds=seconds)
    store = _opened(folder, world, wait) if rank == 0 else _joined(folder, world, wait)
    os.environ.update(MASTER_ADDR=_HOST, MASTER_PORT=str(store.port))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=wait)
    try:
        yield
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _opened(folder: str, world: int, wait: timedelta) -> TCPStore:
    store = TCPStore(_HOST, 0, world, is_master=True, timeout=wait, wait_for_workers=False)
    part = Path(folder, f"{_PORT}.part")
    part.write_text(str(store.port))
    part.replace(Path(folder, _PORT))
    return store


def _joined(folder: str, world: int, wait: timedelta) -> TCPStore:
    place, end = Path(folder, _PORT), time.monotonic() + wait.total_seconds()
    while not place.exists():
        if time.monotonic() > end:
            raise RankError(f"rank 0 of {world} did not come within {wait.total_seconds():g} s")
        time.sleep(0.01)
    return TCPStore(_HOST, int(place.read_text()), world, is_master=False, timeout=wait)
