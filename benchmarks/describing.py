"""How long describing takes by the number of tensors, and the memory it takes; importing and inspecting as processes.

    python -m benchmarks.describing [--rounds 5] [--folder /tmp] [--most 100000]

Every figure is of a process of its own, in turn, after a round that is not counted. Memory is the peak of the whole
process beyond what it held before the call, its imports left out. Files of torch.save are sparse, of 100 GB, made
without torch; those of unmoor.save, safetensors and folders hold small tensors. `times ten` is the ratio of CPU seconds
to those of a tenth of the tensors. torch.load(mmap=True) is left out of 100 GB, which it maps privately: a machine must
promise that much memory. It and a load under FakeTensorMode build live tensors, and safetensors' own open reads names
alone: no peer tells roles, devices, sharing and damage, nor reads without running.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.describe.sparse_zip import write_sparse

from benchmarks.looking import SMALL, look

TOTAL: Final = 100 * 10**9
COUNTS: Final = (100, 1_000, 10_000, 100_000)
FOLDER: Final = 20_000

# benchmarks.common imports torch: a child must not, or its memory would be torch's.


def _status(name: str) -> int:
    line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith(name))
    return int(line.split()[1]) * 1024


def _measured(work: Callable[[], object]) -> dict[str, float]:
    Path("/proc/self/clear_refs").write_text("5")
    before, clock, cpu = _status("VmRSS"), time.perf_counter(), time.process_time()
    kept = work()
    figures = {"seconds": time.perf_counter() - clock, "cpu": time.process_time() - cpu}
    del kept
    return {**figures, "extra": max(0, _status("VmHWM") - before) / 2**20}


def describe(path: str, tensors: int) -> dict[str, float]:
    del tensors
    import unmoor

    unmoor.describe(SMALL)
    return _measured(lambda: unmoor.describe(path))


def torch_mmap(path: str, tensors: int) -> dict[str, float]:
    del tensors
    import torch

    torch.load(SMALL, mmap=True, weights_only=False)
    return _measured(lambda: torch.load(path, mmap=True))


def torch_fake(path: str, tensors: int) -> dict[str, float]:
    del tensors
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    def load() -> Any:
        with FakeTensorMode():
            return torch.load(path)

    return _measured(load)


def safetensors_open(path: str, tensors: int) -> dict[str, float]:
    del tensors
    from safetensors import safe_open

    def load() -> Any:
        with safe_open(path, "pt") as file:
            return [(name, file.get_slice(name).get_shape()) for name in file.keys()]  # noqa: SIM118 - no mapping

    return _measured(load)


WAYS: Final = {"describe": describe, "torch.load(mmap=True)": torch_mmap, "FakeTensorMode": torch_fake,
               "safetensors' open": safetensors_open}  # fmt: skip
PEERS: Final = {
    "torch.save, 100 GB": ("FakeTensorMode",),
    "unmoor.save": ("torch.load(mmap=True)", "FakeTensorMode"),
    "torch.save, legacy": (),
    "safetensors": ("safetensors' open",),
    "DCP folder": (),
}
"""Kind of checkpoint -> the peers that can open it."""
SLOW: Final = {"FakeTensorMode": 1_000}
"""So many tensors take a peer some seconds; more are not asked of it."""


def _run(tensors: int) -> dict[str, Any]:
    """Parameters and the state of AdamW: four tensors for each parameter."""
    import torch

    number = max(1, tensors // 4)
    state = {i: {"step": torch.tensor(1.0), "exp_avg": torch.zeros(8), "exp_avg_sq": torch.zeros(8)}
             for i in range(number)}  # fmt: skip
    groups = [{"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "params": list(range(number))}]
    model = {f"layers.{i}.weight": torch.zeros(8) for i in range(number)}
    return {"model": model, "optimizer": {"state": state, "param_groups": groups}}


def write(kind: str, path: Path, tensors: int) -> None:
    """A checkpoint of some kind."""
    if kind == "torch.save, 100 GB":
        write_sparse(path, tensors, TOTAL // tensors // 4096 * 4096)
        return
    import torch

    import unmoor

    if kind == "unmoor.save":
        unmoor.save(path, _run(tensors))
    elif kind == "torch.save, legacy":
        torch.save(_run(tensors), path, _use_new_zipfile_serialization=False)
    elif kind == "safetensors":
        from safetensors.torch import save_file

        save_file({f"layers.{i}.weight": torch.zeros(8) for i in range(tensors)}, path)
    else:
        import torch.distributed.checkpoint as dcp

        dcp.save({f"layers.{i}.weight": torch.zeros(8) for i in range(tensors)}, checkpoint_id=path, no_dist=True)


def rows_of(kind: str, folder: Path, rounds: int, most: int) -> list[tuple[str, ...]]:
    """The figures of one kind of checkpoint by number of tensors."""
    from benchmarks import common

    rows: list[tuple[str, ...]] = []
    before: dict[str, float] = {}
    for tensors in (min(FOLDER, most),) if kind == "DCP folder" else [count for count in COUNTS if count <= most]:
        path = folder / f"{kind.partition(',')[0].replace(' ', '')}-{tensors}"
        write(kind, path, tensors)
        ways = ["describe", *(way for way in PEERS[kind] if tensors <= SLOW.get(way, tensors))]
        found = common.in_turn("benchmarks.describing", ways, str(path), tensors, rounds)
        own = common.median(found["describe"], "cpu")
        for way, figures in found.items():
            cpu = common.median(figures, "cpu")
            growth = f"{cpu / before[way]:.1f}" if way in before else ""
            before[way] = cpu
            seconds = f"{common.median(figures, 'seconds'):.3f}"
            extra = f"{common.median(figures, 'extra'):.0f} MiB"
            rows.append((kind, f"{tensors:,}", way, seconds, common.spread(figures, "seconds"), f"{cpu:.3f}",
                         f"{own / cpu:.2f}", growth, extra))  # fmt: skip
        if path.is_file():
            path.unlink()
    return rows


def import_milliseconds(rounds: int) -> float:
    """The least CPU milliseconds of `import unmoor`, Python's own start left out."""
    code = "import time; t = time.process_time(); import unmoor; print(time.process_time() - t)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
            for _ in range(rounds + 1)]  # fmt: skip
    return 1000 * min(map(float, runs[1:]))


def child() -> bool:
    """One way in a process that imports torch only where the way does."""
    if sys.argv[1:2] != ["--child"]:
        return False
    way, path, tensors = sys.argv[2], sys.argv[3], int(sys.argv[4])
    print(json.dumps(WAYS[way](path, tensors)))
    return True


def main() -> None:
    if child():
        return
    from benchmarks import common

    asked = common.options(sys.argv[1:], rounds=5, folder="/tmp", most=COUNTS[-1])
    head = ("checkpoint", "tensors", "way", "seconds", "spread", "CPU", "describe to it", "times ten", "extra memory")
    with tempfile.TemporaryDirectory(dir=asked["folder"]) as text:
        folder = Path(text)
        print(f"{asked['rounds']} rounds in {asked['folder']}, medians\n", flush=True)
        for kind in PEERS:
            print(f"{common.table([head, *rows_of(kind, folder, asked['rounds'], asked['most'])])}\n", flush=True)
        looks = [("process", "best", "median", "CPU")]
        large = folder / "large.pt"
        write_sparse(large, asked["most"], TOTAL // asked["most"] // 4096 * 4096)
        for name, path in (("inspect, a small file", SMALL), (f"inspect, {asked['most']:,} tensors", large)):
            look("inspect", str(path), rounds=1)
            found = look("inspect", str(path), rounds=asked["rounds"])
            looks.append((name, *(f"{seconds:.3f} s" for seconds in found)))
    print(f"import unmoor: {import_milliseconds(asked['rounds']):.1f} ms of the processor\n\n{common.table(looks)}")


if __name__ == "__main__":
    main()
