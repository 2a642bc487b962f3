"""The matrix of worlds: every layout saved, every layout restored, in real processes.

A cell is equal where, on every rank and bit for bit, parameters, buffers, optimizer state by name, options of groups,
scheduler and scaler are those of the saved run as torch gathers it; the next three steps are those of the same layout
filled by torch's own calls; and each rank that existed draws the random numbers it would have drawn, each new one
numbers of its own. The field then tells how far the losses of the next two steps are from those of the saved run where
nothing interrupts it: 0, or the largest relative difference of a sample's loss.

    python -m tests.worlds.matrix               the table for unmoor
    python -m tests.worlds.matrix dcp           the same for torch.distributed.checkpoint, as its tutorial has it
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.kept import kept
from tests.matrix.report import Outcome, reasons

from .carriers import CARRIERS
from .launch import Failed, launch
from .layouts import LAYOUTS

__all__ = ["Cell", "cells", "worlds"]

WORLDS = sorted({layout.world for layout in LAYOUTS.values()})
LIMIT = 300.0


@dataclass(frozen=True, slots=True)
class Cell:
    """A run of one layout restored in another: what was found, and how far its next two losses are from the run's."""

    outcome: Outcome
    apart: tuple[float, ...] = ()

    @property
    def text(self) -> str:
        """The field of the table."""
        if self.outcome.verdict != "equal":
            return self.outcome.verdict
        return f"{max(self.apart):.0e}" if max(self.apart) else "0"


def saved(base: Path, carrier: str) -> Path:
    """The folder of what a carrier saved in every layout."""

    def save(scratch: Path) -> Path:
        for world in WORLDS:
            _launch("saved_layouts", world, scratch / "saves", carrier)
        return scratch / "saves"

    return kept(base / f"worlds-{carrier}-saves", save)


def restored(base: Path, carrier: str, world: int) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """What each rank found in each cell whose target is a world of this size."""
    saves = saved(base, carrier)

    def restore(scratch: Path) -> Path:
        made = scratch / "found"
        made.mkdir()
        torch.save(_launch("restored_layouts", world, saves, carrier), made / "ranks.pt")
        return made

    ranks = torch.load(kept(base / f"worlds-{carrier}-{world}", restore) / "ranks.pt")
    return {cell: [rank[cell] for rank in ranks] for cell in ranks[0]}


def _launch(script: str, world: int, saves: Path, carrier: str) -> list[Any]:
    names = [layout.name for layout in LAYOUTS.values() if layout.world == world]
    ranks = launch(f"tests.worlds.ranks.{script}", world, saves, carrier, *names, limit=LIMIT, alone=world == 1)
    failed = {f"rank {i}: {rank.kind}: {rank.text}" for i, rank in enumerate(ranks) if isinstance(rank, Failed)}
    if failed:
        raise RuntimeError("\n".join([f"{script} failed in a world of {world}:", *sorted(failed)]))
    return ranks


def worlds(factory: pytest.TempPathFactory) -> Path:
    """Where the launches of a test run are kept; workers share it."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def judge(source: str, target: str, ranks: Sequence[dict[str, Any]]) -> Cell:
    """One cell, by what all ranks found."""
    name = f"{source} > {target}"
    if refused := [rank["refused"] for rank in ranks if "refused" in rank]:
        return Cell(Outcome(source, target, "refused", name, refused[0]))
    faults = [(number, fault) for number, rank in enumerate(ranks) for fault in _faults(rank)]
    if faults:
        number, fault = faults[0]
        reason = f"rank {number}: {fault}, and {len(faults) - 1} more"
        return Cell(Outcome(source, target, "differs", name, reason))
    return Cell(Outcome(source, target, "equal", name), tuple(ranks[0]["apart"]))


def _faults(rank: dict[str, Any]) -> Iterator[str]:
    for kind in ("state", "rng", "steps"):
        yield from (f"{kind}: {fault}" for fault in rank[kind])


def cells(base: Path, carrier: str = "unmoor") -> dict[tuple[str, str], Cell]:
    """All cells, by source and target."""
    found = {cell: ranks for world in WORLDS for cell, ranks in restored(base, carrier, world).items()}
    return {cell: judge(*cell, ranks) for cell, ranks in found.items()}


def table(found: dict[tuple[str, str], Cell], head: str) -> str:
    """A row for each layout that was saved, a column for each that was restored."""
    lines = [[head, *LAYOUTS], *([s, *(found[s, t].text for t in LAYOUTS)] for s in LAYOUTS)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(text.ljust(w) for text, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def main(arguments: Sequence[str]) -> int:
    """Print the table of a carrier and the reasons of what is not equal; 1 where anything is."""
    carrier = CARRIERS[arguments[0] if arguments else "unmoor"].name
    with tempfile.TemporaryDirectory() as folder:
        found = cells(Path(folder), carrier)
    outcomes = [cell.outcome for cell in found.values()]
    equal = sum(outcome.verdict == "equal" for outcome in outcomes)
    print(table(found, "saved"), f"\n{carrier}: {equal}/{len(outcomes)} equal")
    for verdict in ("differs", "refused"):
        if text := reasons(outcomes, verdict):
            print(f"\n{verdict}:\n{text}")
    return 0 if equal == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
