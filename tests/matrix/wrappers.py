"""Saved as any kind of model, restored into any other: what must happen in each cell, and what does.

`python -m tests.matrix.wrappers` prints it as a table. The expected verdict follows from the structures of the two
kinds alone: the same one is equal, one of the same family is equal under other names, any other is refused.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.runs.training import equal

from .carriers import CARRIERS, Carrier
from .report import Outcome, failures, reasons, table
from .wrapper_kinds import FAMILY, KINDS, Kind, world_of_one
from .wrapper_runs import start

__all__ = ["Saved", "cell", "expected", "outcomes", "save", "saved_runs"]


def expected(saved: Kind, restored: Kind) -> str:
    """What must happen in a cell: "equal", "renamed" (equal, under other names) or "refused"."""
    if saved.structure == restored.structure:
        return "equal"
    one, other = (FAMILY.get(kind.structure, kind.structure) for kind in (saved, restored))
    return "renamed" if one == other else "refused"


@dataclass(frozen=True)
class Saved:
    """A run of one kind as it was saved after three steps, and as it is after three more."""

    kind: Kind
    path: Path
    state: dict[str, Any]
    later: dict[str, Any]


def save(kind: Kind, folder: Path, carrier: Carrier) -> Saved:
    """Three steps, a save, three more."""
    run = start(kind).train(3)
    path = folder / f"{len(list(folder.iterdir()))}.pt"
    state = run.state()
    carrier.save(path, **run.roles)
    return Saved(kind, path, state, run.train(3).state())


def saved_runs(folder: Path, carrier: Carrier) -> dict[str, Saved]:
    """One saved run of every kind."""
    return {name: save(kind, folder, carrier) for name, kind in KINDS.items()}


def spelled(state: dict[str, Any], saved: Kind, restored: Kind) -> dict[str, Any]:
    """The state with the names that the other kind of its family has for the same numbers."""
    if saved.structure == restored.structure:
        return state
    old, new = ("weight_g", "weight_v"), ("parametrizations.weight.original0", "parametrizations.weight.original1")
    before, after = (old, new) if saved.structure == "weight_norm old" else (new, old)
    renamed = {f"head.{a}": f"head.{b}" for a, b in zip(before, after, strict=True)}
    return {part: {renamed.get(name, name): v for name, v in tensors.items()} for part, tensors in state.items()}


def cell(saved: Saved, restored: Kind, carrier: Carrier) -> Outcome:
    """What happens in one cell. A refusal is one only if it leaves everything as it was."""
    if "_orig_mod." in restored.hidden or "in place" in restored.name:
        torch._dynamo.reset()
    wish = expected(saved.kind, restored)
    name = f"{saved.kind.name} -> {restored.name}"
    run = start(restored, seed=7)
    before = run.touch().state() if wish == "refused" else {}

    def outcome(verdict: Any, reason: str = "") -> Outcome:
        return Outcome(saved.kind.group, restored.group, verdict, name, reason)

    try:
        carrier.restore(saved.path, **run.roles)
    except Exception as e:  # noqa: BLE001 - whatever a carrier raises is the reason of its cell
        reason = " ".join(f"{type(e).__name__}: {e}".split())
        if wish == "refused" and equal(run.state(), before):
            return outcome("illegal", reason)
        return outcome("refused" if wish != "refused" else "differs", reason)
    if wish == "refused":
        return outcome("differs", "loaded, though the two are different models")
    if not equal(run.state(), spelled(saved.state, saved.kind, restored)):
        return outcome("differs", "model or optimizer state differs after the restore")
    run.step = 3
    same_rule = saved.kind.rule == restored.rule
    if same_rule and not equal(run.train(3).state(), spelled(saved.later, saved.kind, restored)):
        return outcome("differs", "the next three steps differ")
    return outcome("equal")


def outcomes(carrier: Carrier) -> Iterator[Outcome]:
    """Every cell."""
    with world_of_one(), tempfile.TemporaryDirectory() as folder:
        runs = {}
        for name, kind in KINDS.items():
            try:
                runs[name] = save(kind, Path(folder), carrier)
            except Exception as e:  # noqa: BLE001 - whatever a carrier raises is the reason of its cells
                reason = f"cannot save: {type(e).__name__}: {' '.join(str(e).split())[:100]}"
                wished = [k for k in KINDS.values() if expected(kind, k) != "refused"]
                yield from (Outcome(kind.group, k.group, "refused", f"{name} -> {k.name}", reason) for k in wished)
        for saved in runs.values():
            yield from (cell(saved, kind, carrier) for kind in KINDS.values())


def main(arguments: list[str]) -> int:
    """Print the table of one carrier, unmoor's unless another is named."""
    carrier = CARRIERS[arguments[0] if arguments else "unmoor"]
    found = list(outcomes(carrier))
    refused = sum(o.verdict == "illegal" for o in found)
    print(f"{carrier.name}: saved (rows), restored (columns); equal cells of those that are one model")
    print(table(found, head="saved"))
    print(f"refused with nothing changed, as the two are different models: {refused}")
    print(reasons(found, "differs"))
    print(reasons(found, "refused"))
    print("\n".join(failures(found)[:40]))
    return int(bool(failures(found)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
