"""Saves in the background by two ranks, sharded and replicated: training goes on while they write."""

from __future__ import annotations

import copy
import errno
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

from tests.worlds.ranks import main


def run(rank: int, world: int, folder: str, place: str, layout: str) -> Any:
    import torch
    from torch import distributed as dist

    import unmoor
    from tests.worlds.layouts import LAYOUTS, build
    from tests.worlds.whole import gather

    run = build(LAYOUTS[layout], rank, seed=0)
    run.train()
    root, found = Path(place), {}
    before = copy.deepcopy(gather(run))
    gate = threading.Event()

    def held_up(_: int) -> None:
        if not gate.wait(60):
            raise TimeoutError("nobody opened the gate")

    pending = unmoor.save(root / "run", **run.roles, step=run.step, background=True, progress=held_up)
    run.train()
    run.train()
    found["while"] = (pending.done(), str(pending).splitlines()[0], (root / "run").exists())
    try:
        unmoor.save(root / "other", **run.roles, background="refuse")
    except unmoor.UsageError as error:
        found["refused"] = str(error)
    skipped = unmoor.save(root / "other", **run.roles, background="skip")
    found["skipped"] = (skipped.skipped, str(skipped))
    gate.set()
    receipt = pending.wait()
    found["receipt"] = (type(receipt).__name__, dict(receipt.counts), pending.done())
    found["text"] = str(pending)
    with tempfile.TemporaryDirectory() as own:
        gate.clear()
        how = {"group": None, "background": True, "progress": held_up}
        busy = unmoor.save(f"{own}/own.pt", step=1, **how) if rank == 1 else None
        skipped = unmoor.save(root / "other", **run.roles, background="skip")
        found["skipped for one"] = (skipped.skipped, str(skipped).rpartition("/")[2])
        gate.set()
        if busy is not None:
            busy.wait()
    after = gather(run)
    if rank == 0:
        torch.save({"before": before, "after": after}, root / "whole.pt")
    dist.barrier()

    def full(_: int) -> None:
        if rank == world - 1 or layout.startswith("DDP"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    failing = unmoor.save(root / "run", **run.roles, step=5, background=True, progress=full)
    try:
        found["next"] = str(unmoor.save(root / "next", **run.roles))
    except Exception as error:  # noqa: BLE001 - whatever it is, the test wants to see it
        found["next"] = f"{type(error).__name__}: {error}"
    found["failed"] = str(failing).splitlines()[0]
    again = unmoor.save(root / "again", **run.roles, step=run.step, background=True)
    report = unmoor.restore(root / "run", **run.roles)
    found["restored"] = (report.extra["step"], again.done())
    unmoor.save(root / "next", **run.roles, step=run.step)
    dist.barrier()
    found["left"] = sorted(os.listdir(root))
    return found


if __name__ == "__main__":
    main(run)
