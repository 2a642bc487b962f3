"""How fast a restore is, and what it takes beside the live state: unmoor against plain torch and against the floor.

    python -m benchmarks.restore [--gb 1.5] [--rounds 5] [--folder /dev/shm]

Each way restores the same model and AdamW state into a fresh model and a fresh AdamW, page cache warm, after having
done so once with a tiny file. The clock stops after every restored tensor was written in place once (add_(0)), as the
first training step does, so that lazily mapped data has arrived. The floor reads the same bytes into the same live
tensors with two threads and checks nothing. Memory is the peak of resident memory above the complete live state.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import torch

import unmoor
from benchmarks import common


def _prepared(nbytes: int):
    model, optimizer = common.build(nbytes, seed=1)
    whole = sum(p.numel() * p.itemsize for p in model.parameters())
    common.touch([p.detach() for p in model.parameters()])
    common.reset_peak()
    return model, optimizer, common.memory() + 2 * whole


def _figures(model, optimizer, live: int, clock: common.Clock) -> dict[str, float]:
    common.touch(common.state_tensors(model, optimizer))
    return {"seconds": clock(), "extra": max(0, common.peak_memory() - live) / 2**20}


def with_unmoor(path: str, nbytes: int, verify: str = "stream") -> dict[str, float]:
    model, optimizer, live = _prepared(nbytes)
    clock = common.Clock()
    unmoor.restore(f"{path}/unmoor.pt", model=model, optimizer=optimizer, rng=False, verify=verify)
    return _figures(model, optimizer, live, clock)


def with_unmoor_unchecked(path: str, nbytes: int) -> dict[str, float]:
    return with_unmoor(path, nbytes, verify="none")


def with_torch(path: str, nbytes: int, **options) -> dict[str, float]:
    model, optimizer, live = _prepared(nbytes)
    clock = common.Clock()
    tree = torch.load(f"{path}/torch.pt", map_location="cpu", **options)
    model.load_state_dict(tree["model"])
    optimizer.load_state_dict(tree["optimizer"])
    del tree
    return _figures(model, optimizer, live, clock)


def with_torch_mmap(path: str, nbytes: int) -> dict[str, float]:
    return with_torch(path, nbytes, mmap=True)


def floor(path: str, nbytes: int) -> dict[str, float]:
    """The same bytes, from the same places, into the same tensors: two threads, preadv, no checksum."""
    model, optimizer, live = _prepared(nbytes)
    read = bare_read(f"{path}/unmoor.pt", model, optimizer)
    clock = common.Clock()
    read()
    return _figures(model, optimizer, live, clock)


def bare_read(file: str, model, optimizer) -> Callable[[], None]:
    """What `floor` does within its clock, for any run and its file: it is planned here, outside of it."""
    plan = unmoor.plan(file, model=model, optimizer=optimizer, rng=False)

    def read() -> None:
        tensors = {f"model/{name}": p.detach() for name, p in model.named_parameters()}
        jobs = []
        for copy in plan.copies():
            if copy.slot.make:
                tensors[copy.slot.id] = torch.empty(copy.slot.shape, dtype=getattr(torch, copy.slot.dtype))
            jobs.append((copy.node.storage.span, tensors[copy.slot.id]))
        params = list(model.parameters())
        for key, tensor in tensors.items():
            if "/state/" in key:
                optimizer.state[params[int(key.split("/")[2])]][key.split("/")[3]] = tensor
        _read_all(file, jobs)

    return read


def _read_all(file: str, jobs) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    pieces = [(span, t, at) for span, t in jobs for at in range(0, span.nbytes, 4 << 20)]
    turn = iter(pieces)
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                piece = next(turn, None)
            if piece is None:
                return
            span, tensor, at = piece
            size = min(4 << 20, span.nbytes - at)
            memory = memoryview((ctypes.c_ubyte * size).from_address(tensor.data_ptr() + at)).cast("B")
            done = 0
            while done < size:
                done += os.preadv(descriptor, [memory[done:]], span.offset + at + done)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(descriptor)


WAYS = {
    "unmoor.restore": with_unmoor,
    "unmoor.restore, verify=none": with_unmoor_unchecked,
    "torch.load + load_state_dict": with_torch,
    "torch.load(mmap=True) + load_state_dict": with_torch_mmap,
    "floor: bare read, 2 threads": floor,
}


def _write(folder: str, nbytes: int) -> int:
    """The same run written by both; the size of the file in bytes."""
    Path(folder).mkdir(exist_ok=True)
    model, optimizer = common.build(nbytes)
    common.step(model, optimizer)
    unmoor.save(f"{folder}/unmoor.pt", model=model, optimizer=optimizer, rng=False)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/torch.pt")
    return Path(f"{folder}/unmoor.pt").stat().st_size


def main() -> None:
    if common.child_main({name: common.warmed(way) for name, way in WAYS.items()}):
        return
    asked = common.options(sys.argv[1:], gb=1.5, rounds=5, folder="/dev/shm")
    nbytes = int(asked["gb"] * 1e9)
    with tempfile.TemporaryDirectory(dir=asked["folder"]) as folder:
        _write(f"{folder}/tiny", 1)
        size = _write(folder, nbytes)
        found = common.in_turn("benchmarks.restore", list(WAYS), folder, nbytes, asked["rounds"])
    print(f"{size / 1e9:.2f} GB in {asked['folder']}, {asked['rounds']} rounds, medians, torch {torch.__version__}\n")
    print(common.compare("restore", found, "torch.load + load_state_dict", "floor: bare read, 2 threads"))


if __name__ == "__main__":
    main()
