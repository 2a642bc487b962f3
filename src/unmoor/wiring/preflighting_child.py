"""The process in which a device is in pretence: builds each run that it is told, takes one step, and writes what came.

Run as a program it is that process: `python -m unmoor.wiring.preflighting_child REQUEST.json ANSWERS.json`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

from unmoor.errors import UnmoorError
from unmoor.live.built import ABSENT, Built
from unmoor.live.fake import Faked, pretend
from unmoor.live.fake_device import asked_device
from unmoor.live.fake_run import attempt, built_there, invented_lines, memory_on, modules_there
from unmoor.report.mismatch import with_text
from unmoor.report.preflight import preflight_text, step_findings
from unmoor.values.finding import Finding
from unmoor.values.mismatch import Mismatch
from unmoor.values.preflight import Preflight

from .building import function_of
from .diagnosing import diagnose_run

__all__ = ["main"]

_LOOK = 0.5
"""Seconds between two looks at the process that waits."""

_ROLES = ("model", "optimizer", "loss", "scheduler", "scaler", "metrics", "ema")


def main(request: str, answers: str) -> None:
    """Carry out the request of one file and write the answers to another."""
    asked = json.loads(Path(request).read_text())
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    warnings.simplefilter("ignore")
    sys.argv[1:] = []  # a build function that parses a command line finds none, as in a script without arguments
    with pretend(asked_device(asked["device"])) as faked:
        rows = [_answer(build, faked) for build in asked["builds"]]
    Path(answers).write_text(json.dumps(rows))


def _end_with(parent: int) -> None:
    """End this process and those that it started once the one that waits for it is gone, however that ended."""
    while os.getppid() == parent:
        time.sleep(_LOOK)
    if hasattr(os, "killpg"):
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)


def _answer(build: str, faked: Faked) -> dict[str, Any]:
    """What a build function came to: a preflight, or how it failed before a step was taken."""
    faked.notes.found.clear()
    try:
        return {"preflight": _flown(build, faked).to_json()}
    except UnmoorError as error:
        row = {"class": type(error).__name__, "headline": error.headline, "remedy": error.remedy}
        return {"error": {**row, "details": list(error.details)}}
    except Exception as error:  # noqa: BLE001 (an error of the user's function is told with its traceback)
        own = traceback.format_exception(type(error), error, _own_part(error))
        return {"failure": {"class": type(error).__name__, "message": str(error), "trace": "".join(own)}}


def _own_part(error: BaseException) -> Any:
    """The traceback without the frames of this package above the user's function."""
    found, own = error.__traceback__, str(Path(__file__).parents[1])
    while found is not None and found.tb_frame.f_code.co_filename.startswith(own):
        found = found.tb_next
    return found or error.__traceback__


def _flown(build: str, faked: Faked) -> Preflight:
    begin = time.perf_counter()
    built, placed = built_there(function_of(build), faked.device, build)
    there = modules_there(built)
    before = _diagnosed(built)
    made = attempt(built, faked)
    mismatch = None if made.mismatch is None else with_text(made.mismatch)
    before = tuple(finding for finding in before if not _is_told(finding, mismatch))
    found = Preflight(
        build=build,
        device=str(faked.device),
        mismatch=mismatch,
        findings=(*step_findings(build, str(faked.device), mismatch, made.stop, there=there), *before),
        parts={"build": 1, **made.parts},
        invented=invented_lines(faked),
        memory=memory_on(built, None if built.batch is ABSENT else built.batch),
        placed=placed,
        stop=made.stop,
        seconds=time.perf_counter() - begin,
    )
    return found.told(preflight_text(found))


def _diagnosed(built: Built) -> tuple[Finding, ...]:
    """What can be said of the objects before the step; a batch only where the usual step takes it as it is."""
    batch = ... if built.train_step is not None or built.batch is ABSENT or built["loader"] is not None else built.batch
    roles = {role: built[role] for role in _ROLES}
    found = diagnose_run(roles, batch, rng=None, values=False)
    return tuple(finding for finding in found.findings if finding.severity in ("error", "warning"))


def _is_told(finding: Finding, mismatch: Mismatch | None) -> bool:
    """Whether a finding is of a tensor that the mismatch has named already."""
    places = set(re.split(r"[,()\s]+", finding.place))
    names = {met.name.rpartition(" of ")[2] for met in mismatch.away} if mismatch is not None else set()
    return bool(places & (names | {f"model.{name}" for name in names}))


if __name__ == "__main__":
    main(*sys.argv[1:3])
