"""The demo: a published training run, saved on another machine's GPU, resumed on this one and proved exact.

Run as a program it is the fresh process that resumes: `python -m unmoor.demo CHECKPOINT DEVICE OUT`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from . import api
from .errors import MachineError, UsageError
from .values.text import count, listing

if TYPE_CHECKING:
    from .live.demo_run import Run

__all__ = ["run"]

STEPS: Final = 5
CHECKPOINT: Final = "pretrained/0.3.0/chgnet_0.3.0_e29f68s314m37.pth.tar"


def run(echo: Callable[[str], None]) -> int:
    """Resume the published CHGNet run here, train on, and hold a resumed process against the uninterrupted one.

    `echo` takes what there is to print. Returns 0 where every further step is equal bit for bit, else 1. Leaves no
    file behind. Raises UsageError where chgnet is not installed, MachineError where the fresh process fails.
    """
    path = _published()
    from .live.demo_run import differences, quiet, read_outcome, refusal

    catalog = api.describe(path)
    tags = ", ".join(f"{count(number, 'tensor')} on {tag}" for tag, (number, _) in catalog.devices().items())
    echo(f"A published training run: CHGNet 0.3.0, {tags}\n  {path}\n")
    echo(f"torch.load(path)\n  {refusal(path) or 'loads it onto the devices that it was saved on'}\n")
    with _exact_kernels(), tempfile.TemporaryDirectory(prefix="unmoor-demo-") as folder:
        saved, out = os.path.join(folder, "run.pt"), os.path.join(folder, "resumed.pt")
        with quiet():
            live = _build(catalog.tree)
            report = api.restore(path, **live.objects(), model_device="auto")
        echo(f'unmoor.restore(path, model=..., optimizer=..., scheduler=..., model_device="auto")\n{report}\n')
        with quiet():
            losses = live.train(STEPS)
            receipt = api.save(saved, **live.objects())
        echo(f"trained {STEPS} steps on a crystal of NaCl: loss {losses[0]:.6f} -> {losses[-1]:.6f}\n{receipt}")
        _resume_elsewhere(saved, str(live.device()), out)
        with quiet():
            here, there = live.outcome(STEPS), read_outcome(out)
        echo(f"took {STEPS} more steps in this process, and {STEPS} in a fresh one that restored run.pt\n")
        verdict, code = _verdict(here, there, list(differences(here, there)))
    echo(verdict)
    return code


def _published() -> str:
    """The checkpoint inside the chgnet package, which is not imported for it."""
    spec = find_spec("chgnet")
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(
            "the demo resumes a run that the package chgnet publishes, and chgnet is not installed",
            remedy='Install it: pip install "unmoor[torch,real]"',
        )
    return os.path.join(spec.submodule_search_locations[0], *CHECKPOINT.split("/"))


def _build(tree: Mapping[str, Any]) -> Run:
    from .live.demo_run import build

    return build(tree["model"]["model_args"], tree["trainer_args"])


@contextmanager
def _exact_kernels() -> Iterator[None]:
    """What cuBLAS wants to have been told, before its first use, for results that repeat."""
    name = "CUBLAS_WORKSPACE_CONFIG"
    before = os.environ.get(name)
    os.environ.setdefault(name, ":4096:8")
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]


def _resume_elsewhere(checkpoint: str, device: str, out: str) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "unmoor.demo", checkpoint, device, out]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - this very program
    if done.returncode:
        raise MachineError("the fresh process did not resume the run", details=done.stderr.splitlines()[-5:])


def _resume(checkpoint: str, device: str, out: str) -> None:
    """What the fresh process does: the run from its checkpoint, the further steps, and where they led."""
    from .live.demo_run import quiet, write_outcome

    with quiet():
        live = _build(api.describe(_published()).tree)
        api.restore(checkpoint, **live.objects(), model_device=device)
        write_outcome(live.outcome(STEPS), out)


def _verdict(here: Mapping[str, Any], there: Mapping[str, Any], differing: list[str]) -> tuple[str, int]:
    """The last line, and the exit code."""
    equal = sum(a == b for a, b in zip(here["loss"], there["loss"], strict=True))
    if differing:
        where = listing(differing, 6)
        return f"resumed steps DIFFER from the uninterrupted ones: {equal} of {STEPS} losses equal; {where}", 1
    state = sum(len(entry) for entry in here["optimizer"]["state"].values())
    proof = f"{count(len(here['model']), 'parameter')}, {count(state, 'optimizer tensor')}, scheduler"
    loss = f"loss {here['loss'][-1]:.6f}"
    return f"resumed steps equal the uninterrupted ones: {equal} of {STEPS}, bit for bit ({loss}, {proof})", 0


if __name__ == "__main__":
    _resume(*sys.argv[1:])
