"""How fast verify and diff are, and the memory they take: against a bare read of the same files.

    python -m benchmarks.verifying [--gb 1.5] [--rounds 7] [--folder /dev/shm]

The ways take turns, each in a fresh process with the page cache warm, after having done so once with a tiny file. The
floor reads the same files with preadv, as many threads, into a buffer of 1 MiB each, and does nothing with the bytes.
`diff, equal` compares two files of the same run; `diff, a third differs` a run before and after its weights moved
(AdamW's state is equal); `diff, all differs` two runs. Seconds are wall time; `cpu` is the time of all threads, which
says the same where other work shares the machine. Memory is the peak of resident memory of the whole process, with
Python, and what of it was there before the call.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import unmoor
from unmoor.api_files import READERS

# benchmarks.common imports torch: a child must not, or its memory would be torch's.

PIECE = 1 << 20
STRETCH = 8 << 20


def _read(files: list[str]) -> None:
    descriptors = [os.open(file, os.O_RDONLY) for file in files]
    sizes = [os.fstat(descriptor).st_size for descriptor in descriptors]
    jobs = iter([
        (descriptor, start, min(start + STRETCH, size))
        for start in range(0, max(sizes), STRETCH)
        for descriptor, size in zip(descriptors, sizes, strict=True)
        if start < size
    ])  # fmt: skip
    lock = threading.Lock()

    def work() -> None:
        buffer = memoryview(bytearray(PIECE))
        while True:
            with lock:
                job = next(jobs, None)
            if job is None:
                return
            descriptor, start, end = job
            for at in range(start, end, PIECE):
                os.preadv(descriptor, [buffer[: min(PIECE, end - at)]], at)

    threads = [threading.Thread(target=work) for _ in range(READERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for descriptor in descriptors:
        os.close(descriptor)


def _measured(work: Callable[[], object]) -> dict[str, float]:
    Path("/proc/self/clear_refs").write_text("5")
    before, clock, cpu = _status("VmRSS"), time.perf_counter(), time.process_time()
    work()
    figures = {"seconds": time.perf_counter() - clock, "cpu": time.process_time() - cpu}
    peak = _status("VmHWM")
    return {**figures, "peak": peak / 2**20, "extra": max(0, peak - before) / 2**20}


def _status(name: str) -> int:
    line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith(name))
    return int(line.split()[1]) * 1024


def floor_one(path: str, nbytes: int) -> dict[str, float]:
    del nbytes
    return _measured(lambda: _read([f"{path}/a.pt"]))


def floor_two(path: str, nbytes: int) -> dict[str, float]:
    del nbytes
    return _measured(lambda: _read([f"{path}/a.pt", f"{path}/same.pt"]))


def verify(path: str, nbytes: int) -> dict[str, float]:
    del nbytes
    return _measured(lambda: unmoor.verify(f"{path}/a.pt"))


def _diff(other: str) -> Callable[[str, int], dict[str, float]]:
    def way(path: str, nbytes: int) -> dict[str, float]:
        del nbytes
        return _measured(lambda: unmoor.diff(f"{path}/a.pt", f"{path}/{other}.pt"))

    return way


WAYS = {
    "floor: bare read of one file": floor_one,
    "verify": verify,
    "floor: bare read of two files": floor_two,
    "diff, equal": _diff("same"),
    "diff, a third differs": _diff("moved"),
    "diff, all differs": _diff("other"),
}


def _write(folder: str, nbytes: int) -> None:
    import torch

    from benchmarks import common

    Path(folder).mkdir(exist_ok=True)
    model, optimizer = common.build(nbytes)
    common.step(model, optimizer)

    def save(name: str) -> None:
        unmoor.save(f"{folder}/{name}.pt", model=model, optimizer=optimizer, rng=False)

    save("a")
    save("same")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1e-4 * torch.randn_like(parameter))
    save("moved")
    with torch.no_grad():
        for tensor in common.state_tensors(model, optimizer):
            tensor.add_(1e-4)
    save("other")


def child() -> bool:
    """One way in a process that imports torch only where the way does."""
    if sys.argv[1:2] != ["--child"]:
        return False
    import json

    way, path, nbytes = sys.argv[2], sys.argv[3], int(sys.argv[4])
    WAYS[way](f"{path}/tiny", 1)
    print(json.dumps(WAYS[way](path, nbytes)))
    return True


def _rows(found: dict[str, list[dict[str, float]]]) -> list[tuple[str, ...]]:
    from benchmarks import common

    head = ("way", "seconds", "spread", "speed of the floor", "by cpu time", "peak memory", "of it by the call")
    rows: list[tuple[str, ...]] = [head]
    floor = ""
    for way, figures in found.items():
        floor = way if way.startswith("floor") else floor
        ratios = [common.median(found[floor], name) / common.median(figures, name) for name in ("seconds", "cpu")]
        memory = [f"{max(row[name] for row in figures):.0f} MiB" for name in ("peak", "extra")]
        seconds = f"{common.median(figures, 'seconds'):.3f}"
        rows.append((way, seconds, common.spread(figures, "seconds"), *(f"{ratio:.2f}" for ratio in ratios), *memory))
    return rows


def main() -> None:
    if child():
        return
    from benchmarks import common

    asked = common.options(sys.argv[1:], gb=1.5, rounds=7, folder="/dev/shm")
    nbytes = int(asked["gb"] * 1e9)
    with tempfile.TemporaryDirectory(dir=asked["folder"]) as folder:
        _write(f"{folder}/tiny", 1)
        _write(folder, nbytes)
        size = Path(f"{folder}/a.pt").stat().st_size
        found = common.in_turn("benchmarks.verifying", list(WAYS), folder, nbytes, asked["rounds"])
    print(f"files of {size / 1e9:.2f} GB in {asked['folder']}, {asked['rounds']} rounds, {READERS} threads, medians\n")
    print(common.table(_rows(found)))


if __name__ == "__main__":
    main()
