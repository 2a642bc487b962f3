"""A process in which everything is imported, that forks for each run: hundreds of kills a minute instead of a dozen.

In the fork a function is called with the shim armed. The next call begins when no process of this one is left, the
writer behind a save included.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import ROOT
from .control import Control, Operation, read_log

__all__ = ["Run", "Zygote"]

_SUBREAPER = 36
"""prctl's PR_SET_CHILD_SUBREAPER."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a call came to: `value` is what it returned, `error` class and text of what it raised, `code` its exit."""

    operations: int
    code: int
    value: Any = None
    error: tuple[str, str] | None = None
    killed: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    log: tuple[Operation, ...] = ()


class Zygote:
    """Calls functions in forks: "module:name", with plain values. `modules` are imported first; their `warm` is called.

    With `limit` seconds for each call; then everything is killed, which is a TimeoutError.
    """

    def __init__(self, *modules: str, limit: float = 60.0) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="zygote-")
        self.control = Control(Path(self._scratch.name, "control"))
        self._log = Path(self._scratch.name, "log")
        self._limit = limit
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.zygote", self.control.path, *modules],
            cwd=ROOT,
            env={**os.environ, **self.control.environment(), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            self._answer()
            self.control.check()
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it, with all that it started."""
        for pipe in (self._process.stdin, self._process.stdout):
            pipe.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._scratch.cleanup()

    def run(
        self,
        call: str,
        folder: str | os.PathLike[str],
        *arguments: Any,
        log: bool = False,
        kill_after: float | None = None,
        **faults: Any,
    ) -> Run:
        """Call a function in a fork, with faults in `folder` (as `tests.faults.run` takes them).

        `kill_after` kills the fork after so many seconds, wherever it is then.
        """
        self._log.unlink(missing_ok=True)
        self.control.order(folder, log=self._log if log else None, **faults)
        request = {"call": call, "arguments": list(arguments), "kill_after": kill_after, "limit": self._limit}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        reply = self._answer()
        if reply.get("late"):
            raise TimeoutError(f"{call}{arguments!r} was still there after {self._limit:g} s")
        page = self.control.page
        return Run(
            page.operations,
            reply["code"],
            reply.get("value"),
            tuple(reply["error"]) if reply.get("error") else None,
            bool(page.killed) or reply.get("struck", False),
            self.control.counts(),
            tuple(read_log(self._log)) if log else (),
        )

    def _answer(self) -> dict[str, Any]:
        if not select.select([self._process.stdout], [], [], self._limit + 60)[0]:
            os.killpg(self._process.pid, signal.SIGKILL)
            raise TimeoutError("the zygote does not answer")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the zygote ended with {self._process.wait()}")
        return json.loads(line)


def _called(call: str) -> Callable[..., Any]:
    module, _, name = call.partition(":")
    return getattr(importlib.import_module(module), name)


def _fork(control: Control, request: Mapping[str, Any], out: int) -> None:
    """What the fork does: the call, and what came of it as JSON on `out`."""
    function = _called(request["call"])
    try:
        control.arm(os.getpid())
        try:
            reply = {"value": function(*request["arguments"])}
        finally:
            control.disarm()
    except BaseException as error:  # noqa: BLE001 - told by the process that asked
        reply = {"error": [type(error).__name__, str(error)]}
    os.write(out, json.dumps(reply).encode())
    os._exit(0)


def _serve(control: Control, request: Mapping[str, Any]) -> dict[str, Any]:
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        _fork(control, request, theirs)
    os.close(theirs)
    struck = False
    if request["kill_after"] is not None:
        time.sleep(request["kill_after"])
        struck = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        os.kill(child, signal.SIGKILL)
    data, late = _read(ours, time.monotonic() + request["limit"])
    if late:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    control.disarm()
    late = not _all_gone(time.monotonic() + request["limit"]) or late
    return {"code": code, "late": late, "struck": struck, **(json.loads(data) if data else {})}


def _read(pipe: int, deadline: float) -> tuple[bytes, bool]:
    data = b""
    while select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
        piece = os.read(pipe, 1 << 16)
        if not piece:
            os.close(pipe)
            return data, False
        data += piece
    os.close(pipe)
    return data, True


def _all_gone(deadline: float) -> bool:
    """Wait for processes that the fork left behind, which are this one's now."""
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.001)
        except ChildProcessError:
            return True
    return False


def main(path: str, *modules: str) -> None:
    out = os.dup(1)
    os.dup2(2, 1)
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    control = Control(path)
    for name in modules:
        warm = getattr(importlib.import_module(name), "warm", None)
        if warm is not None:
            warm()
    os.write(out, b'{"ready": true}\n')
    for line in sys.stdin:
        os.write(out, json.dumps(_serve(control, json.loads(line))).encode() + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
