"""Every mistake that ranks can make in a call together, one after the other in one world of four.

Each rank has a folder of its own as a node has, and paths are relative to it.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from typing import Any

from tests.worlds.ranks import main

SHORT = 2.0


class Bench:
    """One rank's live run, a saved run to restore, and what came of each mistake."""

    def __init__(self, rank: int, folder: str) -> None:
        self.rank, self.folder = rank, folder
        self.saved, self.other = _made(11), _made(12)
        self.model, self.optimizer = _made(100 + rank)
        self.outcomes: dict[str, dict[str, Any]] = {}

    def restore(self, path: str = "run.pt", **how: Any) -> str:
        """The right call, but for what `how` says."""
        import unmoor

        objects = {"model": self.model, "optimizer": self.optimizer}
        return unmoor.restore(path, **{**objects, "timeout": 60.0, **how}).path

    def save(self, path: str, **how: Any) -> str:
        """The right call, but for what `how` says."""
        import unmoor

        return str(unmoor.save(path, model=self.model, optimizer=self.optimizer, **{"timeout": 60.0, **how}))

    def is_at(self, run: tuple[Any, Any]) -> bool:
        """Whether the live run is that one."""
        import torch

        state = run[0].state_dict()
        same = all(torch.equal(value, state[key]) for key, value in self.model.state_dict().items())
        return same and self.optimizer.param_groups[0]["lr"] == run[1].param_groups[0]["lr"]

    def check(self, name: str, work: Callable[[], Any] | None, *, on: tuple[int, ...] = (0, 1, 2, 3)) -> None:
        """Do `work` on the ranks `on`: what it raised, whether it changed anything, and whether a right call works."""
        import torch
        from torch import distributed as dist

        import unmoor

        dist.barrier()
        before = {key: value.clone() for key, value in self.model.state_dict().items()}
        lr, stream = self.optimizer.param_groups[0]["lr"], random.getstate()
        kind, text, ranks = "", "", []
        try:
            text = str(work()) if work is not None and self.rank in on else ""
        except unmoor.UnmoorError as error:
            kind, text, ranks = type(error).__name__, str(error), list(error.ranks)
        unchanged = all(torch.equal(value, before[key]) for key, value in self.model.state_dict().items())
        unchanged &= self.optimizer.param_groups[0]["lr"] == lr and random.getstate() == stream
        runs = [self.is_at(self.saved), self.is_at(self.other)]
        dist.barrier()
        self.restore(os.path.join(self.folder, "shared.pt"))
        right = self.is_at(self.saved)
        with torch.no_grad():
            self.model[0].weight.add_(self.rank + 1.0)
        self.optimizer.param_groups[0]["lr"] = 1.0 + self.rank
        self.outcomes[name] = {
            "kind": kind,
            "text": text,
            "ranks": ranks,
            "unchanged": unchanged,
            "right": right,
            "at": runs,
        }


def run(rank: int, world: int, folder: str) -> Any:
    from torch import distributed as dist

    import unmoor

    node = os.path.join(folder, f"node{rank}")
    os.mkdir(node)
    os.chdir(node)
    bench = Bench(rank, folder)
    if rank == 0:
        for index, (name, one) in enumerate({"run": bench.saved, "other": bench.other}.items()):
            unmoor.save(f"{name}.pt", model=one[0], optimizer=one[1], step=index, group=None)
        shutil.copy("run.pt", os.path.join(folder, "shared.pt"))
    dist.barrier()
    for name in ("run.pt", "other.pt") if rank else ():
        shutil.copy(os.path.join(folder, "node0", name), name)
    _calls(bench)
    _files(bench)
    _shares(bench)
    _groups(bench)
    return bench.outcomes


def _made(seed: int) -> tuple[Any, Any]:
    """A model and an optimizer that have made a step."""
    import torch

    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * seed)
    model(torch.randn(5, 8)).sum().backward()
    optimizer.step()
    return model, optimizer


def _calls(bench: Bench) -> None:
    """Ranks that do not make one call."""
    import torch

    import unmoor

    rank, model, optimizer, restore = bench.rank, bench.model, bench.optimizer, bench.restore
    bench.check("restore on rank 0 only", lambda: restore(timeout=SHORT), on=(0,))
    bench.check("save on rank 0 only", lambda: bench.save("new.pt", timeout=SHORT), on=(0,))
    bench.outcomes["save on rank 0 only"]["there"] = os.path.exists("new.pt")
    bench.check("snapshot on rank 0 only", lambda: unmoor.snapshot(model=model, timeout=SHORT), on=(0,))
    bench.check("not on rank 2", lambda: restore(timeout=SHORT), on=(0, 1, 3))
    bench.check("verbs", lambda: bench.save("run.pt") if rank == 1 else restore())
    bench.check("paths", lambda: restore("other.pt" if rank == 1 else "run.pt"))
    bench.check("roles", lambda: restore(optimizer=None if rank == 1 else optimizer))
    bench.check("swapped", lambda: restore(**({"model": optimizer, "optimizer": model} if rank == 1 else {})))
    bench.check("modes", lambda: restore(missing="fresh" if rank == 3 else "error"))
    bench.check("one bad argument", lambda: restore(buffer_bytes=0 if rank == 2 else 1 << 20))
    bench.check("all bad arguments", lambda: restore(model_device="cpu", map_location="cpu"))
    bench.check("misfit on one rank", lambda: restore(model=torch.nn.Linear(3, 3) if rank == 1 else model))


def _files(bench: Bench) -> None:
    """Ranks that do not see one file, or not all a sound one."""
    rank, restore = bench.rank, bench.restore
    if rank == 0:
        shutil.copy("run.pt", "here.pt")
    bench.check("on one node only", lambda: restore("here.pt"))
    shutil.copy("other.pt" if rank == 3 else "run.pt", "mixed.pt")
    bench.check("another file on one node", lambda: restore("mixed.pt"))
    raw = _damaged("run.pt", "model.2.weight") if rank == 2 else _bytes("run.pt")
    _write("cut.pt", raw[: len(raw) // 2] if rank == 2 else raw)
    bench.check("cut short on one node", lambda: restore("cut.pt"))
    _write("bad.pt", raw)
    bench.check("corrupt on one node, first", lambda: restore("bad.pt", verify="first"))
    bench.check("corrupt on one node", lambda: restore("bad.pt"))
    bench.check("fallback", lambda: _newest(restore))


def _shares(bench: Bench) -> None:
    """One file for all, all of whose data is read ahead by the ranks together."""
    shared, bad = (os.path.join(bench.folder, name) for name in ("shared.pt", "bad.pt"))
    if bench.rank == 0:
        _write(bad, _damaged("run.pt", "model.2.weight"))
    bench.check("corrupt for all, first", lambda: bench.restore(bad, verify="first"))
    counted: list[int] = []
    bench.check("streamed", lambda: bench.restore(shared, progress=counted.append))
    streamed = sum(counted)
    bench.check("verified by shares", lambda: bench.restore(shared, verify="first", progress=counted.append))
    bench.outcomes["verified by shares"]["bytes"] = sum(counted) - 2 * streamed, streamed


def _groups(bench: Bench) -> None:
    """Some ranks of the world together, and one alone."""
    from torch import distributed as dist

    rank, restore = bench.rank, bench.restore
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    own = groups[rank // 2]
    bench.check("rank 1 alone", lambda: restore(group=None), on=(1,))
    bench.check("two groups", lambda: restore(("run.pt", "other.pt")[rank // 2], group=own))
    bench.check("one of a group", lambda: restore(group=own, timeout=SHORT), on=(3,))
    bench.check("not a member", lambda: restore(group=groups[1 - rank // 2]))


def _newest(restore: Callable[[str], str]) -> str:
    """The newest checkpoint that can be restored: the same on every rank, though only some see that one is bad."""
    import unmoor

    for name in ("bad.pt", "here.pt", "run.pt"):
        try:
            return restore(name)
        except unmoor.FileError:
            continue
    return ""


def _bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _damaged(path: str, tensor: str) -> bytes:
    """The file with one bit of a tensor's data turned."""
    import unmoor

    raw = bytearray(_bytes(path))
    span = next(entry.span for entry in unmoor.describe(path).tensors if entry.path == tensor)
    raw[span.offset if span is not None else 0] ^= 1
    return bytes(raw)


def _write(path: str, raw: bytes) -> None:
    with open(path, "wb") as file:
        file.write(raw)


if __name__ == "__main__":
    main(run)
