"""Legs of proofs carried out in this process: the same code, without the seconds that a fresh process takes to start.

Runs that were not resumed are kept, so that many omissions are held against one of them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from unmoor.live.kept_streams import streams_kept
from unmoor.values.proof import Proof
from unmoor.values.recording import Recording
from unmoor.wiring.proving_leg import Leg, run_leg
from unmoor.wiring.proving_run import Wanted, prove_run

__all__ = ["proved"]

_KEPT: dict[tuple[Leg, bool], tuple[list[Recording], bytes | None]] = {}


def _launch(leg: Leg, folder: Path, told: Callable[[int], None]) -> list[Recording]:
    plain = replace(leg, save_to="", imports=(), title="", timeout=0.0)
    key = (plain if leg.save_to else replace(plain, omit=(), save="", resume=""), bool(leg.save_to))
    if not leg.resume_from and key in _KEPT and not leg.build.partition(":")[2].startswith("restless"):
        recordings, saved = _KEPT[key]
        if saved is not None:
            Path(leg.save_to).write_bytes(saved)
        if saved is not None or not leg.save_to:
            return recordings
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with streams_kept():
            recordings = [run_leg(leg, told=told)]
    finally:
        torch.set_num_threads(threads)
    recordings = [Recording.of(recording.to_json()) for recording in recordings]
    if not leg.resume_from:
        saved = Path(leg.save_to).read_bytes() if leg.save_to and Path(leg.save_to).is_file() else None
        _KEPT[key] = recordings, saved
    return recordings


def proved(build: str, *, steps: int = 9, cut: int = 5, folder: Any = None, **asked: Any) -> Proof:
    """The proof of a run of `runs.py`."""
    for word in ("save", "resume"):
        if asked.get(word):
            asked[word] = f"tests.prove.runs:{asked[word]}"
    wanted = Wanted(f"tests.prove.runs:{build}", steps, cut, **asked)
    try:
        return prove_run(wanted, folder=folder, picture=None, launch=_launch)
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
