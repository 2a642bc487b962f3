"""How fast device tags change: unmoor.relocate against loading and saving again, and on 100 GB by number of tensors.

    python -m benchmarks.relocating [--gb 1.0] [--rounds 5] [--folder /dev/shm] [--disk /tmp]

The first table is by the clock and by the processor's clock, in this process, after one relocation that is not counted;
the files are sparse, of 100 GB, on the disk of --disk, and every relocation brings what it wrote to that disk three
times. The second is a file of --gb in --folder, each way in a process of its own, in turn.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import torch
from tests.describe.sparse_zip import write_sparse

import unmoor
from benchmarks import common

TOTAL = 100 * 10**9
TENSORS = (100, 1_000, 10_000)


def sparse(folder: str, tensors: int, rounds: int) -> tuple[str, ...]:
    """A row of the first table: a file of 100 GB in so many tensors."""
    path = Path(folder, f"{tensors}.pt")
    write_sparse(path, tensors, TOTAL // tensors // 4096 * 4096)
    size, clocks, processor = path.stat().st_size, [], []
    for turn in range(rounds + 1):
        begin, used = time.perf_counter(), time.process_time()
        made = unmoor.relocate(path, to="cuda:0")
        if turn:
            clocks.append(1000 * (time.perf_counter() - begin))
            processor.append(1000 * (time.process_time() - used))
        unmoor.undo_relocate(path)
    path.unlink()
    figures = (f"{sorted(values)[len(values) // 2]:.0f} ({min(values):.0f})" for values in (clocks, processor))
    return f"{tensors:,}", f"{size / 1e9:.0f} GB", f"{made.appended / 1024:.0f} KiB", *figures


def prepared(path: str, nbytes: int) -> str:
    """A training checkpoint of about so many bytes, saved on the CPU."""
    file = f"{path}/run.pt"
    model, optimizer = common.build(nbytes)
    common.step(model, optimizer)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    handle = os.open(file, os.O_RDWR)
    os.fsync(handle)  # what a relocation brings to the disk is its own then
    os.close(handle)
    common.reset_peak()
    return file


def _figures(file: str, live: int, clock: common.Clock) -> dict[str, float]:
    seconds = clock()
    os.unlink(file)
    return {"seconds": seconds, "extra": max(0, common.peak_memory() - live) / 2**20}


def with_unmoor(path: str, nbytes: int) -> dict[str, float]:
    file = prepared(path, nbytes)
    live, clock = common.memory(), common.Clock()
    unmoor.relocate(file, map_location={"cpu": "cuda:0"})
    return _figures(file, live, clock)


def with_torch(path: str, nbytes: int) -> dict[str, float]:
    file = prepared(path, nbytes)
    live, clock = common.memory(), common.Clock()
    torch.save(torch.load(file, map_location="cpu", weights_only=True), f"{file}.new")
    os.replace(f"{file}.new", file)
    return _figures(file, live, clock)


def with_torch_mmap(path: str, nbytes: int) -> dict[str, float]:
    file = prepared(path, nbytes)
    live, clock = common.memory(), common.Clock()
    torch.save(torch.load(file, map_location="cpu", weights_only=True, mmap=True), f"{file}.new")
    os.replace(f"{file}.new", file)
    return _figures(file, live, clock)


WAYS = {
    "unmoor.relocate": with_unmoor,
    "torch.load, torch.save": with_torch,
    "torch.load(mmap=True), torch.save": with_torch_mmap,
}


def main() -> None:
    if common.child_main({name: common.warmed(way) for name, way in WAYS.items()}):
        return
    asked = common.options(sys.argv[1:], gb=1.0, rounds=5, folder="/dev/shm", disk="/tmp")
    rows = [("tensors", "file", "appended", "ms: median (best)", "ms of the processor")]
    with tempfile.TemporaryDirectory(dir=asked["disk"]) as folder:
        rows += [sparse(folder, tensors, 3 * asked["rounds"]) for tensors in TENSORS]
    print(f"100 GB on {asked['disk']}, {3 * asked['rounds']} rounds\n\n{common.table(rows)}\n")
    nbytes = int(asked["gb"] * 1e9)
    with tempfile.TemporaryDirectory(dir=asked["folder"]) as folder:
        Path(f"{folder}/tiny").mkdir()
        found = common.in_turn("benchmarks.relocating", list(WAYS), folder, nbytes, asked["rounds"])
    peer = "torch.load, torch.save"
    print(f"{nbytes / 1e9:.2f} GB in {asked['folder']}, {asked['rounds']} rounds, torch {torch.__version__}\n")
    rows = [("way", "seconds", "spread", f"of {peer}", "extra memory")]
    for way, figures in found.items():
        seconds, extra = common.median(figures, "seconds"), common.median(figures, "extra")
        ratio = seconds / common.median(found[peer], "seconds")
        rows.append((way, f"{seconds:.4f}", common.spread(figures, "seconds"), f"{ratio:.4f}", f"{extra:.0f} MiB"))
    print(common.table(rows))


if __name__ == "__main__":
    main()
