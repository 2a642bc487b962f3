"""How fast a save is: unmoor against torch.save and against a bare write of the same bytes.

    python -m benchmarks.save [--gb 1.5] [--rounds 5] [--folder /dev/shm] [--fsync no]

On a disk pass --folder and --fsync yes: then every way brings its file to the disk before the clock stops (unmoor.save
always does). unmoor.save also computes every checksum and reads its directory back; torch.save computes checksums too.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from pathlib import Path

import torch

import unmoor
from benchmarks import common


def _prepared(nbytes: int):
    model, optimizer = common.build(nbytes)
    common.step(model, optimizer)
    common.reset_peak()
    return model, optimizer, common.memory()


def _figures(path: str, live: int, clock: common.Clock, *, synced: bool = False) -> dict[str, float]:
    if not synced and os.environ.get("BENCH_FSYNC") == "yes":
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    seconds = clock()
    os.unlink(path)
    return {"seconds": seconds, "extra": max(0, common.peak_memory() - live) / 2**20}


def with_unmoor(path: str, nbytes: int) -> dict[str, float]:
    model, optimizer, live = _prepared(nbytes)
    clock = common.Clock()
    unmoor.save(f"{path}/u.pt", model=model, optimizer=optimizer, rng=False)
    return _figures(f"{path}/u.pt", live, clock, synced=True)


def with_torch(path: str, nbytes: int) -> dict[str, float]:
    model, optimizer, live = _prepared(nbytes)
    clock = common.Clock()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{path}/t.pt")
    return _figures(f"{path}/t.pt", live, clock)


def with_torch_unchecked(path: str, nbytes: int) -> dict[str, float]:
    torch.serialization.set_crc32_options(False)
    return with_torch(path, nbytes)


def floor(path: str, nbytes: int) -> dict[str, float]:
    """The same bytes from the same tensors, one thread, one after the other."""
    model, optimizer, live = _prepared(nbytes)
    clock = common.Clock()
    bare_write(f"{path}/f.pt", model, optimizer)
    return _figures(f"{path}/f.pt", live, clock)


def bare_write(path: str | Path, model, optimizer) -> None:
    """The bytes of every tensor of a run into one file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for tensor in common.state_tensors(model, optimizer):
        size = tensor.numel() * tensor.itemsize
        memory = memoryview((ctypes.c_ubyte * size).from_address(tensor.data_ptr())).cast("B")
        done = 0
        while done < size:
            done += os.write(descriptor, memory[done : done + (16 << 20)])
    os.close(descriptor)


WAYS = {
    "unmoor.save": with_unmoor,
    "torch.save": with_torch,
    "torch.save, crc32 off": with_torch_unchecked,
    "floor: bare write, 1 thread": floor,
}


def main() -> None:
    if common.child_main({name: common.warmed(way) for name, way in WAYS.items()}):
        return
    asked = common.options(sys.argv[1:], gb=1.5, rounds=5, folder="/dev/shm", fsync="no")
    os.environ["BENCH_FSYNC"] = asked["fsync"]
    nbytes = int(asked["gb"] * 1e9)
    with tempfile.TemporaryDirectory(dir=asked["folder"]) as folder:
        Path(f"{folder}/tiny").mkdir()
        found = common.in_turn("benchmarks.save", list(WAYS), folder, nbytes, asked["rounds"])
    where = f"{asked['folder']}, fsync {asked['fsync']}"
    print(f"{nbytes / 1e9:.2f} GB in {where}, {asked['rounds']} rounds, medians, torch {torch.__version__}\n")
    print(common.compare("save", found, "torch.save", "floor: bare write, 1 thread"))


if __name__ == "__main__":
    main()
