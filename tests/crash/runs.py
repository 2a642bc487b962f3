"""A training run that is killed at every operation on its files, and started again."""

from __future__ import annotations

import os
import shutil
import time
from hashlib import sha256
from pathlib import Path

import torch

import unmoor
from tests.faults.zygote import Run, Zygote

from .kills import Sweep, copied, place
from .power import Disk, laid, materialise, states
from .states import Seen

__all__ = ["TOTAL", "after_outages", "killed_and_resumed", "train"]

TOTAL = 9
EVERY = 2
MOST = 4
"""Checkpoints that may stay: the last two, the best, and the one that was resumed from."""
CALL = f"{__name__}:train"


def train(folder: str, way: str) -> str:
    """Train to the end, from wherever the run is; tells the parameters, the optimizer's state and the order of data."""
    torch.manual_seed(0)
    model = torch.nn.Linear(40, 40)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    options = {"every": EVERY, "keep_last": 2, "keep_best": ("loss", "min", 1), "background": way == "behind"}
    with unmoor.Run(folder, model=model, optimizer=optimizer, **options) as run:
        start = run.resume()
        for _ in run.steps(start, TOTAL):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 40)).square().mean()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
    state = [model.state_dict(), optimizer.state_dict()["state"]]
    return sha256(repr([*(each.tolist() for each in _tensors(state))]).encode()).hexdigest()


def _tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [tensor for each in values for tensor in _tensors(each)]


def warm() -> None:
    """Train once, so that all is imported."""
    with place() as folder:
        train(str(folder / "run"), "at once")


def killed_and_resumed(zygote: Zygote, way: str, *, every: int, when: tuple[str, ...] = ("before",)) -> Sweep:
    """Kill the run at every so-manieth operation, look at what is newest, and let it end: exactly as if undisturbed.

    The newest checkpoint that verifies is never older than one that was there earlier, and nothing is left in the
    folder that an undisturbed run does not leave.
    """
    sweep, begin = Sweep(f"unmoor.Run, {way}"), time.monotonic()
    with place() as folder:
        (folder / "template").mkdir()
        point = copied(folder / "template")
        whole = zygote.run(CALL, point, str(point / "run"), way, log=True, log_data=False)
        if whole.error:
            raise RuntimeError(f"the run failed: {whole.error}")
        names, saves = _names(point), _saves(whole)
        sweep.operations = len(whole.log)
        for at in range(every // 2 + 1, len(whole.log) + 1, every):
            for moment in when:
                point = copied(folder / "template")
                if zygote.run(CALL, point, str(point / "run"), way, kill_at=at, when=moment).killed:
                    sweep.tried += 1
                    done = sum(number < at for number in saves)
                    fault = _fault(point, done) or _end(zygote, point, way, whole, names)
                    if fault:
                        sweep.lost.append(f"{moment} operation {at}: {fault}")
    sweep.seconds = time.monotonic() - begin
    return sweep


def after_outages(zygote: Zygote, way: str, *, seeds: int, every: int) -> Sweep:
    """Cut the power at every so-manieth operation of a run: what it had saved, and has said to be safe, verifies."""
    sweep, begin = Sweep(f"unmoor.Run, {way} (power loss)"), time.monotonic()
    with place() as folder:
        (folder / "template").mkdir()
        point = copied(folder / "template")
        disk = Disk(point)
        whole = zygote.run(CALL, point, str(point / "run"), way, log=True)
        if whole.error:
            raise RuntimeError(f"the run failed: {whole.error}")
        seen, judged, named, safe = Seen(_newest), set(), 0, 0
        sweep.operations = len(whole.log)
        for operation in whole.log:
            disk.do(operation)
            named += operation.number in _saves(whole)
            safe = named if operation.kind == "fsync" and os.path.isdir(operation.path) else safe
            for state in states(disk, seeds=seeds) if operation.number % every == 0 else ():
                if (laid(state), safe) in judged:
                    continue
                judged.add((laid(state), safe))
                sweep.tried += 1
                made = folder / "state"
                shutil.rmtree(made, ignore_errors=True)
                materialise(state, made)
                found = seen(str(made / "run"))
                if safe and not (found.isdigit() and int(found) >= min(safe * EVERY, TOTAL)):
                    sweep.lost.append(f"after {operation}: {found}, and {safe} saves were safe")
    sweep.seconds = time.monotonic() - begin
    return sweep


def _newest(folder: str) -> str:
    try:
        return str(unmoor.latest(folder, verify=True).step)
    except (unmoor.UnmoorError, OSError) as error:
        return f"{type(error).__name__}: {error}"


def _saves(whole: Run) -> list[int]:
    """The numbers of the operations that give checkpoints their names."""
    ends = (op for op in whole.log if op.kind == "rename" and os.path.basename(op.other).startswith("step_"))
    return [op.number for op in ends]


def _fault(point: Path, done: int) -> str:
    """What is wrong with the newest checkpoint, if `done` saves had been put in their place."""
    if not done:
        return ""
    try:
        newest = unmoor.latest(str(point / "run"), verify=True)
    except unmoor.UnmoorError as error:
        return f"nothing to resume from after {done} saves: {error}"
    meant = min(done * EVERY, TOTAL)
    return "" if newest.step in (meant, min(meant + EVERY, TOTAL)) else f"at step {newest.step} after {done} saves"


def _end(zygote: Zygote, point: Path, way: str, whole: Run, names: set[str]) -> str:
    again = zygote.run(CALL, point, str(point / "run"), way)
    if again.error or again.code:
        return f"it does not resume: {again.error or again.code}"
    if again.value != whole.value:
        return "it ends with other parameters"
    left = _names(point)
    checkpoints = [name for name in left if "step_" in name]
    junk = {name for name in left ^ names if "step_" not in name or "unmoor-" in name}
    return f"it leaves {sorted(left)}" if junk or len(checkpoints) > MOST else ""


def _names(point: Path) -> set[str]:
    return {str(path.relative_to(point)) for path in point.rglob("*")}
