"""The training loop of a proof: takes steps of a run as its program would, and looks at it after each.

The loop keeps `progress`, a dict with the number of steps and of epochs, as a program does beside its objects: it is
saved with the run, and begins where it is told. An epoch of a loader that has no position of its own is over with its
last batch; one that has a position tells by itself.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn
from torch.utils.data import DataLoader

from unmoor.errors import UsageError
from unmoor.values.recording import Batch, Moment

from .batches import Watch, batch_of
from .built import ABSENT, Built, parameters_of, take_step
from .loader_parts import counts_epochs, held
from .loaders import ResumableLoader, is_stateful_loader
from .marks import Marker
from .survey import members

__all__ = ["Loop", "facts_of", "has_position", "is_batches", "put_back", "seed_everything"]


def seed_everything(seed: int) -> None:
    """Seed python's, numpy's and torch's streams, as a program that seeds at its start."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def has_position(loader: Any) -> bool:
    """Whether a loader knows where in its epoch it is."""
    return isinstance(loader, ResumableLoader) or is_stateful_loader(loader) or hasattr(loader, "load_state_dict")


def is_batches(loader: Any) -> bool:
    """Whether a loader is a plain list of batches, and not one of loaders."""
    kinds = (torch.Tensor, Mapping, list, tuple)
    return isinstance(loader, list | tuple) and bool(loader) and all(isinstance(item, kinds) for item in loader)


@dataclass(slots=True)
class Loop:
    """A run and where its program is in it. `step` takes one step and tells what came of it."""

    built: Built
    watch: Watch
    sketches: bool = False
    progress: dict[str, Any] = field(default_factory=lambda: {"step": 0, "epoch": 0})
    _batches: Iterator[Any] | None = None
    _given: int = 0
    _marker: Marker | None = None

    def state(self) -> dict[str, dict[str, Any]]:
        """The marks of the run as it is now."""
        if self._marker is None:
            self._marker = Marker(self.built.objects, self.built.train_step, self.sketches)
        return self._marker.marks()

    def step(self) -> Moment:
        """Take one step."""
        self.watch.take()
        loader, fresh = self._loader(), False
        if loader is None:
            epoch, batch = 0, ABSENT if self._draws() else self.built.batch
            loss = loss_value(take_step(self.built, self._placed(batch)), self.built.name)
            drawn = self.watch.take()
        else:
            fresh = self._batches is None
            batch, seen = self._next(loader)
            fresh = fresh or self._given == 1
            epoch = self.progress["epoch"]
            loss = loss_value(take_step(self.built, self._placed(batch)), self.built.name)
            drawn = [seen, *self.watch.take()]
            self._close(loader)
        self.progress["step"] += 1
        return Moment(self.progress["step"], loss, tuple(drawn), self.state(), epoch, fresh)

    def _draws(self) -> bool:
        """Whether train_step takes no batch: it draws its own."""
        step = self.built.train_step
        return step is not None and not parameters_of(step)

    def _loader(self) -> Any:
        """The loader that batches come from, None where train_step draws its own or there is none."""
        value = self.built["loader"]
        if value is None or self._draws():
            return None
        if is_batches(value):
            return value
        found = {key: item for _, key, item in members("loader", value)}
        if len(found) > 1 and "train" not in found:
            raise UsageError(
                f"{self.built.name}() gives {len(found)} loaders, and which one the steps take is not known",
                remedy='Name it "train", or return a train_step without arguments that draws its own batches.',
            )
        return found["train"] if len(found) > 1 else next(iter(found.values()), None)

    def _next(self, loader: Any) -> tuple[Any, Batch]:
        """The next batch, of the next epoch where this one is over."""
        for _ in range(3):
            for batch in self._begun(loader):
                self._given += 1
                seen = self.watch.take()
                return batch, seen[-1] if seen else batch_of(batch)
            self._batches, self.progress["epoch"] = None, self.progress["epoch"] + 1
        raise UsageError(f"the loader of {self.built.name}() gives no batches", remedy="Return one that has some.")

    def _begun(self, loader: Any) -> Iterator[Any]:
        """The batches of this epoch. Their iterator is never asked if it is true: that asks for a length."""
        if self._batches is not None:
            return self._batches
        inner: Any = loader.loader if isinstance(loader, ResumableLoader) else loader
        told = held(inner, counts_epochs).values() if isinstance(inner, DataLoader) else ()
        found: list[Any] = list(told) or ([inner] if callable(getattr(inner, "set_epoch", None)) else [])
        for sampler in found:
            sampler.set_epoch(self.progress["epoch"])
        self._batches, self._given = iter(loader), 0
        return self._batches

    def _close(self, loader: Any) -> None:
        """End the epoch of a loader without a position of its own with its last batch."""
        try:
            length = None if has_position(loader) else len(loader)
        except TypeError:
            return
        if length is not None and self._given >= length:
            self._batches, self.progress["epoch"] = None, self.progress["epoch"] + 1

    def _placed(self, batch: Any) -> Any:
        """A batch for the usual step, on the device of the model; a train_step of the run's own places its own."""
        if self.built.train_step is not None or batch is ABSENT:
            return batch
        model = self.built["model"]
        first = next(model.parameters(), None) if isinstance(model, nn.Module) else None
        return batch if first is None else _moved(batch, first.device)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: _moved(item, device) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_moved(item, device) for item in value))
    return type(value)(_moved(item, device) for item in value) if type(value) in (list, tuple) else value


def loss_value(value: Any, name: str) -> float | None:
    """The loss that a step gave as a number: a number, a tensor of one element, or what "loss" or place 0 has."""
    if isinstance(value, Mapping) and "loss" in value:
        value = value["loss"]
    elif isinstance(value, tuple | list) and value:
        value = value[0]
    if value is None:
        return None
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value.detach())
    if isinstance(value, int | float) or _is_number(value):
        return float(value)
    raise UsageError(
        f"a step of {name}'s run returned {type(value).__name__}, which is no loss",
        remedy="train_step returns the loss of its step: a number, or a tensor of one element.",
    )


def _is_number(value: Any) -> bool:
    """Whether a value is a number of numpy's, or an array of one element."""
    return hasattr(type(value), "__array_interface__") and value.size == 1 and value.dtype.kind in "biuf"


_NOISY: Final = {"_BatchNorm": "batchnorm", "_DropoutNd": "dropout"}


def facts_of(built: Built) -> frozenset[str]:
    """What of a run explains why it goes on differently elsewhere."""
    modules = [m for role, v in built.objects.items() for _, _, m in members(role, v) if isinstance(m, nn.Module)]
    names = {cls.__name__ for module in modules for inner in module.modules() for cls in type(inner).__mro__}
    loaders = [loader for _, _, loader in members("loader", built["loader"])]
    inner = [loader.loader if isinstance(loader, ResumableLoader) else loader for loader in loaders]
    workers = {"workers"} if any(getattr(loader, "num_workers", 0) for loader in inner) else set()
    return frozenset(word for name, word in _NOISY.items() if name in names) | workers


def put_back(live: Any, saved: Any) -> None:
    """Give a plain container of the run the values that were saved of it, as its program would."""
    if isinstance(live, dict) and isinstance(saved, Mapping):
        live.clear()
        live.update(saved)
    elif isinstance(live, list) and isinstance(saved, list):
        live[:] = saved
