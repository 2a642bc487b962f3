"""What the benchmarks share: a model of a chosen size, fresh child processes in turn, medians and spread.

Every figure is a ratio of medians measured in one run: the ways take turns (A B C A B C ...), each in a process of its
own, so that drift of a shared machine hits all of them alike.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

WIDTH = 1024


def build(nbytes: int, *, seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and a fresh AdamW whose parameters and state come to about `nbytes`, in matrices of 16 MiB and biases.

    Of less than 200 MB a narrower one, down to 1 MB.
    """
    torch.manual_seed(seed)
    width = WIDTH
    while width > 64 and nbytes < 2 * 96 * width * width:
        width //= 2
    blocks = max(1, round(nbytes / (96 * width * width)))
    layers: list[nn.Module] = []
    for _ in range(blocks):
        layers += [nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)]
    model = nn.Sequential(*layers)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Give the optimizer its state, as one training step does."""
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def state_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Every tensor of the run."""
    moments = [v for entry in optimizer.state.values() for v in entry.values() if isinstance(v, torch.Tensor)]
    return [*(p.detach() for p in model.parameters()), *moments]


def touch(tensors: Sequence[torch.Tensor]) -> None:
    """Write every tensor in place once, as the first training step does: what was mapped lazily arrives now."""
    with torch.no_grad():
        for tensor in tensors:
            tensor.add_(0)


def memory() -> int:
    """Resident bytes of this process that are its own or file pages it holds mapped."""
    return _status("VmRSS")


def peak_memory() -> int:
    """The highest `memory()` since `reset_peak`."""
    return _status("VmHWM")


def reset_peak() -> None:
    """Start a new peak."""
    Path("/proc/self/clear_refs").write_text("5")


def _status(name: str) -> int:
    line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith(name))
    return int(line.split()[1]) * 1024


def child_main(ways: dict[str, Callable[[str, int], dict[str, float]]]) -> bool:
    """In a child process: do one way once, print its figures as JSON, and tell that this was a child."""
    if len(sys.argv) < 2 or sys.argv[1] != "--child":
        return False
    way, path, nbytes = sys.argv[2], sys.argv[3], int(sys.argv[4])
    torch.set_num_threads(2)
    print(json.dumps(ways[way](path, nbytes)))
    return True


def in_turn(
    module: str, ways: Sequence[str], path: str, nbytes: int, rounds: int, *, cold: bool = False
) -> dict[str, list[dict[str, float]]]:
    """Run every way once a round, each in a fresh process; figures by way. `cold` is what `started` goes by."""
    figures: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for turn in range(rounds + 1):
        for way in ways:
            command = [sys.executable, "-W", "ignore", "-m", module, "--child", way, path, str(nbytes)]
            env = {**_environment(), _CACHE: "cold" if cold else "warm"}
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
            if done.returncode:
                raise SystemExit(f"{way} failed:\n{done.stderr}")
            if turn:  # the first round warms caches
                figures[way].append(json.loads(done.stdout.splitlines()[-1]))
    return figures


_CACHE = "BENCHMARK_PAGE_CACHE"


def started(*files: str) -> Clock:
    """A clock that starts now. Where a cold page cache was asked for, these files have left it before."""
    if os.environ.get(_CACHE) == "cold":
        for file in files:
            drop(file)
    return Clock()


def drop(file: str) -> None:
    """Take a file out of the page cache of this system; what lies under a disk of its own may still keep it."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # pages that are not on the disk yet stay
        for _ in range(20):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            if cached(descriptor) < 0.01:
                return
            time.sleep(0.1)  # pages that were just used are in the hands of a CPU
    finally:
        os.close(descriptor)
    raise SystemExit(f"{file} cannot leave the page cache: --cache cold needs a folder on a disk")


def cached(descriptor: int) -> float:
    """The share of a file that is in the page cache."""
    with mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as view:
        pages = (ctypes.c_ubyte * -(-len(view) // mmap.PAGESIZE))()
        first = ctypes.c_ubyte.from_buffer(view)
        address = ctypes.c_void_p(ctypes.addressof(first))
        failed = ctypes.CDLL(None).mincore(address, ctypes.c_size_t(len(view)), pages)
        del first
    return 1.0 if failed else sum(bytes(page & 1 for page in pages)) / len(pages)


def _environment() -> dict[str, str]:
    """The caller's environment, with bytecode kept as on any user's machine."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def warmed(way: Callable[[str, int], dict[str, float]]) -> Callable[[str, int], dict[str, float]]:
    """The same way, after once doing it with a tiny file: what is imported on first use is imported for everyone."""

    def run(path: str, nbytes: int) -> dict[str, float]:
        way(f"{path}/tiny", 1)
        return way(path, nbytes)

    return run


def median(figures: list[dict[str, float]], name: str) -> float:
    return statistics.median(row[name] for row in figures)


def spread(figures: list[dict[str, float]], name: str) -> str:
    values = [row[name] for row in figures]
    return f"{digits(min(values))}..{digits(max(values))}"


def compare(verb: str, found: dict[str, list[dict[str, float]]], peer: str, *floors: str) -> str:
    """The figures of every way as a table of ratios to the peer and to each floor."""
    names = ["of the floor"] if len(floors) == 1 else [f"of {floor}" for floor in floors]
    busy = all("cpu" in row for figures in found.values() for row in figures)
    rows = [(verb, "seconds", "spread", *(["CPU seconds"] if busy else []), f"of {peer}", *names, "extra memory")]
    for way, figures in found.items():
        seconds = median(figures, "seconds")
        cells = [digits(seconds), spread(figures, "seconds"), *([digits(median(figures, "cpu"))] if busy else [])]
        ratios = [f"{seconds / median(found[other], 'seconds'):.2f}" for other in (peer, *floors)]
        rows.append((way, *cells, *ratios, f"{median(figures, 'extra'):.0f} MiB"))
    return table(rows)


def digits(seconds: float) -> str:
    """Seconds to what can be told of them."""
    return f"{seconds:.2f}" if seconds >= 1 else f"{seconds:.3f}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as a Markdown table, the first row being its head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]])


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._begin, self._busy = time.perf_counter(), time.process_time()

    def __call__(self) -> float:
        return time.perf_counter() - self._begin

    def cpu(self) -> float:
        """Seconds of CPU that all threads of this process took since."""
        return time.process_time() - self._busy


def options(argv: Sequence[str], **defaults: Any) -> dict[str, Any]:
    """`--name value` pairs with the types of their defaults."""
    found = dict(defaults)
    for name, value in zip(argv[::2], argv[1::2], strict=True):
        key = name.removeprefix("--").replace("-", "_")
        if key not in defaults:
            raise SystemExit(f"unknown option {name}; there are {', '.join('--' + k for k in defaults)}")
        found[key] = type(defaults[key])(value)
    return found
