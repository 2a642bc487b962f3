"""Preflight: a fresh process in which the device is in pretence, with a time limit, and what it answered."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from unmoor import errors
from unmoor.errors import MachineError, UnmoorError, UsageError
from unmoor.live.fake_device import asked_device
from unmoor.values.preflight import Preflight

from .building import name_elsewhere
from .termination import ended_in_order

__all__ = ["ENVIRONMENT", "preflight_run", "preflights"]

ENVIRONMENT: Final = "UNMOOR_PREFLIGHT"
"""Set in the process of a preflight, so that a script that it imports does not begin another one."""

_HIDDEN: Final = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ZE_AFFINITY_MASK": ""}
"""The process must not find real devices: nothing of them is touched, whatever the machine has."""


def preflight_run(build: str | Callable[..., Any], *, device: Any, timeout: float) -> Preflight:
    """One training step of the run that `build` makes, on a device in pretence."""
    found = preflights([build], device=device, timeout=timeout)[0]
    if isinstance(found, UnmoorError):
        raise found
    return found


def preflights(
    builds: Sequence[str | Callable[..., Any]], *, device: Any, timeout: float
) -> list[Preflight | UnmoorError]:
    """The same of several runs, one after the other in one process; the error in the place of one that is not built."""
    if os.environ.get(ENVIRONMENT):
        raise UsageError(
            "a preflight was begun by the script that a preflight imports",
            remedy='Put what begins it under `if __name__ == "__main__":`.',
        )
    if not timeout > 0:
        raise UsageError(f"timeout={timeout!r} leaves no time", remedy="Pass seconds, such as timeout=300.")
    names, place = [name_elsewhere(build) for build in builds], str(asked_device(device))
    with ended_in_order(), tempfile.TemporaryDirectory(prefix="unmoor-") as folder:
        rows = _answers(Path(folder), {"builds": names, "device": place}, timeout)
    return [_read(name, row) for name, row in zip(names, rows, strict=True)]


def _answers(folder: Path, request: dict[str, Any], timeout: float) -> list[dict[str, Any]]:
    asked, answers, output = folder / "request.json", folder / "answers.json", folder / "output.txt"
    asked.write_text(json.dumps(request))
    with output.open("wb") as stream:
        process = subprocess.Popen(  # noqa: S603 (this very interpreter, on this very package)
            [sys.executable, "-m", f"{__name__}_child", str(asked), str(answers)],
            env={**os.environ, **_HIDDEN, ENVIRONMENT: "1", "PYTHONPATH": _import_path()},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    if code == 0 and answers.exists():
        rows: list[dict[str, Any]] = json.loads(answers.read_text())
        return rows
    how = f"was still there after {timeout:g} s" if code is None else f"ended with code {code}"
    how = f"was ended by signal {-code}" if code is not None and code < 0 else how
    said = [line for line in output.read_text(errors="replace").splitlines() if line.strip()][-8:]
    remedy = "The last lines of its output are above." if said else "It wrote nothing before."
    raise MachineError(
        f"the preflight of {', '.join(request['builds'])} {how}",
        details=said,
        remedy="Give it a longer timeout=." if code is None else remedy,
    )


def _import_path() -> str:
    """Where the fresh process finds this package and the user's modules: where they were found here."""
    here = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join([here, *(path for path in sys.path if path and Path(path).is_dir())])


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def _read(build: str, row: dict[str, Any]) -> Preflight | UnmoorError:
    if "preflight" in row:
        return Preflight.of(row["preflight"])
    if "error" in row:
        told = row["error"]
        cls: type[UnmoorError] = getattr(errors, told["class"])
        return cls(told["headline"], details=told["details"], remedy=told["remedy"])
    failure = row["failure"]
    return UsageError(
        f"{build} raised {failure['class']}: {failure['message']}".rstrip(": "),
        details=failure["trace"].rstrip().splitlines(),
        remedy="No step was taken: the run could not be built.",
    )
