"""The position of a stock DataLoader: where in which epoch it is, as a state that puts it there again.

A sampler draws an epoch's order from random states that are gone by the time a checkpoint is written. So the states
are kept as they were when the epoch began, with the number of batches handed out; the same order is drawn again from
them, and as many batches are passed over. What is drawn anew is held against a checksum of what was handed out.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

from torch.utils.data import DataLoader, IterableDataset

from unmoor.errors import MismatchError, UsageError

from . import rng
from .loader_order import Indices, Order
from .loader_parts import counts_epochs, held

__all__ = [
    "SKIPS",
    "ResumableLoader",
    "is_stateful_loader",
    "prime",
    "refuse_stock",
    "resumable",
    "with_loader_generators",
]

SKIPS: Final = ("order", "data")
"""How the batches that were handed out are passed over: by their indices alone, or by loading and dropping them."""


def resumable(loader: DataLoader[Any], *, skip: Literal["order", "data"] = "order") -> ResumableLoader:
    """A DataLoader with a position; UsageError for anything else. See `unmoor.resumable`."""
    if isinstance(loader, ResumableLoader):
        return loader
    if not isinstance(loader, DataLoader) or is_stateful_loader(loader):
        raise UsageError(
            f"resumable was given a {type(loader).__module__}.{type(loader).__qualname__}",
            remedy="It takes a torch.utils.data.DataLoader; a loader with state_dict is passed to save as it is.",
        )
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise UsageError(
            f"resumable was given a {type(loader).__qualname__}, which iterates in its own way",
            remedy="Wrap the DataLoader that it is made of, or give the class a state_dict and a load_state_dict.",
        )
    if skip not in SKIPS:
        raise UsageError(f"skip={skip!r} is none of {', '.join(map(repr, SKIPS))}")
    return ResumableLoader(loader, skip=skip)


def is_stateful_loader(value: Any) -> bool:
    """Whether a value is a DataLoader with state_dict of its own, as torchdata's is."""
    return isinstance(value, DataLoader) and callable(getattr(value, "state_dict", None))


def refuse_stock(label: str, value: Any) -> None:
    """Raise UsageError for a DataLoader whose position cannot be known."""
    if isinstance(value, DataLoader) and not is_stateful_loader(value):
        raise UsageError(
            f"{label}= was given a torch.utils.data.DataLoader, which does not know its position; nothing was done",
            remedy="Wrap it where it is made, and iterate over the wrapper: loader = unmoor.resumable(loader).",
        )


def with_loader_generators(objects: Mapping[str, Any], generators: Mapping[str, Any]) -> dict[str, Any]:
    """The named generators, and those that loaders with a state of their own hold and do not save, by place."""
    known = {id(generator) for generator in generators.values()}
    found = {
        f"{label}.{place}": generator
        for label, item in objects.items()
        if is_stateful_loader(item)
        for place, generator in held(item, rng.is_generator).items()
    }
    return {**{name: g for name, g in found.items() if id(g) not in known}, **generators}


def prime(loader: Any) -> None:
    """Have a loader of torchdata that took a state make its iterator now, before random streams are restored.

    It draws a seed from torch's stream when it does, which the run that was never interrupted drew long before.
    """
    if is_stateful_loader(loader):
        loader.state_dict()


class ResumableLoader:
    """An iterable over a DataLoader that knows its position. Everything else of the loader passes through."""

    def __init__(self, loader: DataLoader[Any], *, skip: str) -> None:
        self.loader = loader
        self._by_data = skip == "data" or isinstance(loader.dataset, IterableDataset)
        self._order = Order(loader._index_sampler)
        self._twin = copy.copy(loader)
        # DataLoader refuses to set these once it is made; the copy is this wrapper's own.
        vars(self._twin)["sampler" if loader.batch_sampler is None else "batch_sampler"] = self._order
        self._twin._iterator = None
        self._position: _Position | None = None
        self._pending: _Saved | None = None

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __iter__(self) -> Iterator[Any]:
        saved, self._pending = self._pending, None
        if saved is not None and saved.start.host:
            return self._resumed(saved)
        start = self._capture()
        inner = iter(self._twin)
        self._position = _Position(start, self._order.latest())
        return _Epoch(self, self._position, inner)

    def _resumed(self, saved: _Saved) -> Iterator[Any]:
        """The rest of an epoch: its order drawn again from the states at its start."""
        with _host_streams_kept():
            self._have_workers(again=saved.start.again)
            for set_state in saved.start.setters(self._generators(), self._epochs()):
                set_state()
            self._order.skip = 0 if self._by_data else saved.batches
            inner = iter(self._twin)
            self._order.skip = 0
            indices = self._order.latest()
            if self._by_data:
                _drop(inner, saved.batches)
            else:
                indices.pass_over()
        if indices.digest(saved.batches) != saved.digest:
            raise _changed(saved.batches, "its sampler gives other indices than it gave then")
        _set_generators(self._generators(), saved.now)
        self._position = _Position(saved.start, indices, saved.batches)
        return _Epoch(self, self._position, inner)

    def _have_workers(self, *, again: bool) -> None:
        """Workers that persist draw their seed when they start, and not when they are used again."""
        if not again:
            self._twin._iterator = None
        elif self._twin.persistent_workers and self._twin._iterator is None:
            self._order.empty = True
            iter(self._twin)
            self._order.empty = False

    def continued(self, position: _Position) -> None:
        """Note that a pass has handed out a batch: its position is the one that counts."""
        self._position, self._pending = position, None

    def _capture(self) -> _Start:
        generators = {name: rng.generator_state(g) for name, g in self._generators().items()}
        epochs = {name: sampler.epoch for name, sampler in self._epochs().items()}
        return _Start(rng.host_states(), generators, epochs, again=self._twin._iterator is not None)

    def _generators(self) -> dict[str, Any]:
        """Every generator object that the loader, its samplers and its dataset hold, by place."""
        return held(self.loader, rng.is_generator)

    def _epochs(self) -> dict[str, Any]:
        """Every sampler that is told its epoch, by place."""
        return held(self.loader, counts_epochs)

    def state_dict(self) -> dict[str, Any]:
        """The position: batches handed out in this epoch, random states at its start, generators as they are now."""
        if self._pending is not None:
            return self._pending.state()
        now = {name: rng.generator_state(g) for name, g in self._generators().items()}
        position = self._position
        if position is None or position.done:
            epochs = {name: sampler.epoch for name, sampler in self._epochs().items()}
            return _Saved(0, 0, _Start({}, {}, epochs), now).state()
        return _Saved(position.batches, position.indices.digest(position.batches), position.start, now).state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a position. The next iteration gives the batches that were left."""
        saved = _Saved(state["batches"], state["digest"], _Start(**state["start"]), state["generators"])
        generators = self._generators()
        if generators.keys() != saved.now.keys():
            raise MismatchError(
                f"the saved loader has generators at {_listed(saved.now)}, the live one at {_listed(generators)}",
                remedy="Build the loader with the same generators and samplers as the one that was saved.",
            )
        _set_generators(generators, saved.now)
        for set_epoch in saved.start.epoch_setters(self._epochs()):
            set_epoch()
        self._pending = saved


@dataclass(slots=True)
class _Position:
    """Where a pass over the loader is: its start, the indices that it draws, and the batches handed out."""

    start: _Start
    indices: Indices
    batches: int = 0
    done: bool = False


@dataclass(frozen=True, slots=True)
class _Start:
    """What decides the order of an epoch, as it was when the epoch began. `again`: with workers that were there."""

    host: Mapping[str, Any] = field(default_factory=dict)
    generators: Mapping[str, Any] = field(default_factory=dict)
    epochs: Mapping[str, int] = field(default_factory=dict)
    again: bool = False

    def setters(self, generators: Mapping[str, Any], epochs: Mapping[str, Any]) -> list[Callable[[], Any]]:
        """One call for each state."""
        own = [rng.generator_setter(generators[name], state) for name, state in self.generators.items()]
        return [*rng.host_setters(self.host), *own, *self.epoch_setters(epochs)]

    def epoch_setters(self, epochs: Mapping[str, Any]) -> list[Callable[[], Any]]:
        """One call for each sampler that is told its epoch."""
        known = [(epochs[name], epoch) for name, epoch in self.epochs.items() if name in epochs]
        return [partial(sampler.set_epoch, epoch) for sampler, epoch in known]


@dataclass(frozen=True, slots=True)
class _Saved:
    """A position as it is written: `now` are the loader's generators at the save."""

    batches: int
    digest: int
    start: _Start
    now: Mapping[str, Any]

    def state(self) -> dict[str, Any]:
        start = {"host": dict(self.start.host), "generators": dict(self.start.generators)}
        return {
            "batches": self.batches,
            "digest": self.digest,
            "start": {**start, "epochs": dict(self.start.epochs), "again": self.start.again},
            "generators": dict(self.now),
        }


class _Epoch:
    """One pass over a loader: counts what it hands out."""

    def __init__(self, owner: ResumableLoader, position: _Position, inner: Iterator[Any]) -> None:
        self._owner, self._position, self._inner = owner, position, inner

    def __iter__(self) -> _Epoch:
        return self

    def __len__(self) -> int:
        return len(self._owner)

    def __next__(self) -> Any:
        try:
            batch = next(self._inner)
        except StopIteration:
            self._position.done = True
            raise
        self._position.batches += 1
        self._owner.continued(self._position)
        return batch


def _drop(inner: Iterator[Any], number: int) -> None:
    for done in range(number):
        try:
            next(inner)
        except StopIteration:
            raise _changed(number, f"the dataset ends after {done} of them") from None


def _changed(batches: int, why: str) -> MismatchError:
    return MismatchError(
        f"the loader cannot go on after {batches} batches of the saved epoch: {why}",
        details=(
            "dataset, batch size or sampler changed, or another part of the program draws from its random stream",
        ),
        remedy="Build the loader as it was, or restore with loader=None and begin the epoch again.",
    )


@contextmanager
def _host_streams_kept() -> Iterator[None]:
    """Leave the process's random streams on the host as they are now, whatever is drawn meanwhile."""
    back = rng.host_setters(rng.host_states())
    try:
        yield
    finally:
        for set_state in back:
            set_state()


def _set_generators(generators: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    for set_state in [rng.generator_setter(generators[name], state) for name, state in states.items()]:
        set_state()


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(names) or "no place"
