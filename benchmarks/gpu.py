"""How fast a restore to a device and a save from it are: unmoor against plain torch, and against bare copies.

    python -m benchmarks.gpu [--device auto] [--gb 0] [--rounds 5] [--minutes 5] [--folder /dev/shm]

One run on one GPU, at most `--minutes` long: first that all is right (`gpu_checks.py`; a difference ends the run), then
the ways in turn, each time in a fresh process that has done the same with a tiny file before, as many rounds as the
time allows. `--gb 0` takes 6 GB, or what the device, the memory and the folder have room for. Where no accelerator is
found it says so and ends well; `--device sim:1` tries the script on the simulated one of the tests, without a meaning
in the figures.

The clock of a restore stops when the device has written every restored tensor in place once, that of a save when the
file is there (in /dev/shm; pass a folder of a disk for more). Bare ones: reading or writing the same bytes and nothing
else with unmoor's number of threads, and copying them between pinned memory and the same tensors; what runs both side
by side can be no faster than the slower of the two. Device memory is the peak beyond the complete state.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks import common, gpu_checks, gpu_ways

Figures = dict[str, list[dict[str, float]]]

MOST = 6.0
RESTORES = ("unmoor.restore", "unmoor.restore, verify=none", "torch.load to the device", "torch.load to the CPU")
SAVES = ("unmoor.save", "torch.save", "torch.save of the state on the CPU")
OTHERS = ("floor of a restore", "floor of a save", "unmoor.save in the background")


def find_device(asked: str) -> tuple[torch.device | None, str]:
    """The device to measure; None and why there is none."""
    if asked.startswith("sim"):
        from tests.accelerator import install

        install()
        return torch.device(asked), ""
    if asked == "auto":
        from unmoor.live.devices import fallback_and_why

        device, why = fallback_and_why()
        return (None, why) if device.type == "cpu" else (device, "")
    return torch.device(asked), ""


def room(device: torch.device, folder: str) -> float:
    """How many GB of state fit: twice on the device, three times into the folder, twice into the memory."""
    free = {"folder": shutil.disk_usage(folder).free / 3.3, "memory": _available() / 5}
    module = getattr(torch, device.type)
    if hasattr(module, "mem_get_info"):
        free["device"] = module.mem_get_info(device)[0] / 3
    return min(MOST, min(free.values()) / 1e9)


def _available() -> int:
    rows = Path("/proc/meminfo")
    if not rows.exists():
        return 16 << 30
    return next(int(row.split()[1]) << 10 for row in rows.read_text().splitlines() if row.startswith("MemAvailable"))


def _fast_folder() -> str:
    return "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()


def measured(folder: str, nbytes: int, rounds: int, until: Callable[[], bool]) -> Figures:
    """All ways in turn, in processes of their own, for some rounds or while there is time; one round at least."""
    found: Figures = {way: [] for way in (*RESTORES, *SAVES, *OTHERS)}
    for turn in range(rounds):
        if turn and not until():
            break
        for way, rows in found.items():
            rows.append(_child(way, folder, nbytes))
    return found


def _child(way: str, folder: str, nbytes: int) -> dict[str, float]:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu", "--child", way, folder, str(nbytes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{way} failed:\n{done.stderr}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def restores(found: Figures) -> str:
    """The table of restores."""
    return _table("restore", found, RESTORES, "torch.load to the device", "floor of a restore", "reading alone")


def saves(found: Figures) -> str:
    """The table of saves."""
    return _table("save", found, SAVES, "torch.save", "floor of a save", "writing alone")


def _table(verb: str, found: Figures, ways: tuple[str, ...], peer: str, floor: str, file: str) -> str:
    bare = {file: "file", "pinned copies alone": "copy"}
    floors = {name: [row[key] for row in found[floor]] for name, key in bare.items()}
    seconds = {way: [row["seconds"] for row in found[way]] for way in ways} | floors
    slower = max(statistics.median(values) for values in floors.values())
    rows = [(verb, "seconds", "spread", f"of {peer}", "of the slower bare one", "device memory", "host memory")]
    for way, values in seconds.items():
        middle = statistics.median(values)
        ratios = [f"{middle / statistics.median(seconds[peer]):.2f}", f"{middle / slower:.2f}"]
        extra = [f"{common.median(found[way], key):.0f} MiB" if way in ways else "" for key in ("extra", "host")]
        rows.append((way, f"{middle:.3f}", f"{min(values):.3f}..{max(values):.3f}", *ratios, *extra))
    return common.table(rows)


def background(found: Figures) -> str:
    """What a save in the background takes of training, in words."""
    rows = found["unmoor.save in the background"]
    copy = common.median(found["floor of a save"], "copy")
    first, again = common.median(rows, "first"), common.median(rows, "again")
    slowed = common.median(rows, "during") / common.median(rows, "alone")
    return (
        f"unmoor.save(background=True) holds training up for {first:.3f} s the first time and {again:.3f} s from then\n"
        f"on, {again / copy:.2f} of pinned copies alone; a step takes {slowed:.2f} of its time while it writes."
    )


def main(argv: list[str]) -> int:
    """Check, measure and print."""
    if argv[:1] == ["--child"]:
        way, folder, nbytes = argv[1:]
        device, _ = find_device(Path(folder, "device").read_text())
        print(json.dumps(gpu_ways.do(way, folder, int(nbytes), device)))
        return 0
    asked = common.options(argv, device="auto", gb=0.0, rounds=5, minutes=5.0, folder=_fast_folder())
    device, why = find_device(asked["device"])
    if device is None:
        print(f"nothing to measure: {why}")
        return 0
    clock = common.Clock()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    with tempfile.TemporaryDirectory(dir=asked["folder"]) as folder:
        for line in gpu_checks.checks(device, folder):
            print(line, flush=True)
        Path(folder, "device").write_text(asked["device"] if asked["device"] != "auto" else str(device))
        gigabytes = asked["gb"] or room(device, folder)
        size = gpu_ways.write_files(folder, int(gigabytes * 1e9), device)
        begun = clock()
        turns: list[float] = []

        def until() -> bool:
            turns.append(clock())
            each = (turns[-1] - begun) / len(turns)
            return turns[-1] + each < asked["minutes"] * 60

        found = measured(folder, int(gigabytes * 1e9), asked["rounds"], until)
    rounds = len(found["unmoor.save"])
    print(f"\n{size / 1e9:.2f} GB, {gpu_ways.name_of(device)}, {asked['folder']}, {rounds} rounds, {clock():.0f} s,")
    print(f"medians, torch {torch.__version__}\n\n{restores(found)}\n\n{saves(found)}\n\n{background(found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
