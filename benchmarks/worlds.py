"""Many ranks: save and restore against torch's own engine, one file into shards, conversions, 1,024 simulated ranks.

    python -m benchmarks.worlds [--only abcd] [--gb 1.0] [--convert-gb 4.0] [--rounds 5] [--folder /dev/shm]
                                [--convert-folder /tmp]

(a) `unmoor.save` and `unmoor.restore` of FSDP2 state on two ranks (torchrun, gloo, CPU) against dcp.save and dcp.load
    of the same state, in turns in the same processes; theirs with what makes a state dict of the run, and back.
(b) one file into FSDP2 on two ranks against the usual recipe: rank 0 loads the file, set_model_state_dict and
    set_optimizer_state_dict broadcast it. Each way in worlds of its own; memory is the peak above the complete live
    state of the rank (malloc gives large blocks back at once, so that the peak is what is in use).
(c) a file to a folder of torch.distributed.checkpoint and back, in fresh processes, against torch's own converters.
(d) the plan of one rank among many, without process groups: time by the processor's clock, bytes to be read.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import common

RANKS = 2
_MIB = 1 << 20


def _live(nbytes: int, seed: int) -> Any:
    """An FSDP2 model, each block sharded by itself, and a fresh AdamW over it."""
    from torch.distributed.fsdp import fully_shard

    model, _ = common.build(nbytes, seed=seed)
    for layer in model:
        if list(layer.children()) or sum(p.numel() for p in layer.parameters()) > 1 << 20:
            fully_shard(layer)
    fully_shard(model)
    import torch

    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def _step(model: Any, optimizer: Any) -> None:
    import torch

    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _own(model: Any) -> int:
    """Bytes of this rank's shards of parameters and both moments."""
    return 3 * sum(p.to_local().numel() * p.to_local().itemsize for p in model.parameters())


def _state(model: Any, optimizer: Any) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

    return {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}


def _set(model: Any, optimizer: Any, state: dict[str, Any], **options: Any) -> None:
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        set_model_state_dict,
        set_optimizer_state_dict,
    )

    chosen = StateDictOptions(**options)
    set_model_state_dict(model, state["model"], options=chosen)
    set_optimizer_state_dict(model, optimizer, state["optimizer"], options=chosen)


def _raw_save(path: str, model: Any, optimizer: Any) -> None:
    from torch.distributed import checkpoint as dcp

    dcp.save(_state(model, optimizer), checkpoint_id=path)


def _raw_load(path: str, model: Any, optimizer: Any) -> None:
    from torch.distributed import checkpoint as dcp

    state = _state(model, optimizer)
    dcp.load(state, checkpoint_id=path)
    _set(model, optimizer, state)


def _unmoor_save(path: str, model: Any, optimizer: Any) -> None:
    import unmoor

    unmoor.save(path, model=model, optimizer=optimizer, rng=False)


def _unmoor_restore(path: str, model: Any, optimizer: Any, **options: Any) -> None:
    import unmoor

    unmoor.restore(path, model=model, optimizer=optimizer, rng=False, **options)


def _through_reader(path: str, model: Any, optimizer: Any) -> None:
    from torch.distributed import checkpoint as dcp

    import unmoor

    state = _state(model, optimizer)
    dcp.load(state, storage_reader=unmoor.CheckpointReader(path))
    _set(model, optimizer, state)


def _recipe(path: str, model: Any, optimizer: Any) -> None:
    """Rank 0 loads the file and broadcasts it, as PyTorch's own pages show."""
    import torch
    from torch import distributed as dist

    named: dict[str, Any] = {"model": {}, "optimizer": {}}
    if dist.get_rank() == 0:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        groups = [{**g, "params": n} for g, n in zip(saved["optimizer"]["param_groups"],
                                                     saved["optimizer"]["param_names"], strict=True)]  # fmt: skip
        names = [name for row in saved["optimizer"]["param_names"] for name in row]
        state = {names[number]: entry for number, entry in saved["optimizer"]["state"].items()}
        named = {"model": saved["model"], "optimizer": {"state": state, "param_groups": groups}}
    _set(model, optimizer, named, full_state_dict=True, broadcast_from_rank0=True)


SAVES: dict[str, Callable[..., None]] = {"unmoor.save": _unmoor_save, "dcp.save": _raw_save}
LOADS: dict[str, Callable[..., None]] = {"unmoor.restore": _unmoor_restore, "dcp.load": _raw_load}
INTO_SHARDS: dict[str, Callable[..., None]] = {
    "unmoor.restore": _unmoor_restore,
    "dcp.load through CheckpointReader": _through_reader,
    "rank 0 loads and broadcasts": _recipe,
}


def _timed(call: Callable[[], None]) -> float:
    """Seconds until the slowest rank is done."""
    import torch
    from torch import distributed as dist

    dist.barrier()
    begin = time.perf_counter()
    call()
    took = torch.tensor(time.perf_counter() - begin)
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return float(took)


def _rank_a(folder: str, nbytes: int, rounds: int) -> dict[str, Any]:
    """Saves in turns, then restores in turns, of one run."""
    found: dict[str, Any] = {name: [] for name in (*SAVES, *LOADS)}
    for size in (1, nbytes):
        model, optimizer = _live(size, 0)
        _step(model, optimizer)
        for turn in range(rounds + 1 if size > 1 else 1):
            for (save, load), way in zip(zip(SAVES, LOADS, strict=True), ("unmoor", "dcp"), strict=True):
                path = f"{folder}/{way}-{size}-{turn}"
                seconds = _timed(partial(SAVES[save], path, model, optimizer))
                if turn and size > 1:
                    found[save].append(seconds)
                seconds = _timed(partial(LOADS[load], path, model, optimizer))
                if turn and size > 1:
                    found[load].append(seconds)
                _remove(path)
    return found


def _remove(path: str) -> None:
    from torch import distributed as dist

    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(path)
    dist.barrier()


def _rank_b(folder: str, nbytes: int, way: str) -> dict[str, Any]:
    """One way once, after a tiny file; seconds, and of each rank the memory beside its live state, and its bytes."""
    import torch
    from torch import distributed as dist

    for size, name in ((1, "tiny"), (nbytes, "whole")):
        model, optimizer = _live(size, 1)
        common.touch([p.to_local().detach() for p in model.parameters()])
        common.reset_peak()
        before = common.memory()
        seconds = _timed(partial(INTO_SHARDS[way], f"{folder}/{name}.pt", model, optimizer))
        extra = common.peak_memory() - before - _own(model) * 2 // 3
    rows: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(rows, [extra, _own(model)])
    check = sum(float(p.to_local().double().sum()) for p in model.parameters())
    total = torch.tensor(check, dtype=torch.float64)
    dist.all_reduce(total)
    return {"seconds": seconds, "ranks": rows, "sum": float(total)}


def _rank(arguments: list[str]) -> None:
    """In one rank of a world: do what was asked, print on rank 0."""
    import torch
    from torch import distributed as dist

    part, folder, nbytes, what = arguments
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = _rank_a(folder, int(nbytes), int(what)) if part == "a" else _rank_b(folder, int(nbytes), what)
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def _world(*arguments: Any) -> Any:
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "-m", "benchmarks.worlds", "--rank"]
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "MALLOC_MMAP_THRESHOLD_": "1048576"}
    settings.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, check=False, env=settings, timeout=600
    )
    if done.returncode:
        raise SystemExit(f"{arguments} failed:\n{done.stderr[-4000:]}")
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))


def save_and_restore(folder: str, nbytes: int, rounds: int) -> str:
    found = _world("a", folder, nbytes, rounds)
    rows = [("(a) 2 ranks, FSDP2", "seconds", "spread", "of torch's own")]
    for ways in (SAVES, LOADS):
        peer = statistics.median(found[list(ways)[1]])
        for name in ways:
            took = found[name]
            median = statistics.median(took)
            rows.append((name, f"{median:.2f}", f"{min(took):.2f}..{max(took):.2f}", f"{median / peer:.2f}"))
    return common.table(rows)


def into_shards(folder: str, nbytes: int, rounds: int) -> str:
    import unmoor

    for size, name in ((1, "tiny"), (nbytes, "whole")):
        model, optimizer = common.build(size)
        common.step(model, optimizer)
        unmoor.save(f"{folder}/{name}.pt", model=model, optimizer=optimizer, rng=False)
    expected = sum(float(p.detach().double().sum()) for p in model.parameters())
    del model, optimizer
    found: dict[str, list[Any]] = {way: [] for way in INTO_SHARDS}
    for _ in range(rounds):
        for way in INTO_SHARDS:
            found[way].append(_world("b", folder, nbytes, way))
    rows = [("(b) one file into FSDP2, 2 ranks", "seconds", "spread", "extra, rank 0", "extra, rank 1", "own shards")]
    for way, figures in found.items():
        if any(abs(row["sum"] - expected) > 1e-6 * abs(expected) for row in figures):
            raise SystemExit(f"{way} restored other values")
        took = [row["seconds"] for row in figures]
        extra = [max(row["ranks"][rank][0] for row in figures) / _MIB for rank in range(RANKS)]
        own = figures[0]["ranks"][0][1] / _MIB
        spread = f"{min(took):.2f}..{max(took):.2f}"
        cells = (f"{extra[0]:.0f} MiB", f"{extra[1]:.0f} MiB", f"{own:.0f} MiB")
        rows.append((way, f"{statistics.median(took):.2f}", spread, *cells))
    return common.table(rows)


CONVERT = """
import sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import torch, unmoor
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save, torch_save_to_dcp
from benchmarks import common
way, source, target, tiny = sys.argv[1:]
call = {"unmoor.convert": unmoor.convert, "dcp_to_torch_save": dcp_to_torch_save,
        "torch_save_to_dcp": torch_save_to_dcp}[way]
call(tiny + Path(source).suffix, tiny + "2" + Path(target).suffix)
common.reset_peak()
live, clock = common.memory(), common.Clock()
call(source, target)
print(clock(), common.peak_memory() - live)
"""


def conversions(folder: str, nbytes: int) -> str:
    """Names that end in .pt are files, those in .dcp folders."""
    import torch
    from torch.distributed.checkpoint.format_utils import torch_save_to_dcp

    torch.save({"model": {"w": torch.zeros(3)}}, f"{folder}/tiny.pt")
    torch_save_to_dcp(f"{folder}/tiny.pt", f"{folder}/tiny.dcp")
    wide = nbytes // 2 // 4 // 4096
    tensors = {
        "one": torch.ones(wide, 4096),
        **{f"layer.{i}": torch.full((wide // 64, 4096), float(i)) for i in range(64)},
    }
    torch.save({"model": tensors, "step": 7}, f"{folder}/run.pt")
    del tensors
    rows = [(f"(c) {nbytes / 1e9:.1f} GB, half of it one tensor", "seconds", "GB/s", "extra memory")]
    for title, way, source, target in (
        ("file -> folder, unmoor.convert", "unmoor.convert", "run.pt", "run.dcp"),
        ("folder -> file, unmoor.convert", "unmoor.convert", "run.dcp", "back.pt"),
        ("file -> file, unmoor.convert", "unmoor.convert", "run.pt", "again.pt"),
        ("file -> folder, torch_save_to_dcp", "torch_save_to_dcp", "run.pt", "torch.dcp"),
        ("folder -> file, dcp_to_torch_save", "dcp_to_torch_save", "run.dcp", "torch.pt"),
    ):
        command = [sys.executable, "-c", CONVERT, way, f"{folder}/{source}", f"{folder}/{target}", f"{folder}/tiny"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{title} failed:\n{done.stderr[-4000:]}")
        seconds, extra = map(float, done.stdout.split()[-2:])
        rows.append((title, f"{seconds:.1f}", f"{nbytes / 1e9 / seconds:.2f}", f"{extra / _MIB:.0f} MiB"))
        if target in ("back.pt", "again.pt"):
            _compare(f"{folder}/run.pt", f"{folder}/{target}")
        if target != "run.dcp":
            (shutil.rmtree if Path(f"{folder}/{target}").is_dir() else os.unlink)(f"{folder}/{target}")
    return common.table(rows)


def _compare(one: str, other: str) -> None:
    import torch

    a, b = (torch.load(path, mmap=True, weights_only=True) for path in (one, other))
    if list(a["model"]) != list(b["model"]) or not all(torch.equal(a["model"][k], b["model"][k]) for k in a["model"]):
        raise SystemExit(f"{other} holds other values than {one}")


def simulated(largest: int) -> str:
    """Plans of the first and the last rank; the slower is told, and what the first would read."""
    from benchmarks.simulated import rank_plan

    rows = [(f"(d) {largest:,} tensors", "plan", "reads planned", "bytes to read", "own parts")]
    for ranks in (8, 64, 1024):
        found = [rank_plan(largest, rank, ranks) for rank in (0, ranks - 1)]
        if any(row.read != row.own for row in found):
            raise SystemExit(f"a rank of {ranks} would read {found}")
        slowest = max(found, key=lambda row: row.planned)
        seconds = (f"{slowest.planned:.2f} s", f"{max(row.scheduled for row in found):.2f} s")
        nbytes = (f"{found[0].read / _MIB:,.1f} MiB", f"{found[0].own / _MIB:,.1f} MiB")
        rows.append((f"one rank of {ranks:,}", *seconds, *nbytes))
    return common.table(rows)


def main() -> None:
    if sys.argv[1:2] == ["--rank"]:
        _rank(sys.argv[2:])
        return
    asked = common.options(
        sys.argv[1:],
        only="abcd",
        gb=1.0,
        convert_gb=4.0,
        rounds=5,
        folder="/dev/shm",
        convert_folder="/tmp",
        tensors=100_000,
    )
    nbytes, rounds = int(asked["gb"] * 1e9), asked["rounds"]
    print(f"{asked['gb']:g} GB of state in {asked['folder']}, {rounds} rounds, medians; conversions in "
          f"{asked['convert_folder']}; {os.cpu_count()} cores\n")  # fmt: skip
    with tempfile.TemporaryDirectory(dir=asked["folder"]) as folder:
        if "a" in asked["only"]:
            print(save_and_restore(folder, nbytes, rounds), "\n", flush=True)
        if "b" in asked["only"]:
            print(into_shards(folder, nbytes, max(1, rounds // 2)), "\n", flush=True)
    with tempfile.TemporaryDirectory(dir=asked["convert_folder"]) as folder:
        if "c" in asked["only"]:
            print(conversions(folder, int(asked["convert_gb"] * 1e9)), "\n", flush=True)
    if "d" in asked["only"]:
        print(simulated(asked["tensors"]), flush=True)


if __name__ == "__main__":
    main()
