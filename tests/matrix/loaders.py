"""The matrix of data loaders: kind x workers x where the run was cut, for any carrier.

A cell is equal where the resumed run gives the very batches that were left, in the order of the uninterrupted run, in
this epoch and the next, and draws the same random numbers between and after them: torch's, numpy's and python's.

Columns: after the first batch, the third, the last of the first epoch, or the second of the next / number of workers.

    python -m tests.matrix.loaders               the table for unmoor
    python -m tests.matrix.loaders torch         the same for torch.load and load_state_dict
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

import unmoor

from . import command
from .carriers import Carrier
from .report import Outcome

__all__ = ["CUTS", "LOADERS", "Case", "cases", "judge"]

SIZE: Final = 11
EPOCHS: Final = 3


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


class NumpyBatches(Sampler[list[int]]):
    """A batch sampler that draws from a numpy Generator of its own while it is iterated over."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(3)

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(5):
            yield self.random.permutation(SIZE)[:3].tolist()


class PythonOrder(Sampler[int]):
    """A sampler that shuffles with a random.Random of its own, inside of another object."""

    def __init__(self) -> None:
        self.sources = {"order": random.Random(4)}

    def __len__(self) -> int:
        return SIZE

    def __iter__(self) -> Iterator[int]:
        order = list(range(SIZE))
        self.sources["order"].shuffle(order)
        return iter(order)


class GlobalOrder(Sampler[int]):
    """A sampler that shuffles with the global streams of numpy and python."""

    def __len__(self) -> int:
        return SIZE

    def __iter__(self) -> Iterator[int]:
        order = np.random.permutation(SIZE).tolist()
        random.shuffle(order)
        return iter(order)


class Stream(IterableDataset[int]):
    """An iterable dataset that draws from torch's global stream, its part of the numbers in each worker."""

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        start, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for i in range(start, 2 * SIZE, step):
            yield 100 * i + int(torch.randint(100, ()))


class Augmented(Dataset[int]):
    """A map-style dataset that changes its samples at random, where they are loaded."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> int:
        return 100 * index + int(torch.randint(100, ()))


class Numbers(Dataset[int]):
    """A map-style dataset of its own indices."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> int:
        return index


def _wrapped(data: Any, skip: Any = "order", **options: Any) -> Callable[[int], Any]:
    """A loader with unmoor's position; values that are functions are called, so that each run has its own objects."""

    def make(workers: int) -> Any:
        given = {key: value() if callable(value) else value for key, value in options.items()}
        return unmoor.resumable(DataLoader(data(), num_workers=workers, **given), skip=skip)

    return make


def _stateful(workers: int) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Numbers(), batch_size=2, shuffle=True, generator=seeded(), num_workers=workers)


LOADERS: Final[dict[str, Callable[[int], Any]]] = {
    "in order": _wrapped(Numbers, batch_size=2),
    "shuffled, own generator": _wrapped(Numbers, batch_size=2, shuffle=True, generator=seeded),
    "shuffled, global seed": _wrapped(Numbers, batch_size=3, shuffle=True, drop_last=True),
    "with replacement": _wrapped(
        Numbers, batch_size=2, sampler=lambda: RandomSampler(range(SIZE), True, 70, generator=seeded())
    ),
    "weighted": _wrapped(
        Numbers, batch_size=2, sampler=lambda: WeightedRandomSampler([1.0, 5.0] * 5, 9, generator=seeded())
    ),
    "subset": _wrapped(Numbers, batch_size=2, sampler=lambda: SubsetRandomSampler(range(1, 9), generator=seeded())),
    "distributed": _wrapped(Numbers, batch_size=2, sampler=lambda: DistributedSampler(range(SIZE), 2, 1)),
    "own batch sampler, numpy": _wrapped(Numbers, batch_sampler=NumpyBatches),
    "own sampler, python": _wrapped(Numbers, batch_size=2, sampler=PythonOrder),
    "own sampler, global streams": _wrapped(Numbers, batch_size=2, sampler=GlobalOrder),
    "samples, no batches": _wrapped(
        Numbers, batch_size=None, sampler=lambda: RandomSampler(range(SIZE), generator=seeded())
    ),
    "persistent workers": _wrapped(
        Numbers, batch_size=2, shuffle=True, generator=seeded, persistent_workers=True, prefetch_factor=3
    ),
    "iterable": _wrapped(Stream, batch_size=3),
    "augmented, data drawn": _wrapped(Augmented, "data", batch_size=2, shuffle=True, generator=seeded),
    "torchdata, stateful": _stateful,
}

CUTS: Final = {"first": 1, "mid": 3, "last": 0, "next": -2}
"""After which batch the run is cut: by number; 0 is the last of the first epoch, -2 the second of the second."""


@dataclass(frozen=True)
class Case:
    """One cell of the matrix."""

    loader: str
    workers: int
    cut: str

    def __str__(self) -> str:
        return f"{self.loader}, {self.workers} workers, {self.cut}"

    @property
    def legal(self) -> bool:
        return self.workers > 0 or self.loader != "persistent workers"


def cases() -> list[Case]:
    """All cells; persistent workers need workers."""
    return [c for c in (Case(*p) for p in itertools.product(LOADERS, (0, 2), CUTS)) if c.legal]


def draws() -> tuple[float, ...]:
    return torch.rand(()).item(), random.random(), float(np.random.rand())


class Run:
    """Epochs over a loader, with random draws beside each batch."""

    def __init__(self, case: Case, seed: int) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        self.loader = LOADERS[case.loader](case.workers)
        self.seen: list[Any] = []

    def epoch(self, number: int, *, stop: int = -1) -> bool:
        """Go through an epoch, or on through it; True where it was left after `stop` batches."""
        sampler = getattr(self.loader, "sampler", None)
        if isinstance(sampler, DistributedSampler):
            sampler.set_epoch(number)
        for done, batch in enumerate(self.loader, 1):
            self.seen.append((number, batch.tolist() if hasattr(batch, "tolist") else batch, draws()))
            if done == stop:
                return True
        return False


@cache
def _uninterrupted(loader: str, workers: int) -> tuple[tuple[Any, ...], ...]:
    """What a run of three epochs sees, epoch by epoch, each with the draws that follow it."""
    run = Run(Case(loader, workers, ""), 1)
    epochs = []
    for number in range(EPOCHS):
        run.epoch(number)
        state = torch.get_rng_state(), random.getstate(), np.random.get_state()
        epochs.append((tuple(run.seen), draws()))
        torch.set_rng_state(state[0])
        random.setstate(state[1])
        np.random.set_state(state[2])
        run.seen.clear()
    return tuple(epochs)


def judge(case: Case, carrier: Carrier, folder: Path) -> Outcome:
    """Cut a run, carry it into fresh objects, and compare what it sees to the end of the next epoch."""
    column = f"{case.cut}/{case.workers}"
    model = nn.Linear(1, 1)
    whole = _uninterrupted(case.loader, case.workers)
    epoch, stop = (1, 2) if CUTS[case.cut] < 0 else (0, CUTS[case.cut] or len(whole[0][0]))
    cut = Run(case, 1)
    for number in range(epoch):
        cut.epoch(number)
    cut.seen.clear()
    cut.epoch(epoch, stop=stop)
    try:
        carrier.save(folder / "run.pt", model=model, loader=cut.loader)
        resumed = Run(case, 2)
        draws()
        carrier.restore(folder / "run.pt", model=model, loader=resumed.loader)
        for number in (epoch, epoch + 1):
            resumed.epoch(number)
    except Exception as error:  # noqa: BLE001 - whatever the carrier raises is the cell's reason
        return Outcome(case.loader, column, "refused", str(case), f"{type(error).__name__}: {error}"[:200])
    seen, left = resumed.seen, [*whole[epoch][0][stop:], *whole[epoch + 1][0]]
    if seen == left and draws() == whole[epoch + 1][1]:
        return Outcome(case.loader, column, "equal", str(case))
    batches = [entry[:2] for entry in seen] == [entry[:2] for entry in left]
    return Outcome(case.loader, column, "differs", str(case), "random draws" if batches else "batches")


if __name__ == "__main__":
    sys.exit(command.run(sys.argv[1:], cases(), judge))
