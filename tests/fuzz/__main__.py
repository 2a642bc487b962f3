"""python -m tests.fuzz [TARGET ...]: an hour (FUZZ_SECONDS) of fuzzing, what was tried and what broke.

FUZZ_SEED is the seed, FUZZ_CORPUS a folder in which what coverage taught is kept from run to run.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.fuzz.campaign import Outcome, fuzzed
from tests.fuzz.guided import guided, is_here
from tests.fuzz.targets import TARGETS

__all__ = ["everything"]


def everything(seconds: float, *, seed: int, names: list[str], corpus: Path | None = None) -> Outcome:
    """Half of the time by generators and mutation over all targets, half guided by coverage, target after target."""
    half = seconds / 2 if is_here() else seconds
    total = fuzzed(half, seed=seed, targets=names)
    each = int(half / len(names))
    for name in names if is_here() and each else []:
        found = guided(name, each, seed=seed, corpus=corpus / name if corpus else None)
        total.executions[name] = total.executions.get(name, 0) + found.executions[name]
        total.crashes += found.crashes
        total.seconds += found.seconds
    return total


def main() -> int:
    seconds, seed = float(os.environ.get("FUZZ_SECONDS", "3600")), int(os.environ.get("FUZZ_SEED", "0"))
    corpus = os.environ.get("FUZZ_CORPUS")
    found = everything(seconds, seed=seed, names=sys.argv[1:] or list(TARGETS), corpus=Path(corpus) if corpus else None)
    for name, number in found.executions.items():
        print(f"  {name:<12} {number:>10,} executions, {found.accepted.get(name, 0):,} read")
    for crash in found.crashes:
        print(f"{crash.target}: {crash.what}\n  at {crash.where}\n  {crash.files}")
    print(f"{found.total:,} executions in {found.seconds:.0f} s, {len(found.crashes)} crashes")
    return 1 if found.crashes else 0


if __name__ == "__main__":
    sys.exit(main())
