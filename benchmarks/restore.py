"""How fast a restore and a bare load are, and what they take beside the live state: unmoor, plain torch, the floor.

    python -m benchmarks.restore [--gb 1.5] [--rounds 5] [--folder /dev/shm] [--cache warm] [--what restore,load]

`--gb`, `--folder`, `--cache` (warm, cold) and `--what` take several, with commas between. Each way restores the same
model and AdamW state into a fresh model and a fresh AdamW, after having done so once with a tiny file. The clock stops
after every restored tensor was written in place once (add_(0)), as the first training step does, so that lazily mapped
data has arrived. Cold means that the file has left the page cache of this system before the clock starts (fsync, then
posix_fadvise DONTNEED), which takes a folder on a disk; a host under it may keep it. The floor reads the same bytes
into the same tensors with the same number of threads and checks nothing (`bare.py`), into plain memory, and into memory
with huge pages, as ours. Memory is the peak of resident memory above the complete live state; pages of a file that a
peer holds mapped are in it.

torch.load(mmap=True) leaves the state in a private mapping of the file: pages are copied as they are first written, and
a file that is cut short later ends the process (SIGBUS). With assign=True the model gets the mapped tensors as new
parameters, so that the optimizer must be made after it. torch.load checks no checksum.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

import unmoor
from benchmarks import common
from benchmarks.bare import bare_load, bare_read
from unmoor.api_files import READERS

__all__ = ["bare_read"]

Figures = dict[str, float]
Way = Callable[[str, int], Figures]


def _prepared(nbytes: int):
    model, optimizer = common.build(nbytes, seed=1)
    whole = sum(p.numel() * p.itemsize for p in model.parameters())
    common.touch([p.detach() for p in model.parameters()])
    common.reset_peak()
    return model, optimizer, common.memory() + 2 * whole


def _figures(tensors: list[torch.Tensor], live: int, clock: common.Clock) -> Figures:
    common.touch(tensors)
    return {"seconds": clock(), "cpu": clock.cpu(), "extra": max(0, common.peak_memory() - live) / 2**20}


def by_unmoor(**options) -> Way:
    def way(path: str, nbytes: int) -> Figures:
        model, optimizer, live = _prepared(nbytes)
        clock = common.started(f"{path}/unmoor.pt")
        unmoor.restore(f"{path}/unmoor.pt", model=model, optimizer=optimizer, rng=False, **options)
        return _figures(common.state_tensors(model, optimizer), live, clock)

    return way


def by_torch(*, assign: bool = False, **options) -> Way:
    def way(path: str, nbytes: int) -> Figures:
        model, optimizer, live = _prepared(nbytes)
        clock = common.started(f"{path}/torch.pt")
        tree = torch.load(f"{path}/torch.pt", map_location="cpu", **options)
        model.load_state_dict(tree["model"], assign=assign)
        if assign:
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        optimizer.load_state_dict(tree["optimizer"])
        del tree
        return _figures(common.state_tensors(model, optimizer), live, clock)

    return way


def bare(memory: str) -> Way:
    def way(path: str, nbytes: int) -> Figures:
        model, optimizer, live = _prepared(nbytes)
        read = bare_read(f"{path}/unmoor.pt", model, optimizer, memory=memory)
        clock = common.started(f"{path}/unmoor.pt")
        read()
        return _figures(common.state_tensors(model, optimizer), live, clock)

    return way


def by_cat(path: str, nbytes: int) -> Figures:  # noqa: ARG001 - a way has this form
    """What the file alone takes, into nothing."""
    clock = common.started(f"{path}/unmoor.pt")
    with open(f"{path}/unmoor.pt", "rb") as file:
        subprocess.run(["cat"], stdin=file, stdout=subprocess.DEVNULL, check=True)
    return {"seconds": clock(), "cpu": clock.cpu(), "extra": 0.0}


def _loaded(call: Callable[[str], list[torch.Tensor]]) -> Way:
    def way(path: str, nbytes: int) -> Figures:  # noqa: ARG001 - a way has this form
        file = f"{path}/torch.pt"
        common.reset_peak()
        live, clock = common.memory() + Path(file).stat().st_size, common.started(file)
        return _figures(call(file), live, clock)

    return way


def _of_tree(tree) -> list[torch.Tensor]:
    moments = [t for entry in tree["optimizer"]["state"].values() for t in entry.values()]
    return [*tree["model"].values(), *moments]


PEER, FLOOR, OURS = "torch.load + load_state_dict", "floor: bare read", "floor: bare read, memory as ours"
RESTORES: dict[str, Way] = {
    "unmoor.restore": by_unmoor(),
    "unmoor.restore, verify=none": by_unmoor(verify="none"),
    PEER: by_torch(),
    "torch.load(mmap=True) + load_state_dict": by_torch(mmap=True),
    "torch.load(mmap=True) + load_state_dict(assign=True)": by_torch(mmap=True, assign=True),
    FLOOR: bare("plain"),
    OURS: bare("ours"),
    "cat": by_cat,
}
LOADS: dict[str, Way] = {
    "unmoor.load": _loaded(lambda file: _of_tree(unmoor.load(file))),
    "unmoor.load, verify=none": _loaded(lambda file: _of_tree(unmoor.load(file, verify="none"))),
    "torch.load": _loaded(lambda file: _of_tree(torch.load(file))),
    "torch.load(mmap=True)": _loaded(lambda file: _of_tree(torch.load(file, mmap=True))),
    f"{FLOOR}, of a load": _loaded(bare_load),
    f"{OURS}, of a load": _loaded(lambda file: bare_load(file, memory="ours")),
}
TABLES: dict[str, tuple[dict[str, Way], str, str, str]] = {
    "restore": (RESTORES, PEER, FLOOR, OURS),
    "load": (LOADS, "torch.load", f"{FLOOR}, of a load", f"{OURS}, of a load"),
}


def _write(folder: str, nbytes: int) -> int:
    """The same run written by both; the size of the file in bytes."""
    Path(folder).mkdir(exist_ok=True)
    model, optimizer = common.build(nbytes)
    common.step(model, optimizer)
    unmoor.save(f"{folder}/unmoor.pt", model=model, optimizer=optimizer, rng=False)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/torch.pt")
    return Path(f"{folder}/unmoor.pt").stat().st_size


def _table(what: str, folder: str, nbytes: int, rounds: int, *, cold: bool) -> str:
    ways, *others = TABLES[what]
    found = common.in_turn("benchmarks.restore", list(ways), folder, nbytes, rounds, cold=cold)
    ours, *peers = ([w for w in ways if w.startswith(start)] for start in ("unmoor", "torch"))
    best = min(peers[0], key=lambda way: common.median(found[way], "seconds"))
    ratio = common.median(found[ours[0]], "seconds") / common.median(found[best], "seconds")
    return f"{common.compare(what, found, *others)}\n\nThe best peer is {best}; {ours[0]} takes {ratio:.2f} of it."


def main() -> None:
    if common.child_main({name: common.warmed(way) for name, way in {**RESTORES, **LOADS}.items()}):
        return
    asked = common.options(sys.argv[1:], gb="1.5", rounds=5, folder="/dev/shm", cache="warm", what="restore,load")
    rounds = asked["rounds"]
    for place in asked["folder"].split(","):
        for gb in asked["gb"].split(","):
            with tempfile.TemporaryDirectory(dir=place) as folder:
                _write(f"{folder}/tiny", 1)
                size = _write(folder, int(float(gb) * 1e9))
                for cache in asked["cache"].split(","):
                    about = f"{size / 1e9:.2f} GB in {place}, page cache {cache}, {READERS} threads, {rounds} rounds"
                    print(f"{about}, medians, torch {torch.__version__}")
                    for what in asked["what"].split(","):
                        table = _table(what, folder, int(float(gb) * 1e9), rounds, cold=cache == "cold")
                        print(f"\n{table}\n", flush=True)


if __name__ == "__main__":
    main()
