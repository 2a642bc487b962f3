"""Tiny runs of any optimizer in any situation, with gradients by formula, and their whole state as comparable values.

A gradient depends on its parameter and on the process's random stream, so a step that starts from anything else than
the uninterrupted run's state, or draws another number, differs from then on.
"""

from __future__ import annotations

import copy
import inspect
import random
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

__all__ = [
    "SHAPES",
    "SITUATIONS",
    "Run",
    "Setting",
    "capture_streams",
    "first_difference",
    "frozen_value",
    "seed_all",
    "start",
    "streams",
    "transplant",
    "values_of",
]

STEPS: Final = 3

SITUATIONS: Final = (
    "never stepped", "stepped", "groups", "frozen", "without gradient", "bf16", "fp32 state of bf16",
)  # fmt: skip

SHAPES: Final[Mapping[str, Callable[[], torch.Tensor]]] = {
    "weight": lambda: torch.randn(3, 4),
    "turned": lambda: torch.randn(4, 3).t(),
    "bias": lambda: torch.randn(4),
    "scale": lambda: torch.randn(()),
    "conv": lambda: torch.randn(2, 3, 2, 2).to(memory_format=torch.channels_last),
    "embedding": lambda: torch.randn(5, 2),
}
"""Parameters of every kind of shape and stride; a class gets those that it takes."""


class Setting(NamedTuple):
    """How a class is run: which parameters it takes, whether its gradients are sparse, whether it needs a closure."""

    shapes: tuple[str, ...]
    sparse: bool
    closure: bool

    @classmethod
    def of(cls, make: Callable[..., Optimizer], shapes: Collection[str] = tuple(SHAPES)) -> Setting:
        """Found by trying one step of the class with its defaults on each shape, dense gradients first."""
        step = inspect.signature(make.step).parameters.get("closure") if hasattr(make, "step") else None
        closure = step is not None and step.default is inspect.Parameter.empty
        for sparse, calls in ((False, closure), (True, closure), (False, True)):
            taken = tuple(name for name in shapes if _takes(make, cls((name,), sparse, calls)))
            if taken:
                return cls(taken, sparse, calls)
        return cls(tuple(shapes), sparse=False, closure=closure)


def _takes(make: Callable[..., Optimizer], setting: Setting) -> bool:
    try:
        start(make, {}, "stepped", "cpu", setting, seed=0).step(1)
    except Exception:  # noqa: BLE001 - whatever the class raises, it does not take this shape
        return False
    return True


@dataclass
class Run:
    """A model, its optimizer, and how they are stepped."""

    model: nn.Module
    optimizer: Any
    situation: str
    setting: Setting
    idle: frozenset[str] = frozenset()
    mode: dict[str, Any] = field(default_factory=dict)

    def step(self, steps: int = STEPS) -> Run:
        if hasattr(self.optimizer, "train"):
            self.optimizer.train()
        for _ in range(steps):
            self._gradients()
            self.optimizer.step(*([self._gradients] if self.setting.closure else []))
        return self

    def _gradients(self) -> torch.Tensor:
        """Set the gradient of every parameter that gets one; the loss."""
        loss = 0.0
        for name, parameter in self.model.named_parameters():
            noise = torch.randn(parameter.shape).to(parameter.device, parameter.dtype)
            if name in self.idle:
                continue
            value = parameter.detach()
            gradient = value * 0.5 + noise * 0.125
            loss += value.double().square().sum().item()
            parameter.grad = gradient.to_sparse() if self.setting.sparse else gradient
        return torch.tensor(loss)

    def prepare(self) -> Run:
        """What happens in this situation before a save: three steps, and what the user's code does meanwhile."""
        if self.situation == "never stepped":
            return self
        self.step(1)
        self.freeze()
        self.step(STEPS - 1)
        if self.situation == "fp32 state of bf16":
            self._widen()
        for group in self.optimizer.param_groups:
            group["lr"] = group["lr"].mul_(0.5) if isinstance(group["lr"], torch.Tensor) else group["lr"] * 0.5
        return self

    def freeze(self) -> Run:
        """Freeze a second parameter, which has state by then; it gets no gradient from now on."""
        if self.situation == "frozen":
            name = self.setting.shapes[-1]
            late = self.model.get_parameter(name)
            late.grad = None
            late.requires_grad_(requires_grad=False)
            self.idle |= {name}
        return self

    def _widen(self) -> None:
        for state in self.optimizer.state.values():
            for key, value in state.items():
                state[key] = _wide(value)


def _wide(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16:
        return value.detach().float() * 1.001
    return [_wide(item) for item in value] if isinstance(value, list) else value


def start(
    make: Callable[..., Optimizer],
    switches: Mapping[str, Any],
    situation: str,
    device: str,
    setting: Setting,
    *,
    seed: int,
) -> Run:
    """A run that has taken no step. It leaves the process's random streams as they were."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        values = {name: SHAPES[name]() for name in setting.shapes}
    dtype = torch.bfloat16 if "bf16" in situation else torch.float32
    model = nn.Module()
    for name, value in values.items():
        # A differentiable step writes into its parameters in place, which autograd forbids for leaves that want grad.
        wants = not switches.get("differentiable")
        model.register_parameter(name, nn.Parameter(value.to(device, dtype), requires_grad=wants))
    idle = set()
    if situation in ("frozen", "without gradient"):
        idle.add(setting.shapes[0])
        model.get_parameter(setting.shapes[0]).requires_grad_(
            situation != "frozen" and not switches.get("differentiable")
        )
    options = {key: _placed(value, device, switches) for key, value in switches.items()}
    optimizer = make(_groups(model, situation), **options)
    return Run(model, optimizer, situation, setting, frozenset(idle))


def _placed(value: Any, device: str, switches: Mapping[str, Any]) -> Any:
    """Tensor options are on the device where a captured or fused step wants them, else on the host; none is shared."""
    if isinstance(value, tuple):
        return tuple(_placed(item, device, switches) for item in value)
    if not isinstance(value, torch.Tensor):
        return value
    beside = switches.get("capturable") or switches.get("fused")
    return value.clone().to(device if beside else "cpu")


def _groups(model: nn.Module, situation: str) -> Iterable[Any]:
    parameters = list(model.parameters())
    if situation != "groups":
        return parameters
    half = max(1, len(parameters) // 2)
    return [{"params": parameters[:half], "weight_decay": 0.125}, {"params": parameters[half:], "lr": 0.03125}]


class Leaf(NamedTuple):
    """A tensor such that == is equality bit for bit, of its place and strides too."""

    device: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    data: bytes


def frozen_value(run: Run) -> dict[str, Any]:
    """Everything that a run holds, as values that compare."""
    names = {id(p): name for name, p in run.model.named_parameters()}
    within = {key: item for key, item in vars(run.optimizer).items() if isinstance(item, Optimizer)}
    return {
        "parameters": {name: leaf(p) for name, p in run.model.named_parameters()},
        **_optimizer(run.optimizer, names),
        **{key: _optimizer(item, names) for key, item in within.items()},
        "streams": streams(),
    }


def _optimizer(optimizer: Optimizer, names: Mapping[int, str]) -> dict[str, Any]:
    hidden = ("params", "param_names")
    return {
        "state": {names.get(id(p), str(p)): leaf(entry) for p, entry in optimizer.state.items() if entry},
        "groups": [{k: leaf(v) for k, v in group.items() if k not in hidden} for group in optimizer.param_groups],
    }


def values_of(run: Run) -> tuple[bytes, ...]:
    """The bytes of all tensors of a run, in order, wherever they are."""
    entries = [run.optimizer.state.get(p, {}) for p in run.model.parameters()]
    return tuple(_bytes([*run.model.parameters(), *entries]))


def _bytes(value: Any) -> Iterator[bytes]:
    if isinstance(value, torch.Tensor):
        yield leaf(value).data
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _bytes(item)


def leaf(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        flat = torch.empty(value.numel(), dtype=value.dtype).copy_(value.detach().cpu().reshape(-1)).view(torch.uint8)
        # A stride of a dimension of size 1 says nothing.
        stride = tuple(s for s, size in zip(value.stride(), value.shape, strict=True) if size > 1)
        return Leaf(str(value.device), str(value.dtype), tuple(value.shape), stride, flat.numpy().tobytes())
    if isinstance(value, dict):
        return {key: leaf(item) for key, item in value.items()}
    if isinstance(value, list | tuple | deque):
        return [leaf(item) for item in value]
    if type(value).__module__ in ("builtins", "torch") or not hasattr(value, "__dict__"):
        return copy.deepcopy(value)
    return {"class": type(value).__name__, **{k: leaf(v) for k, v in vars(value).items() if not callable(v)}}


def streams() -> Any:
    """The state of the random streams, from which the next draws follow."""
    name, keys, *rest = np.random.get_state()
    devices = [leaf(state) for state in _device_streams()]
    return [leaf(torch.get_rng_state()), devices, list(random.getstate()[1]), [name, keys.tobytes(), *rest]]


def _device_streams() -> list[torch.Tensor]:
    return torch.sim.get_rng_state_all() if hasattr(torch, "sim") else []


def seed_all(seed: int) -> None:
    """Put all random streams of the process to a known place."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def capture_streams() -> Callable[[], None]:
    """A call that puts all random streams back to where they are now."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    devices = _device_streams()

    def put_back() -> None:
        if devices:
            torch.sim.set_rng_state_all(devices)
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])

    return put_back


def first_difference(found: Any, wanted: Any, place: str = "") -> str:
    """Where two frozen values differ first, with both sides; "" where they are equal."""
    if found == wanted and type(found) is type(wanted):
        return ""
    if isinstance(found, dict) and isinstance(wanted, dict):
        if found.keys() != wanted.keys():
            return f"{place}: has {sorted(map(str, found))}, wanted {sorted(map(str, wanted))}"
        return next(d for k in found if (d := first_difference(found[k], wanted[k], f"{place}.{k}")))
    if isinstance(found, Leaf) and isinstance(wanted, Leaf):
        side = next(name for name in Leaf._fields if getattr(found, name) != getattr(wanted, name))
        if side == "data":
            return f"{place}: other values"
        return f"{place}: {side} {getattr(found, side)}, wanted {getattr(wanted, side)}"
    if isinstance(found, list | tuple) and isinstance(wanted, list | tuple) and len(found) == len(wanted):
        pairs = zip(found, wanted, strict=True)
        return next((d for i, (a, b) in enumerate(pairs) if (d := first_difference(a, b, f"{place}[{i}]"))), place)
    return f"{place}: {str(found)[:60]}, wanted {str(wanted)[:60]}"


LIVE_OPTIONS: Final = ("params", "param_names", "foreach", "fused", "capturable", "differentiable")


def transplant(source: Run, target: Run) -> None:
    """Give `target` the values of `source`, each where torch itself has put it in `target`."""
    for theirs, ours in zip(source.model.parameters(), target.model.parameters(), strict=True):
        ours.detach().copy_(theirs.detach())
        state = target.optimizer.state.pop(ours, {})
        entry = source.optimizer.state.get(theirs)
        if entry:
            target.optimizer.state[ours] = {k: _transplanted(v, state.get(k), ours.device) for k, v in entry.items()}
    for theirs, ours in zip(source.optimizer.param_groups, target.optimizer.param_groups, strict=True):
        for key, value in theirs.items():
            if key not in LIVE_OPTIONS:
                ours[key] = _transplanted(value, ours.get(key), torch.device("cpu"))


def _transplanted(value: Any, place: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        if isinstance(place, torch.Tensor) and place.shape == value.shape and place.dtype == value.dtype:
            return place.detach().copy_(value.detach())
        made = value.detach().to(device)
        return made.clone() if made.data_ptr() == value.data_ptr() else made
    if isinstance(value, dict):
        within = place if isinstance(place, dict) else {}
        return {key: _transplanted(item, within.get(key), device) for key, item in value.items()}
    if isinstance(value, list | tuple):
        places = place if isinstance(place, list | tuple) and len(place) == len(value) else [None] * len(value)
        return type(value)(_transplanted(item, at, device) for item, at in zip(value, places, strict=True))
    return copy.deepcopy(value)
