"""The matrix of optimizers: class x switches x situation x live optimizer x devices, for any carrier.

A cell is legal where the class itself, without any carrier, takes its steps on both devices; the words with which it
refuses are kept. It is equal where the restored run is, bit for bit, the run that was never interrupted: the same
state on the target device, each tensor where the class itself puts it there. Both then take three more steps.

    python -m tests.matrix.optimizers            the full product, as a table
    python -m tests.matrix.optimizers --sample   the part that the tests take: see `cover`
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch.optim import Optimizer

from tests.accelerator import install

from .carriers import CARRIERS, Carrier
from .cover import pairwise
from .optimizer_runs import (
    SHAPES,
    SITUATIONS,
    Run,
    Setting,
    capture_streams,
    first_difference,
    frozen_value,
    seed_all,
    start,
    transplant,
    values_of,
)
from .optimizer_switches import CLASSES, combinations, describe, execution_ways
from .report import Outcome, Verdict, failures, reasons, table

__all__ = ["FULL", "PAIRS", "Case", "Cell", "cells", "crossings", "judge", "sample"]

FULL: Final = os.environ.get("UNMOOR_MATRIX") == "full"
"""Whether the tests take every cell."""

PAIRS: Final = (
    ("cpu", "cpu"), ("cpu", "sim:0"), ("sim:0", "cpu"), ("sim:0", "sim:1"), ("cuda:7", "cpu"),
)  # fmt: skip
"""Device of the save, device of the restore. A file of cuda:7 is one of sim:0 with the tags written so."""

COLUMNS: Final = tuple(map(" > ".join, PAIRS))

LIVE: Final = ("fresh", "stepped")
"""The optimizer that is restored into: as constructed, or after steps of its own from other values."""


class Case(NamedTuple):
    """One class in one situation, under one combination of switches; `live` are those of the restored optimizer."""

    name: str
    make: Callable[..., Optimizer]
    setting: Setting
    switches: Mapping[str, Any]
    live: Mapping[str, Any]
    situation: str

    def run(self, device: str, *, live: bool, seed: int) -> Run:
        return start(self.make, self.live if live else self.switches, self.situation, device, self.setting, seed=seed)

    def __str__(self) -> str:
        switches = describe(self.switches)
        if self.live is not self.switches:
            switches += f" -> {describe(self.live)}"
        return f"{self.name} [{switches}] {self.situation}"


@dataclass(frozen=True, slots=True)
class Cell:
    """A case, the state of the live optimizer, and the two devices."""

    case: Case
    live: str
    pair: tuple[str, str]

    def __str__(self) -> str:
        return f"{self.case}, {self.live}, {' -> '.join(self.pair)}"

    def factors(self) -> dict[str, Hashable]:
        """The value of this cell on each axis."""
        switches = {
            f"{side} {key}": str(v) for side in ("switches", "live") for key, v in getattr(self.case, side).items()
        }
        return {**switches, "situation": self.case.situation, "into": self.live, "devices": self.pair}


def cells(
    name: str,
    make: Callable[..., Optimizer],
    options: Sequence[Mapping[str, Any]],
    shapes: Collection[str] = tuple(SHAPES),
) -> Iterator[Cell]:
    """Every cell of one class over parameters of these shapes, those of one case in a row."""
    setting = Setting.of(make, shapes)
    for switches in options:
        for situation in SITUATIONS:
            yield from _cells(Case(name, make, setting, switches, switches, situation))


def crossings(name: str, make: type[Optimizer]) -> Iterator[Cell]:
    """Saved under one way of computing a step, restored into an optimizer with another: the live one decides."""
    setting = Setting.of(make)
    plain = combinations(make)[0]
    ways = [{**plain, **way} for way in execution_ways(make)]
    if "capturable" in make.__init__.__annotations__:
        ways += [{**way, "capturable": True} for way in ways]
    pairs = [(a, b) for a in ways for b in ways if a is not b]
    for saved, live in pairs:
        yield from _cells(Case(name, make, setting, saved, live, "stepped"))


def _cells(case: Case) -> Iterator[Cell]:
    return (Cell(case, live, pair) for live in LIVE for pair in PAIRS)


class Illegal(Exception):
    """The optimizer itself refuses, without any carrier."""


def judge(carrier: Carrier, found: Iterable[Cell], folder: Path) -> Iterator[Outcome]:
    """Run cells through a carrier. Cells of one case that follow one another share their files and references."""
    scene: _Scene | None = None
    for cell in found:
        if scene is None or scene.case is not cell.case:
            scene = _Scene(carrier, cell.case, folder)
        with _one_thread():
            verdict, reason = _judged(scene, cell)
        yield Outcome(cell.case.name, " > ".join(cell.pair), verdict, str(cell), reason)


def _judged(scene: _Scene, cell: Cell) -> tuple[Verdict, str]:
    try:
        return scene.verdict(cell)
    except Illegal as refusal:
        return "illegal", str(refusal)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Tensors of a dozen numbers gain nothing from threads, which wait for each other on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def sample(carrier: Carrier, found: Iterable[Cell], folder: Path) -> Iterator[Outcome]:
    """Run the part of the cells that meets every legal pair of values of two axes."""
    run = lambda cell: next(judge(carrier, [cell], folder))
    return pairwise(found, Cell.factors, run, lambda outcome: outcome.verdict != "illegal")


class _Source(NamedTuple):
    """A run that was saved: its values, told apart from where they are, and its random streams."""

    run: Run
    values: Any
    put_back: Callable[[], None]


class _Scene:
    """One case: runs by device, files by the tag they bear, references by what goes where; each made once."""

    def __init__(self, carrier: Carrier, case: Case, folder: Path) -> None:
        self.case, self._carrier, self._folder = case, carrier, folder
        self._sources: dict[str, Any] = {}
        self._files: dict[str, Any] = {}
        self._wanted: dict[Any, Any] = {}

    def verdict(self, cell: Cell) -> tuple[Verdict, str]:
        tag, device = cell.pair
        home = "sim:0" if tag.startswith("cuda") else tag
        source = _once(self._sources, home, lambda: self._source(home))
        at_once, later = _once(self._wanted, (device, source.values), lambda: self._reference(source, device))
        path, refusal = _once(self._files, tag, lambda: self._save(source, home, tag))
        return ("refused", refusal) if refusal else self._restored(cell, path, at_once, later)

    def _restored(self, cell: Cell, path: Path, at_once: Any, later: Any) -> tuple[Verdict, str]:
        live = self._live(cell)
        seed_all(99)
        try:
            self._carrier.restore(path, model=live.model, optimizer=live.optimizer)
        except Exception as error:  # noqa: BLE001 - whatever a carrier raises is its refusal
            return "refused", _words(error)
        difference = first_difference(frozen_value(live), at_once)
        if difference:
            return "differs", f"after the restore: {difference}"
        try:
            difference = first_difference(frozen_value(live.step()), later)
        except Exception as error:  # noqa: BLE001 - the reference took these steps
            return "differs", f"next step: {_words(error)}"
        return ("differs", f"three steps later: {difference}") if difference else ("equal", "")

    def _source(self, home: str) -> _Source:
        seed_all(7)
        with _legality():
            run = self.case.run(home, live=False, seed=0).prepare()
            return _Source(run, values_of(run), capture_streams())

    def _save(self, source: _Source, home: str, tag: str) -> tuple[Path, str]:
        path = self._folder / f"{tag.replace(':', '')}.pt"
        _remove(path)
        source.put_back()
        try:
            with tagged({home: tag} if home != tag else {}):
                self._carrier.save(path, model=source.run.model, optimizer=source.run.optimizer)
        except Exception as error:  # noqa: BLE001 - whatever a carrier raises is its refusal
            return path, f"save: {_words(error)}"
        return path, ""

    def _reference(self, source: _Source, device: str) -> tuple[Any, Any]:
        seed_all(7)
        with _legality():
            run = self.case.run(device, live=True, seed=0).prepare()
            if self.case.live is not self.case.switches or values_of(run) != source.values:
                transplant(source.run, run)
            source.put_back()
            at_once = frozen_value(run)
            return at_once, frozen_value(run.step())

    def _live(self, cell: Cell) -> Run:
        seed_all(55)
        run = self.case.run(cell.pair[1], live=True, seed=5)
        if cell.live == "stepped":
            run.step(1)
        return run.freeze()


def _once(known: dict[Any, Any], key: Any, make: Callable[[], Any]) -> Any:
    if key not in known:
        try:
            known[key] = make()
        except Illegal as refusal:
            known[key] = refusal
    if isinstance(known[key], Illegal):
        raise known[key]
    return known[key]


@contextmanager
def _legality() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise Illegal(_words(error)) from error


def _words(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:160]}{'...' if len(text) > 160 else ''}"


@contextmanager
def tagged(tags: Mapping[str, str]) -> Iterator[None]:
    """Within, storages on the devices of `tags` are written as if they were on others."""
    import unmoor.live.pickler

    real = torch.serialization.location_tag
    places = (torch.serialization, unmoor.live.pickler)
    for place in places:
        place.location_tag = lambda storage: tags.get(real(storage), real(storage))
    try:
        yield
    finally:
        for place in places:
            place.location_tag = real


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def run(carrier: Carrier, *, full: bool = True, classes: Iterable[str] = tuple(CLASSES)) -> list[Outcome]:
    """The outcomes of all classes, for a report or a benchmark. Installs the simulated accelerator."""
    install()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in classes:
            for made in (cells(name, CLASSES[name], combinations(CLASSES[name])), crossings(name, CLASSES[name])):
                outcomes += (judge if full else sample)(carrier, made, Path(folder))
    return outcomes


def main(arguments: Sequence[str]) -> int:
    """Print the table, what is not equal, and what is not legal; the exit code tells whether all is equal."""
    wanted = [a for a in arguments if not a.startswith("-")]
    carrier = CARRIERS[next((a.partition("=")[2] for a in arguments if a.startswith("--carrier=")), "unmoor")]
    outcomes = run(carrier, full="--sample" not in arguments, classes=wanted or CLASSES)
    print(f"{carrier.name}: equal cells of those that are legal, from device > to device\n")
    print(table(outcomes, head="optimizer", columns=COLUMNS))
    for title, verdict in (("differs", "differs"), ("refused", "refused"), ("not legal", "illegal")):
        text = reasons(outcomes, verdict)
        print(f"\n{title}\n{text}" if text else f"\n{title}: none")
    bad = failures(outcomes)
    print("\n".join(["", *bad[:40]]))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
