"""How long a look takes: `unmoor inspect` as a person starts it, and its page.

python -m benchmarks.looking [--rounds N]

A process of its own for each look, best and median of wall time, and its CPU time. Large files are sparse: headers at
their places, tensor data as holes. The aims: 0.25 s for any small file, 1 s for 100 GB in 10,000 tensors.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.describe.sparse_zip import write_sparse

from .common import options, table

LARGE: Final = 100 << 30
ROW: Final = 16 << 10
"""Tensors are of whole rows of so many bytes."""
TENSORS: Final = (1_000, 10_000, 100_000)
SMALL: Final = Path(__file__).parents[1] / "tests" / "golden" / "training-torch2.13.0.pt"


def look(*arguments: str, rounds: int) -> tuple[float, float, float]:
    """Best and median seconds of `unmoor ARGUMENTS`, and its least seconds of CPU."""
    walls, cpus = [], []
    for _ in range(rounds):
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "unmoor", *arguments], stdout=subprocess.DEVNULL, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0, arguments
        walls.append(time.perf_counter() - begin)
        cpus.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(walls), statistics.median(walls), min(cpus)


def ways(folder: Path) -> dict[str, Sequence[str]]:
    """What is looked at -> the arguments."""
    found: dict[str, Sequence[str]] = {"start-up alone": ["--version"], "a small file": ["inspect", str(SMALL)]}
    for number in TENSORS:
        path = folder / f"{number}.pt"
        write_sparse(path, number, LARGE // number // ROW * ROW)
        found[f"100 GiB, {number:,} tensors"] = ["inspect", str(path)]
    largest = folder / f"{TENSORS[-1]}.pt"
    found["a small file, its page"] = ["inspect", str(SMALL), "--html", str(folder / "small.html")]
    found[f"{TENSORS[-1]:,} tensors, their page"] = ["inspect", str(largest), "--html", str(folder / "large.html")]
    return found


def main() -> None:
    rounds = options(sys.argv[1:], rounds=7)["rounds"]
    with tempfile.TemporaryDirectory() as folder:
        rows = [("looking at", "best", "median", "CPU")]
        for name, arguments in ways(Path(folder)).items():
            look(*arguments, rounds=1)
            rows.append((name, *(f"{seconds:.3f} s" for seconds in look(*arguments, rounds=rounds))))
        print(table(rows))


if __name__ == "__main__":
    main()
