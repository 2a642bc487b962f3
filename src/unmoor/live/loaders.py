"""The position of a stock DataLoader: where in which epoch it is, as a state that puts it there again.

A sampler draws an epoch's order from random states that are gone by the time a checkpoint is written. So the states
are kept as they were when the epoch began, with the number of batches handed out; the same order is drawn again from
them, and as many batches are passed over. What is drawn anew is held against a checksum of what was handed out.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, Literal

from torch.utils.data import DataLoader, IterableDataset

from unmoor.errors import MismatchError, UsageError
from unmoor.values.positions import POSITION, Position

from . import rng
from .loader_facts import (
    drawn_from,
    generators_of,
    is_stateful_sampler,
    order_generators,
    setting,
    stateful_state,
    take_epoch,
)
from .loader_order import Indices, Order
from .loader_parts import counts_epochs, held
from .loader_shares import handed_out
from .loader_state import Before, Place, Saved, Start

__all__ = [
    "SKIPS",
    "ResumableLoader",
    "give_state",
    "is_stateful_loader",
    "loader_setting",
    "put_back_later",
    "refuse_stock",
    "resumable",
    "saved_loader",
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


def loader_setting(item: Any) -> Position | None:
    """What decides the order of a loader and how ranks share it; None for what no order is known of."""
    if isinstance(item, ResumableLoader):
        return setting(item.loader, "resumable")
    if is_stateful_loader(item):
        return setting(item, "stateful")
    return setting(item, "sampler") if is_stateful_sampler(item) else None


def saved_loader(item: Any) -> dict[str, Any]:
    """The state of a loader, or of a sampler of torchdata, with the facts of its position."""
    return item.state_dict() if isinstance(item, ResumableLoader) else stateful_state(item, item.state_dict())


def give_state(item: Any, state: Any) -> None:
    """Hand an object its state. A loader or sampler of torchdata is told its epoch before, which its state lacks.

    A loader of torchdata makes its iterator now, before random streams are restored: it draws a seed from torch's
    stream when it does, which the run that was never interrupted drew long before.
    """
    if not (is_stateful_loader(item) or is_stateful_sampler(item)):
        item.load_state_dict(state)
        return
    position = Position.from_plain(state.get(POSITION))
    take_epoch(item, position.epoch if position is not None else None)
    own = {key: value for key, value in state.items() if key != POSITION}
    item.load_state_dict(own)
    if own and is_stateful_loader(item):
        item.state_dict()


def put_back_later(item: Any) -> Callable[[], None] | None:
    """What puts a loader or sampler of torchdata back as it is now; None for anything else.

    Asking a loader for its state would make its iterator, and draw random numbers.
    """
    if not (is_stateful_loader(item) or is_stateful_sampler(item)):
        return None
    samplers = held(item, counts_epochs) if is_stateful_loader(item) else {}
    epochs = [(sampler, sampler.epoch) for sampler in samplers.values()]
    attributes = dict(vars(item))

    def put_back() -> None:
        vars(item).clear()
        vars(item).update(attributes)
        for sampler, epoch in epochs:
            sampler.set_epoch(epoch)

    return put_back


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
        self._position: Place | None = None
        self._pending: Saved | None = None

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __iter__(self) -> Iterator[Any]:
        saved, self._pending = self._pending, None
        if saved is not None and saved.within:
            return self._resumed(saved)
        start = self._capture()
        inner = iter(self._twin)
        self._position = Place(start, self._order.latest())
        return _Epoch(self, self._position, inner)

    def _resumed(self, saved: Saved) -> Iterator[Any]:
        """The rest of an epoch: its order drawn again from the states at its start."""
        with _host_streams_kept():
            self._have_workers(again=saved.start.again)
            start = saved.start.completed(self._capture())
            setters = start.setters(self._generators(), self._epochs())
            for set_state in setters:
                set_state()
            if saved.before is not None:
                self._prove(saved.before)
            self._order.skip, self._order.first = 0 if self._by_data else saved.batches, saved.first
            inner = iter(self._twin)
            self._order.skip, self._order.first = 0, 0
            indices = self._order.latest()
            if saved.anew:
                indices.look_ahead()
            elif self._by_data:
                _drop(inner, saved.batches)
            else:
                indices.pass_over()
        if indices.digest(saved.batches) != saved.digest:
            raise _changed(saved.batches, "its sampler gives other indices than it gave then")
        drawn = order_generators(self.loader) if saved.anew else ()
        _set_generators(self._generators(), {name: s for name, s in (saved.now or {}).items() if name not in drawn})
        self._position = Place(start, indices, saved.batches, first=saved.first, anew=saved.anew)
        return _Epoch(self, self._position, inner)

    def _prove(self, before: Before) -> None:
        """Draw what the saved rank was given, and hold it against the checksum of what it was given then."""
        index = self._order.source(0)
        again = Indices(handed_out(index, before.first, before.position, before.batches), before.batches)
        again.pass_over()
        if again.digest(before.batches) != before.digest:
            raise _changed(before.batches, f"rank {before.position.rank} was given other samples than come now")

    def _have_workers(self, *, again: bool) -> None:
        """Workers that persist draw their seed when they start, and not when they are used again."""
        if not again:
            self._twin._iterator = None
        elif self._twin.persistent_workers and self._twin._iterator is None:
            self._order.empty = True
            iter(self._twin)
            self._order.empty = False

    def continued(self, position: Place) -> None:
        """Note that a pass has handed out a batch: its position is the one that counts."""
        self._position, self._pending = position, None

    def _capture(self) -> Start:
        generators = {name: rng.generator_state(g) for name, g in self._generators().items()}
        epochs = {name: sampler.epoch for name, sampler in self._epochs().items()}
        return Start(rng.host_states(), generators, epochs, again=self._twin._iterator is not None)

    def _generators(self) -> dict[str, Any]:
        """Every generator object that the loader, its samplers and its dataset hold, by place."""
        return generators_of(self.loader)

    def _epochs(self) -> dict[str, Any]:
        """Every sampler that is told its epoch, by place."""
        return held(self.loader, counts_epochs)

    def state_dict(self) -> dict[str, Any]:
        """The position: batches handed out in this epoch, random states at its start, generators as they are now.

        And the facts of it that hold in a world of another size, under `position`.
        """
        saved = self._saved()
        return {**saved.state(), POSITION: self._facts(saved).to_plain()}

    def _saved(self) -> Saved:
        if self._pending is not None:
            return self._pending
        now = {name: rng.generator_state(g) for name, g in self._generators().items()}
        position = self._position
        if position is None or position.done:
            epochs = {name: sampler.epoch for name, sampler in self._epochs().items()}
            return Saved(0, 0, Start({}, {}, epochs), now)
        digest = position.indices.digest(position.batches)
        anew = position.anew and position.batches == 0
        return Saved(position.batches, digest, position.start, now, first=position.first, anew=anew)

    def _facts(self, saved: Saved) -> Position:
        made = setting(self.loader, "resumable")
        epochs = set(saved.start.epochs.values())
        if made.epoch is not None and len(epochs) == 1:
            made = replace(made, epoch=epochs.pop())
        if not saved.within:
            return replace(made, drawn=drawn_from(self.loader, saved.now or {}, {}))
        if made.order in ("own", "stream"):
            return replace(made, under_way=True, consumed=saved.batches, drawn=saved.digest)
        source = self._order.source(saved.first)
        return replace(
            made,
            under_way=True,
            consumed=made.done(saved.first, made.batch * saved.batches),
            ended=saved.batches >= len(source),
            drawn=drawn_from(self.loader, saved.start.generators, saved.start.host),
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a position. The next iteration gives the batches that were left."""
        saved = Saved.of(state)
        generators = self._generators()
        if saved.now is not None and generators.keys() != saved.now.keys():
            raise MismatchError(
                f"the saved loader has generators at {_listed(saved.now)}, the live one at {_listed(generators)}",
                remedy="Build the loader with the same generators and samplers as the one that was saved.",
            )
        if state.get("epoch") is not None:
            saved = saved.in_epoch(dict.fromkeys(self._epochs(), state["epoch"]))
        _set_generators(generators, saved.now or {})
        for set_epoch in saved.start.epoch_setters(self._epochs()):
            set_epoch()
        self._pending = saved


class _Epoch:
    """One pass over a loader: counts what it hands out."""

    def __init__(self, owner: ResumableLoader, position: Place, inner: Iterator[Any]) -> None:
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
