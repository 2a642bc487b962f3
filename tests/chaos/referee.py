"""ckpt-chaos on a script of ours, and on the trainers of others: how often each of its verdicts was given.

It kills a process at the file events of its saves, resumes it and holds the final weights against those of a run that
nothing disturbed. The package is fetched once, pinned; it needs nothing beside Python's own library. Those of the
trainers lie in the environment of `tests/dialects`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

from tests.dialects import environment
from tests.kept import kept

__all__ = ["TRAINERS", "Unavailable", "judged", "trainer"]

PINNED: Final = "ckpt-chaos==0.1.8"
SCRIPT: Final = Path(__file__).with_name("train.py")
TRAINERS: Final = {"Hugging Face Trainer": "hf_trainer", "Lightning": "lightning_trainer"}
"""What the referee calls the trainers that it brings along."""

Unavailable = environment.Unavailable


def judged(*flags: str, points: int = 0) -> Counter[str]:
    """Its verdicts on the script with these flags: at every point, or at so many evenly chosen ones."""
    script = [sys.executable, str(SCRIPT), "--out", "{out}", *flags]
    limit = ["--max-points", str(points)] if points else []
    contract = ["--checkpoint-glob", "{out}/run/step_*.pt", "--ckpt-ignore-size"]
    told = ["--step-regex", r"resumed from step (\d+)", "--result-file", "{out}/final.pt"]
    return _run(sys.executable, ["run", *contract, *told, *limit, "--", *script])


def trainer(name: str) -> Counter[str]:
    """Its verdicts on one of TRAINERS."""
    return _run(str(environment.built()), ["bench", TRAINERS[name]])


def _run(python: str, arguments: list[str]) -> Counter[str]:
    package = _package()
    with tempfile.TemporaryDirectory(prefix="chaos-") as work:
        command = [python, "-m", "ckpt_chaos", arguments[0], "--work", work, *arguments[1:]]
        settings = environment.settings()
        path = f"{package}:{settings['PYTHONPATH']}"
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=work, env={**settings, "PYTHONPATH": path}
        )
        outcomes = [json.loads(file.read_text()) for file in sorted(Path(work).rglob("result.json"))]
    if not outcomes:
        raise RuntimeError(f"the referee told nothing: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    sys.path.append(str(package))
    try:
        from ckpt_chaos.invariants import ResumeOutcome, classify  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(package))
    verdicts: Counter[str] = Counter()
    for made in outcomes:
        verdicts[_verdict(made, lambda facts: classify(ResumeOutcome(**facts)))] += 1
    return verdicts


def _verdict(made: dict[str, Any], classify: Any) -> str:
    """Its verdict; a run that was not killed is its control, in which all must be well."""
    verdict: str = classify(made["outcome"])
    if made["crashed"]:
        return verdict
    return "control" if verdict == "PASS" else "CONTROL_FAIL"


def _package() -> Path:
    return kept(environment.CACHE.parent / "peers" / PINNED, lambda scratch: _install(scratch / "packages"))


def _install(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), PINNED]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment.settings())
    if done.returncode:
        raise Unavailable(f"pip cannot install {PINNED}: {(done.stderr.strip().splitlines() or ['no reason'])[-1]}")
    return folder
