"""Batches: the tensors in a nested batch by place, and the same batch on another device.

Containers are made anew only where something in them moves, never changed; what is shared stays shared, and what is
there already is given back as it is. Two passes: which containers hold something that moves, then those are rebuilt.
Containers that can be filled later are made empty first, so that they may refer to each other in circles.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import UserDict, UserList, deque
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType, ModuleType
from typing import Any, Final

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader

from unmoor.errors import ArgumentConflict, DeviceError, UsageError
from unmoor.values.text import count

from .devices import resolve, tag
from .run_facts_wrappers import home_of

__all__ = ["children", "gives_batches", "leaves", "move", "place_text"]

_DEPTH: Final = 64
_OBJECTS: Final = 6
_ATOMS: Final = (int, float, complex, bool, str, bytes, type(None), torch.Generator, torch.device, torch.dtype)

Step = tuple[str, Any]
"""Kind of container (map, list, tuple, named, object, set) and the key, index or attribute within."""


def leaves(batch: Any) -> Iterator[tuple[tuple[Step, ...], Any]]:
    """Every tensor of a batch, and every numpy array, with the steps that lead there; each object once."""
    seen: set[int] = set()
    todo: list[tuple[tuple[Step, ...], Any]] = [((), batch)]
    while todo:
        path, value = todo.pop()
        if isinstance(value, _ATOMS) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor) or hasattr(type(value), "__array_interface__"):
            yield path, value
        else:
            todo += [((*path, step), item) for step, item in reversed(_below(path, value))]


def place_text(root: str, path: tuple[Step, ...]) -> str:
    """Where something is, as Python: `batch['image'][0].mask`."""
    return root + "".join(f".{key}" if kind in ("named", "object") else f"[{key!r}]" for kind, key in path)


def children(value: Any) -> Iterator[tuple[Step, Any]]:
    """What a container holds; nothing for anything else."""
    if isinstance(value, PackedSequence):
        yield ("named", "data"), value.data
        yield from ((("named", n), getattr(value, n)) for n in ("sorted_indices", "unsorted_indices"))
    elif isinstance(value, Mapping):
        yield from ((("map", key), value[key]) for key in value)
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from ((("named", name), getattr(value, name)) for name in value._fields)
    elif isinstance(value, list | tuple | deque | UserList):
        kind = "tuple" if isinstance(value, tuple) else "list"
        yield from (((kind, index), item) for index, item in enumerate(value))
    elif isinstance(value, set | frozenset):
        yield from ((("set", index), item) for index, item in enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((("object", f.name), getattr(value, f.name, None)) for f in dataclasses.fields(value))
    elif not isinstance(value, nn.Module | type | ModuleType) and not callable(value):
        yield from ((("object", key), item) for key, item in list(getattr(value, "__dict__", {}).items()))


def _below(path: tuple[Step, ...], value: Any) -> list[tuple[Step, Any]]:
    """What lies below, to a depth at which no batch goes on: plain objects may lead to anything."""
    objects = sum(kind == "object" for kind, _ in path)
    return list(children(value)) if len(path) < _DEPTH and objects < _OBJECTS else []


def move(batch: Any, *, device: Any, like: Any, non_blocking: bool, keep: tuple[str, ...]) -> Any:
    """The batch on a device, or on that of `like`; the very same object where nothing has to move."""
    goal = _goal(device, like)
    refused = _refuse_batch(batch)
    if refused:
        raise UsageError(refused[0], remedy=refused[1])
    mover = _Mover(goal, non_blocking and goal.type != "cpu", keep)
    mover.look(batch)
    mover.refuse()
    return mover.moved(batch)


def _goal(device: Any, like: Any) -> torch.device:
    if (device is None) == (like is None):
        raise ArgumentConflict(
            "to_device takes either like= or device=" + (", and was given both" if like is not None else ""),
            remedy="unmoor.to_device(batch, like=model) takes the device of the model's parameters.",
        )
    if like is None:
        found = resolve(device)
    elif isinstance(like, nn.Module):
        found = home_of(like)
    elif isinstance(like, torch.Tensor):
        found = like.device
    else:
        raise ArgumentConflict(
            f"like= was given a {type(like).__qualname__}, and takes a module or a tensor",
            remedy='Name the device instead: unmoor.to_device(batch, device="auto").',
        )
    if found is None or found.type == "meta":
        raise DeviceError(
            "a batch cannot go to the meta device: it would hold no data",
            remedy="Give the model memory first: model.to_empty(device=...), then restore or initialise it.",
        )
    return _indexed(found)


def _indexed(device: torch.device) -> torch.device:
    """The device with the index that tensors on it have."""
    return device if device.index is not None or device.type == "cpu" else torch.empty(0, device=device).device


def _refuse_batch(batch: Any) -> tuple[str, str] | None:
    if isinstance(batch, nn.Module):
        return (
            f"to_device was given a module ({type(batch).__qualname__}): moving it is not a batch's business",
            "Move it in place, before its optimizer is built: model.to(device).",
        )
    if isinstance(batch, torch.optim.Optimizer):
        return (
            f"to_device was given an optimizer ({type(batch).__qualname__})",
            "Move its state beside its parameters: optimizer.load_state_dict(optimizer.state_dict()).",
        )
    if gives_batches(batch):
        return (
            f"to_device was given a {type(batch).__qualname__}, which gives batches and is none",
            "Move each batch: for batch in loader: batch = unmoor.to_device(batch, like=model).",
        )
    return None


def gives_batches(value: Any) -> bool:
    """Whether a value is what gives batches, and no batch itself."""
    return isinstance(value, DataLoader | Iterator) and not isinstance(value, torch.Tensor)


class _Mover:
    """One move. `_kept` holds every object met, so that no id is used twice while it lasts."""

    def __init__(self, goal: torch.device, non_blocking: bool, keep: tuple[str, ...]) -> None:  # noqa: FBT001
        self._goal, self._non_blocking, self._keep = goal, non_blocking, keep
        self._holders: dict[int, list[int]] = {}
        self._kept: dict[int, Any] = {}
        self._paths: dict[int, tuple[Step, ...]] = {}
        self._moving: set[int] = set()
        self._faults: list[str] = []
        self._made: dict[int, Any] = {}
        self._later: list[Callable[[], None]] = []

    def look(self, batch: Any) -> None:
        """Find every object that has to be made anew: a tensor elsewhere, and whatever holds one."""
        todo: list[tuple[tuple[Step, ...], Any]] = [((), batch)]
        while todo:
            path, value = todo.pop()
            if isinstance(value, _ATOMS) or id(value) in self._kept:
                continue
            self._kept[id(value)] = value
            self._paths[id(value)] = path
            if isinstance(value, torch.Tensor) or _moves_itself(value):
                self._judge(value)
                continue
            for step, item in self._children(path, value):
                self._holders.setdefault(id(item), []).append(id(value))
                todo.append(((*path, step), item))
        todo_ids = list(self._moving)
        while todo_ids:
            for holder in self._holders.get(todo_ids.pop(), ()):
                if holder not in self._moving:
                    self._moving.add(holder)
                    todo_ids.append(holder)

    def _children(self, path: tuple[Step, ...], value: Any) -> list[tuple[Step, Any]]:
        return [(step, item) for step, item in _below(path, value) if step[1] not in self._keep or step[0] == "set"]

    def _judge(self, value: Any) -> None:
        tensors = [value] if isinstance(value, torch.Tensor) else [t for _, t in _within(value)]
        if not tensors and not isinstance(value, torch.Tensor):
            self._moving.add(id(value))
        for tensor in tensors:
            if tensor.device == self._goal:
                continue
            if tensor.device.type == "meta":
                self._faults.append(f"{self._place(value)}: on the meta device, which holds no data")
            self._moving.add(id(value))

    def refuse(self) -> None:
        """Raise for everything at once that cannot be moved."""
        for value in (value for key, value in self._kept.items() if key in self._moving):
            if not _is_rebuilt(value) and not isinstance(value, torch.Tensor) and not _moves_itself(value):
                kind = f"{type(value).__module__}.{type(value).__qualname__}"
                self._faults.append(f"{self._place(value)}: a {kind} holds tensors and has no method to()")
        if self._faults:
            raise UsageError(
                f"{count(len(self._faults), 'thing')} in the batch cannot be moved to {tag(self._goal)}",
                details=self._faults[:8],
                remedy="Give such a class a method to(device) that returns the moved object, make it a dataclass, or "
                "pass its key in keep=.",
            )

    def _place(self, value: Any) -> str:
        return place_text("batch", self._paths[id(value)])

    def moved(self, batch: Any) -> Any:
        """The batch with what moves made anew."""
        made = self._new(batch)
        while self._later:
            self._later.pop()()
        return made

    def _new(self, value: Any) -> Any:
        if id(value) not in self._moving:
            return value
        if id(value) not in self._made:
            self._made[id(value)] = self._rebuild(value)
        return self._made[id(value)]

    def _item(self, step: Step, value: Any) -> Any:
        return value if step[1] in self._keep and step[0] != "set" else self._new(value)

    def _rebuild(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(self._goal, non_blocking=self._non_blocking)
        if _moves_itself(value):
            return _by_own_method(value, self._goal, self._non_blocking)
        if isinstance(value, PackedSequence):
            new = {name: self._new(getattr(value, name)) for name in ("data", "sorted_indices", "unsorted_indices")}
            return PackedSequence(new["data"], value.batch_sizes, new["sorted_indices"], new["unsorted_indices"])
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, tuple):
            items = [self._item(step, item) for step, item in children(value)]
            return type(value)(*items) if hasattr(value, "_fields") else _like_tuple(value, items)
        if isinstance(value, set | frozenset):
            return type(value)(self._new(item) for item in value)
        return self._filled_later(value)

    def _filled_later(self, value: Any) -> Any:
        """A container that can be filled once it exists: a list, a deque, a dataclass."""
        shell = copy.copy(value)

        def fill() -> None:
            for step, item in list(children(value)):
                if step[0] == "list":
                    shell[step[1]] = self._item(step, item)
                elif id(item) in self._moving:
                    object.__setattr__(shell, step[1], self._item(step, item))

        self._later.append(fill)
        return shell

    def _mapping(self, value: Mapping[Any, Any]) -> Any:
        if isinstance(value, dict | UserDict):
            shell = copy.copy(value)

            def fill() -> None:
                for key in list(value):
                    shell[key] = self._item(("map", key), value[key])

            self._later.append(fill)
            return shell
        new = {key: self._item(("map", key), value[key]) for key in value}
        kind = MappingProxyType if isinstance(value, MappingProxyType) else type(value)
        return kind(new)  # type: ignore[call-arg]


def _like_tuple(value: tuple[Any, ...], items: list[Any]) -> Any:
    """A tuple, or one of a class that derives from it and takes an iterable as tuple does."""
    return tuple(items) if type(value) is tuple else type(value)(items)


def _is_rebuilt(value: Any) -> bool:
    containers = (Mapping, list, tuple, deque, UserList, set, frozenset)
    return isinstance(value, containers) or dataclasses.is_dataclass(value)


def _moves_itself(value: Any) -> bool:
    """Whether an object has a method `to` of its own, and is no container that is rebuilt better here."""
    if isinstance(value, dict | UserDict | list | tuple | nn.Module | type):
        return False
    try:
        return callable(getattr(value, "to", None))
    except Exception:  # noqa: BLE001 (a proxy, or a class whose __getattr__ raises what it likes)
        return False


def _within(value: Any, depth: int = 4) -> Iterator[tuple[Step, torch.Tensor]]:
    """The tensors that an object holds, a few levels down."""
    for step, item in children(value):
        if isinstance(item, torch.Tensor):
            yield step, item
        elif depth > 0 and not isinstance(item, _ATOMS):
            yield from _within(item, depth - 1)


def _by_own_method(value: Any, goal: torch.device, non_blocking: bool) -> Any:  # noqa: FBT001
    """Ask a copy of the object to move: some classes move themselves in place, and the caller's stays as it is."""
    own = copy.copy(value)
    try:
        return own.to(goal, non_blocking=non_blocking) if non_blocking else own.to(goal)
    except TypeError:
        if not non_blocking:
            raise
        return own.to(goal)
