"""A long training under random kills, which must end with the very parameters of a run that nothing disturbed.

    python -m benchmarks.soak [--minutes 30] [--seed 0] [--steps 0] [--folder /tmp]

One process trains without a break, with its state as a digest at the end; another trains the same steps through
`unmoor.Run` and is ended again and again at random times, by SIGKILL, SIGTERM, SIGUSR1 or SIGINT, also while it starts,
saves, verifies or deletes. After each end the folder must hold a checkpoint that verifies, no older than what a kill
had left before; hidden files must not pile up. `--steps` are as many as fill the time where none are given.

The last lines are what to read: kills, steps lost and done again, and if the digests are the same.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import unmoor

__all__ = ["Soak", "soaked"]

SIGNALS: Final = (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
AGAIN: Final = 75
EVERY: Final = 20
_FEW_FILES: Final = 12
_UNENDING: Final = 600


@dataclass
class Soak:
    """What came of it. `lost` are steps that were done and had to be done again, `most` the most at one kill."""

    seconds: float = 0
    steps: int = 0
    kills: dict[str, int] = field(default_factory=dict)
    lost: int = 0
    most: int = 0
    wrong: list[str] = field(default_factory=list)
    same: bool = False


def soaked(minutes: float, *, seed: int = 0, steps: int = 0, folder: str | None = None) -> Soak:
    """Train under kills for about so many minutes, then to the end without."""
    made, begin, rng = Soak(), time.monotonic(), random.Random(seed)
    with tempfile.TemporaryDirectory(dir=folder, prefix="soak-") as scratch:
        run = Path(scratch) / "run"
        start, longer = (_timed(Path(scratch) / f"pace-{count}", count) for count in (EVERY, 25 * EVERY))
        pace = max(1e-4, (longer - start) / (24 * EVERY))
        made.steps = steps or max(400, round(minutes * 60 / 3 / pace / EVERY) * EVERY)
        until = time.monotonic() + 60 * minutes
        reached, code = 0, AGAIN
        while code != 0:
            patience = rng.uniform(0.5, 12) if time.monotonic() < until else _UNENDING
            chosen = rng.choice(SIGNALS)
            said, code, killed = _ran(run, made.steps, patience, chosen)
            if killed:
                made.kills[chosen.name] = made.kills.get(chosen.name, 0) + 1
            reached = _judged(made, run, said, code, reached)
            if len(made.wrong) > 5:
                break
        undisturbed = _digest(Path(scratch) / "undisturbed", made.steps)
        made.same = code == 0 and _last(said) == undisturbed
    made.seconds = time.monotonic() - begin
    return made


def _judged(made: Soak, run: Path, said: str, code: int, reached: int) -> int:
    """Hold what one process left against what was there before it; the step that is safe now."""
    facts = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    begun = next((fact["start"] for fact in facts if "start" in fact), None)
    done = max((fact["done"] for fact in facts if "done" in fact), default=reached if begun is None else begun)
    if code not in (0, AGAIN, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGUSR1, -signal.SIGINT, 1, 130):
        made.wrong.append(f"the process ended with {code}: {said[-500:]}")
    if begun is not None and begun < reached:
        made.wrong.append(f"resumed from step {begun}, where {reached} was safe")
    try:
        safe = unmoor.latest(run, verify=True).step or 0
    except unmoor.UnmoorError as error:
        safe = 0
        if reached:
            made.wrong.append(f"no checkpoint holds after step {reached}: {error}")
    if safe < reached:
        made.wrong.append(f"step {safe} is the newest that verifies, where {reached} was safe")
    left = len(list(run.iterdir())) if run.is_dir() else 0
    if left > _FEW_FILES:
        made.wrong.append(f"{left} files have piled up")
    lost = max(0, done - safe)
    made.lost, made.most = made.lost + lost, max(made.most, lost)
    return max(reached, safe)


def _ran(folder: Path, steps: int, patience: float, ending: signal.Signals) -> tuple[str, int, bool]:
    """What a process said that trains, how it ended, and if it was sent the signal because patience ran out."""
    command = [sys.executable, "-m", "benchmarks.soak", "--child", str(folder), "--steps", str(steps)]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        killed = False
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.send_signal(ending)
            killed = True
        code = process.wait(_UNENDING)
        said.seek(0)
        return said.read(), code, killed


def _digest(folder: Path, steps: int) -> str:
    """The parameters at the end of a run that nothing disturbs."""
    return _last(_ran(folder, steps, _UNENDING, signal.SIGKILL)[0])


def _timed(folder: Path, steps: int) -> float:
    """Seconds that so many steps take, the start of a process included."""
    begin = time.monotonic()
    _digest(folder, steps)
    return time.monotonic() - begin


def _last(said: str) -> str:
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return next((line["digest"] for line in reversed(lines) if "digest" in line), said[-500:])


def _train(folder: str, steps: int) -> None:
    """The run itself: dropout, shuffled data and a schedule, so that every stream and counter tells."""
    import hashlib

    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    inputs = torch.randn(96, 16)
    loader = unmoor.resumable(DataLoader(TensorDataset(inputs), batch_size=8, shuffle=True))
    run = unmoor.Run(
        folder,
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        loader=loader,
        every=EVERY,
        keep_last=3,
        keep_best=("loss", "min", 1),
    )
    start = run.resume()
    print(json.dumps({"start": start}), flush=True)
    batches = _forever(loader)
    for step in run.steps(start, steps):
        (batch,) = next(batches)
        loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        run.log(loss=loss)
        time.sleep(0.002)
        print(json.dumps({"done": step + 1}), flush=True)
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    print(json.dumps({"digest": digest.hexdigest()}), flush=True)


def _forever(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=0, help="steps of the whole run; as many as fill the time if 0")
    parser.add_argument("--folder", default=None, help="where its files lie meanwhile")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        _train(chosen.child, chosen.steps)
        return 0
    made = soaked(chosen.minutes, seed=chosen.seed, steps=chosen.steps, folder=chosen.folder)
    kills = ", ".join(f"{number} {name}" for name, number in sorted(made.kills.items())) or "none"
    print(f"{made.seconds / 60:.1f} min, {made.steps:,} steps, a checkpoint every {EVERY}; ended by {kills}")
    print(f"steps lost and done again: {made.lost:,}, at most {made.most} at once")
    print("\n".join(f"WRONG: {what}" for what in made.wrong) or "every end left a checkpoint that verifies")
    print(f"the parameters at the end are {'the same as' if made.same else 'NOT those'} of an undisturbed run")
    return 0 if made.same and not made.wrong else 1


if __name__ == "__main__":
    sys.exit(main())
