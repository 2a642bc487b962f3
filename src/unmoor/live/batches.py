"""Which batches a process draws: every one that a DataLoader gives, with the indices of its samples.

DataLoader has one place where an iterator takes the next indices and one where it gives a batch; both are watched for
as long as the context lasts, whoever iterates. Nothing is drawn, delayed or changed.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch.utils.data import dataloader

from unmoor.values.recording import Batch

from .digests import Digester

__all__ = ["Watch", "batch_of", "comparable", "watch"]

_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None))
_DEPTH: Final = 8
_SHORT: Final = 16
"""Longer lists of plain values count as their text."""


class Watch:
    """Keeps the batches that were drawn since `take` was called last."""

    def __init__(self) -> None:
        self._indices: WeakKeyDictionary[Any, tuple[Any, list[Any]]] = WeakKeyDictionary()
        self._drawn: list[Batch] = []
        self.inside: dict[str, set[int]] = {}

    def note_indices(self, iterator: Any, indices: Any) -> None:
        """An iterator has taken these indices for a batch that it will give later, or at once."""
        order, taken = self._indices.get(iterator, (None, []))
        if order is not iterator._sampler_iter:  # persistent workers: the same iterator, another epoch
            taken = []
        taken.append(indices)
        self._indices[iterator] = (iterator._sampler_iter, taken)

    def note_batch(self, iterator: Any, batch: Any) -> None:
        """An iterator has given a batch."""
        (_, taken), number = self._indices.get(iterator, (None, [])), iterator._num_yielded
        known = 0 < number <= len(taken) and iterator._dataset_kind != dataloader._DatasetKind.Iterable
        self._drawn.append(batch_of(batch, taken[number - 1] if known else None))

    def take(self) -> list[Batch]:
        """The batches since the last call."""
        drawn, self._drawn = self._drawn, []
        return drawn


@contextmanager
def watch() -> Iterator[Watch]:
    """Watch every DataLoader of this process."""
    seen = Watch()
    undo = [_patched(cls, seen) for cls in _classes()]
    try:
        yield seen
    finally:
        for cls, own in undo:
            for name, method in own.items():
                setattr(cls, name, method)


def _classes() -> list[Any]:
    """The classes of iterators that give batches in a way of their own: torch's, and what derives from it."""
    found, todo = [], [dataloader._BaseDataLoaderIter]
    while todo:
        cls = todo.pop()
        todo += cls.__subclasses__()
        if "__next__" in vars(cls) or "_next_index" in vars(cls):
            found.append(cls)
    return found


def _patched(cls: Any, seen: Watch) -> tuple[Any, dict[str, Any]]:
    notes = {"__next__": seen.note_batch, "_next_index": seen.note_indices}
    own = {name: vars(cls)[name] for name in notes if name in vars(cls)}
    for name, method in own.items():
        setattr(cls, name, _noting(method, notes[name], seen.inside.setdefault(name, set())))
    return cls, own


def _noting(method: Any, note: Callable[[Any, Any], None], inside: set[int]) -> Callable[[Any], Any]:
    """The method, and a note of what it gave; where a class calls that of its base, the outer one notes."""

    def call(self: Any) -> Any:
        if id(self) in inside:
            return method(self)
        inside.add(id(self))
        try:
            value = method(self)
        finally:
            inside.discard(id(self))
        note(self, value)
        return value

    return call


def batch_of(value: Any, indices: Any = None) -> Batch:
    """A batch as what is told of it. Samples are told by their index, else by a digest of their row."""
    plain = comparable(value)
    digest = Digester()(plain)[:16]
    if indices is not None:
        several = isinstance(indices, list | tuple)
        return Batch(digest, tuple(str(index) for index in (indices if several else [indices])), known=True)
    return Batch(digest, tuple(_rows(plain)))


def _rows(plain: Any) -> Iterator[str]:
    """A digest of each row of the first tensor that has rows."""
    first = next(_tensors(plain), None)
    if first is not None:
        for row in first:
            yield Digester()(row)[:8]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.dim() > 0 and value.layout == torch.strided:
            yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(item)


def comparable(value: Any, depth: int = _DEPTH) -> Any:
    """A value as plain containers, tensors and plain values, equal in two processes where the value is.

    Arrays become tensors or bytes; an object is what it holds by attribute, and below `depth` its class alone.
    """
    if isinstance(value, torch.Tensor | torch.nn.Parameter):
        return value.detach()
    if isinstance(value, _PLAIN):
        return value
    if hasattr(type(value), "__array_interface__"):
        return _array(value)
    if depth == 0:
        return type(value).__qualname__
    if isinstance(value, Mapping):
        return {repr(comparable(key, 0)): comparable(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        plain = len(value) > _SHORT and all(type(item) in _PLAIN for item in value)
        return repr(value) if plain else [comparable(item, depth - 1) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(repr(comparable(item, 0)) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: comparable(getattr(value, field.name), depth - 1) for field in dataclasses.fields(value)}
    held = getattr(value, "__dict__", None)
    if isinstance(held, dict) and not isinstance(value, type) and not callable(value):
        inner = {key: comparable(item, depth - 1) for key, item in held.items()}
        return {"class": type(value).__qualname__, **inner}
    return type(value).__qualname__


def _array(value: Any) -> Any:
    shape, kind = tuple(value.shape), str(value.dtype)
    raw = value.tobytes() if getattr(value.dtype, "hasobject", False) is False else repr(value).encode()
    return [kind, shape, hashlib.sha256(raw).hexdigest()]
