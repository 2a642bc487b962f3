"""The state of a run as marks, thing by thing: what two processes hold against each other.

Looks at the live objects themselves, under canonical names, not at what a save would make of them: what save leaves
out is seen here too. Tensors that ranks share are put together on rank 0, by collectives of the default group: every
rank of a world looks at the same moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn

from unmoor.values.recording import RNG, Mark

from . import rng
from .batches import comparable
from .digests import Digester
from .held import Held
from .hidden import clues
from .loaders import ResumableLoader, is_stateful_loader
from .metrics import with_metric_state
from .modules import state_tensors
from .optimizers import find_optimizer
from .redundancy import present_state
from .shards import group_seats, local_of, state_of, whole
from .sketches import sketch
from .survey import members
from .wrappers import walk

__all__ = ["Marker"]

_GENERATORS: Final = "rng"
_OWN: Final = {"loss": "loss function"}
"""Keywords whose component has another name: `loss` is what a step gives."""


@dataclass(slots=True)
class Marker:
    """Makes the marks of one run. `sketches` tells to make those of tensors, which only inexact comparisons need."""

    objects: Mapping[str, Any]
    train_step: Any = None
    sketches: bool = False
    _digest: Digester = field(default_factory=Digester)

    def marks(self) -> dict[str, dict[str, Mark]]:
        """Every component of the run as it is now."""
        self._digest = Digester()
        found: dict[str, dict[str, Mark]] = {}
        names: dict[Any, str] = {}
        for role, label, item in self._members():
            if isinstance(item, nn.Module) and role != "metrics":
                self._module(role, label, item, names, found)
        for role, label, item in self._members():
            optimizer = find_optimizer(item) if role == "optimizer" else None
            if optimizer is not None:
                self._optimizer(label, optimizer, names, found)
            elif not isinstance(item, nn.Module) or role == "metrics":
                self._object(role, label, item, found)
        self._streams(found)
        found |= clues(self.objects, self.train_step, self._mark)
        return found

    def _members(self) -> Iterator[tuple[str, str, Any]]:
        for role, value in self.objects.items():
            if role != _GENERATORS:
                yield from ((role, label, item) for label, _, item in members(role, value))

    def _module(
        self, role: str, label: str, module: nn.Module, names: dict[Any, str], found: dict[str, dict[str, Mark]]
    ) -> None:
        """Parameters, buffers and gradients: of models as components of their own, of others as that object's."""
        view = state_tensors(module)
        prefix = "" if label == "model" or role != "model" else f"{label}: "
        kinds = ("parameters", "buffers", "gradients") if role == "model" else (_OWN.get(role, role),) * 3
        for name, tensor in view.tensors.items():
            kind = kinds[0] if name in view.parameters else kinds[1]
            names.setdefault(view.key(name), prefix + name)
            self._put(found, kind, prefix + name, tensor)
            grad = getattr(tensor, "grad", None) if name in view.parameters and role == "model" else None
            if grad is not None:
                self._put(found, kinds[2], prefix + name, whole(grad, name))
        for name, owner in view.extra.items():
            self._put(found, kinds[1], prefix + name, owner.get_extra_state())
        for place in walk(module):
            for name in sorted(place.module._non_persistent_buffers_set):
                buffer = place.module._buffers.get(name)
                if buffer is not None:
                    self._put(found, kinds[1], f"{prefix}{place.prefix}{name} (not persistent)", whole(buffer))

    def _optimizer(
        self, label: str, optimizer: Any, names: Mapping[Any, str], found: dict[str, dict[str, Mark]]
    ) -> None:
        """State by the names of parameters, and the options of each group."""
        prefix = "" if label == "optimizer" else f"{label}: "
        number, many = 0, len(optimizer.param_groups) > 1
        found.setdefault("optimizer", {})
        for g, group in enumerate(optimizer.param_groups):
            for seat in group_seats(group):
                name = names.get(seat.key) or f"parameter {number}"
                number += 1
                for key, value in state_of(optimizer, seat).items():
                    self._put(found, "optimizer", f"{prefix}{key} of {name}", value)
            for key, value in group.items():
                if key not in ("params", "param_names", *_SWITCHES):
                    where = f" of group {g}" if many else ""
                    self._put(found, "options", f"{prefix}{key}{where}", local_of(value))
        for key, value in present_state(optimizer).items() if isinstance(present_state(optimizer), Mapping) else ():
            if key not in ("state", "param_groups"):
                self._put(found, "optimizer", f"{prefix}{key}", value)

    def _object(self, role: str, label: str, item: Any, found: dict[str, dict[str, Mark]]) -> None:
        """The leaves of an object's own state, or of plain values. A loader is told by the batches that it gives."""
        if role == "loader" or isinstance(item, ResumableLoader) or is_stateful_loader(item):
            return
        item, component = with_metric_state(item), _OWN.get(role, role)
        if callable(getattr(item, "state_dict", None)):
            state = item.state_dict()
        elif isinstance(item, Mapping | list | bool | int | float | str):
            state = item
        else:
            return
        prefix = "" if label == role else f"{label}: "
        for name, value in _leaves(state, ""):
            self._put(found, component, prefix + name, value)

    def _streams(self, found: dict[str, dict[str, Mark]]) -> None:
        generators = self.objects.get(_GENERATORS)
        states = rng.capture(generators if isinstance(generators, Mapping) else {})
        states.pop("current", None)
        devices, named = states.pop("devices", {}), states.pop("generators", {})
        for name, state in states.items():
            self._put(found, f"{RNG}{name}", name, state)
        for kind, own in devices.items():
            for index, state in enumerate(own):
                self._put(found, f"{RNG}{kind}", f"{kind}:{index}", state)
        for name, own in named.items():
            self._put(found, f"{RNG}{name}", name, own["state"])

    def _put(self, found: dict[str, dict[str, Mark]], component: str, name: str, value: Any) -> None:
        mark = self._mark(value, digest_only=component.startswith(RNG))
        if mark is not None:
            found.setdefault(component, {})[name] = mark

    def _mark(self, value: Any, *, digest_only: bool = False) -> Mark | None:
        if isinstance(value, Held):
            value = _together(value)
            if value is None:
                return None
        value = comparable(whole(value) if isinstance(value, torch.Tensor) else value)
        if isinstance(value, Held):
            return self._mark(value)
        digest = self._digest(value)[:16]
        if digest_only:
            return Mark(digest, f"state {digest[:8]}")
        if isinstance(value, torch.Tensor):
            number = float(value) if value.numel() == 1 and value.is_floating_point() else None
            return Mark(digest, shown(value), sketch(value) if self.sketches else (), number)
        number = value if isinstance(value, float) else None
        return Mark(digest, _cut(repr(value)), number=number)


_SWITCHES: Final = ("fused", "foreach", "capturable", "differentiable", "maximize")
"""How an optimizer is run, which is always the live one's."""


def _leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """The leaves of plain containers with the keys that lead there; a short container of numbers is one leaf."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping | list | torch.Tensor) for item in value):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{place}[{index}]")
    else:
        yield place, value


def _together(held: Held) -> torch.Tensor | None:
    """The whole of a tensor that ranks share, on rank 0; None on the others. A collective of the default group."""
    mine = [(box, part.detach().cpu()) for box, part in held.parts]
    rows: list[Any] = [mine]
    if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        first = torch.distributed.get_rank() == 0
        rows = [None] * torch.distributed.get_world_size()
        torch.distributed.gather_object(mine, rows if first else None)
        if not first:
            return None
    made = torch.empty(held.shape, dtype=held.dtype, device="cpu")
    for box, part in (pair for row in rows for pair in row):
        made[tuple(slice(a, a + n) for a, n in zip(box.start, box.sizes, strict=True))] = part
    return made


def shown(tensor: torch.Tensor) -> str:
    """A tensor in a few words: its only value, or the first few, their mean and the shape.

    >>> shown(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    '1, 2, 3, .. (4, mean 2.5)'
    """
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.numel() == 0:
        return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
    if tensor.numel() == 1:
        return f"{tensor.item():.9g}" if not tensor.dtype.is_complex else str(tensor.item())
    head = [_number(value) for value in tensor.reshape(-1)[:3].cpu().tolist()]
    size = "x".join(map(str, tensor.shape))
    real = tensor.dtype.is_floating_point
    mean = f", mean {_number(float(tensor.detach().double().mean()))}" if real else ""
    return f"{', '.join(head)}{', ..' if tensor.numel() > 3 else ''} ({size}{mean})"


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
