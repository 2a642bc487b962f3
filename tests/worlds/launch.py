"""Real worlds: torchrun starts N processes over gloo on this machine, with a hard time limit.

A script is a module under `tests.worlds.ranks` (or any other) that calls `ranks.main(run)`: `run(rank, world, folder,
*arguments)` is called in each process with the process group ready, and what it returns is kept (plain values and
tensors). Errors that `run` raises are kept too, as class name and text, and do not fail the launch.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

__all__ = ["Failed", "aborted_at_its_end", "launch", "run_script"]

ROOT = Path(__file__).parents[2]
LIMIT = 180.0


@dataclass(frozen=True, slots=True)
class Failed:
    """What a rank raised: the name of the class, the names of its bases, and the text."""

    kind: str
    bases: tuple[str, ...]
    text: str


def launch(
    script: str,
    world: int,
    *arguments: Any,
    limit: float = LIMIT,
    env: dict[str, str] | None = None,
    whole: bool = True,
    alone: bool = False,
) -> list[Any]:
    """Run `script` in a world of `world` ranks; what each rank returned, by rank (a `Failed` where it raised).

    With `alone` it is one process without torchrun and without a process group, as a script of one process is.

    All processes are killed after `limit` seconds, which is a TimeoutError with their output. With `whole` false a rank
    that ended without a result (killed, say) is None, otherwise a RuntimeError with the output.
    """
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, *([] if alone else _torchrun(world)), "-m", script, scratch, *map(str, arguments)]
        output, _ = _run(command, _settings(env or {}), limit)
        return [_result(Path(scratch), rank, output if whole else None) for rank in range(world)]


def run_script(path: Path, world: int, *arguments: Any, limit: float = LIMIT) -> str:
    """What a script prints under torchrun, or in one process alone where `world` is 1.

    A RuntimeError with the output where it ends with an error; a TimeoutError after `limit` seconds. A rank whose work
    is done may be aborted by a thread of gloo as it takes itself apart: where that, and no error, was the first to end
    a rank, what all ranks printed is the answer, and the tests hold each of them to it.
    """
    command = [sys.executable, *([] if world == 1 else _torchrun(world)), str(path), *map(str, arguments)]
    output, code = _run(command, _settings({}), limit)
    if code and not (world > 1 and aborted_at_its_end(output)):
        raise RuntimeError(f"{path.name} ended with {code} in a world of {world}:\n{output[-12000:]}")
    return output


def aborted_at_its_end(output: str) -> bool:
    """Whether torchrun's first failure is an abort that C++ speaks of as a thread left over, and not an error."""
    cause = output.partition("Root Cause (first observed failure):")[2]
    return "terminate called without an active exception" in output and "exitcode  : -6 " in cause


def _settings(env: dict[str, str]) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if name not in ("LOCAL_RANK", "RANK", "WORLD_SIZE")}
    return {**own, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **env}


def _torchrun(world: int) -> list[str]:
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--max-restarts", "0"]
    return ["-m", "torch.distributed.run", "--nproc-per-node", str(world), *meeting]


def _run(command: list[str], env: dict[str, str], limit: float) -> tuple[str, int]:
    with subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            raise TimeoutError(f"the world was still there after {limit:g} s:\n{output[-12000:]}") from None
    return output, process.returncode


def _result(folder: Path, rank: int, output: str | None) -> Any:
    place = folder / f"result-{rank}.pt"
    if not place.exists():
        if output is None:
            return None
        raise RuntimeError(f"rank {rank} gave no result:\n{output[-12000:]}")
    found = torch.load(place, weights_only=True)
    return Failed(*found["failed"]) if found["failed"] else found["value"]
