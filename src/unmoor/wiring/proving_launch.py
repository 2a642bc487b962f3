"""Fresh processes for the legs of a proof, with a hard time limit, and what they recorded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from unmoor.errors import MachineError
from unmoor.values.recording import Recording

from .proving_leg import ENVIRONMENT, Leg

__all__ = ["Launch", "launched"]

Launch = Callable[[Leg, Path, Callable[[int], None]], list[Recording]]
"""Carries a leg out and gives what each of its ranks recorded. The folder is the leg's own, and empty."""

_PAUSE: Final = 0.05
_GRACE: Final = 5.0
"""How long ranks are waited for, in seconds, once another has failed: for their own errors."""

_FROM_OUTSIDE: Final = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
)


def launched(leg: Leg, folder: Path, told: Callable[[int], None]) -> list[Recording]:
    """Carry a leg out in fresh processes, one for each rank. `told` gets the steps of rank 0.

    Raises MachineError where a process ends without a recording, or the leg takes longer than its time; none of its
    processes is left then.
    """
    (folder / "leg.json").write_text(json.dumps(leg.to_json()))
    started = [_start(leg, folder, rank) for rank in range(leg.world)]
    try:
        _wait(leg, folder, started, told)
    finally:
        for process in started:
            _end(process)
    return _recordings(leg, folder, started)


def _start(leg: Leg, folder: Path, rank: int) -> subprocess.Popen[bytes]:
    own = {name: value for name, value in os.environ.items() if name not in _FROM_OUTSIDE}
    threads = {"OMP_NUM_THREADS": own.get("OMP_NUM_THREADS", "1")} if leg.world > 1 else {}
    with (folder / f"output-{rank}.txt").open("wb") as output:
        return subprocess.Popen(  # noqa: S603 - this very interpreter, on this very package
            [sys.executable, "-m", __name__.replace("launch", "leg"), str(folder / "leg.json"), str(rank)],
            env={**own, **threads, ENVIRONMENT: str(os.getpid()), "PYTHONPATH": _import_path(own)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _import_path(environment: dict[str, str]) -> str:
    """Where the fresh process finds this package: where it was found here."""
    here = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join([here, *([environment["PYTHONPATH"]] if environment.get("PYTHONPATH") else [])])


def _wait(leg: Leg, folder: Path, started: Sequence[subprocess.Popen[bytes]], told: Callable[[int], None]) -> None:
    end, seen = time.monotonic() + leg.timeout, 0
    while any(process.poll() is None for process in started):
        step = _steps(folder)
        if step > seen:
            seen = step
            told(step)
        failed = any(process.poll() not in (None, 0) for process in started)
        if failed:
            end = min(end, time.monotonic() + _GRACE)
            if not any(process.poll() is None for process in started) or time.monotonic() >= end:
                return
        if time.monotonic() > end:
            if failed:
                return
            raise MachineError(
                f"{leg.title or 'a run'} of {leg.build} was still there after {leg.timeout:g} s, at step {seen}",
                details=_last_lines(folder),
                remedy="Take fewer steps, or a longer timeout=.",
            )
        time.sleep(_PAUSE)


def _steps(folder: Path) -> int:
    try:
        return int((folder / "step-0").read_text())
    except (OSError, ValueError):
        return 0


def _end(process: subprocess.Popen[Any]) -> None:
    """End a process and those that it started."""
    if process.poll() is None:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def _recordings(leg: Leg, folder: Path, started: Sequence[subprocess.Popen[bytes]]) -> list[Recording]:
    found = {}
    for rank in range(leg.world):
        place = folder / f"recording-{rank}.json"
        if place.exists():
            found[rank] = Recording.of(json.loads(place.read_text()))
    failed = [recording for recording in found.values() if recording.failure is not None]
    if len(found) == leg.world or failed:
        return [found[rank] for rank in sorted(found)]
    lost = next(rank for rank in range(leg.world) if rank not in found)
    code = started[lost].returncode
    how = f"was ended by signal {-code}" if code and code < 0 else f"ended with code {code}"
    raise MachineError(
        f"{leg.title or 'a run'} of {leg.build} {how} and left no recording",
        details=_last_lines(folder, lost),
        remedy="A process that is ended from outside is often out of memory." if code == -signal.SIGKILL else "",
    )


def _last_lines(folder: Path, rank: int = 0) -> list[str]:
    try:
        text = (folder / f"output-{rank}.txt").read_text(errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-8:]
