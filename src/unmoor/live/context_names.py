"""What tensors and modules are called: by their path in the model, by their parameter in an optimizer, by a variable.

A tensor is known by identity, else by its storage: a view goes by the name of what it is a view of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from .context_frames import Step
from .context_look import items_of
from .wrappers import walk

__all__ = ["Known", "Names", "each_module", "each_optimizer", "state_key", "storage_of"]

_MOST: Final = 4000
"""Values of one frame that are looked through for a name."""


@dataclass(frozen=True, slots=True)
class Known:
    """A name. `kind` is one of values.mismatch.KINDS; `step` is the frame whose variable `root` it begins with.

    For a tensor of a module that is not of the model `root` is the expression of that module.
    """

    name: str
    kind: str
    step: Step | None = None
    root: str = ""


class Names:
    """Names of what a model and its optimizers hold, and of the variables of frames, the outermost frame first."""

    def __init__(self, model: Any, optimizer: Any, steps: Iterable[Step] = ()) -> None:
        self.modules: dict[int, tuple[str, nn.Module]] = {}
        self.parameters: dict[str, torch.Tensor] = {}
        self._own: dict[int, Known] = {}
        self._stored: dict[int, Known] = {}
        self.held: list[tuple[Known, torch.Tensor]] = []
        for label, module in each_module(model):
            self._add_module(f"{label}." if label else "", module)
        for label, one in each_optimizer(optimizer):
            self._add_optimizer(label, one)
        self._frames = [self._variables(step) for step in steps]

    def of(self, tensor: torch.Tensor) -> Known | None:
        """The name of a tensor; None where nothing holds it."""
        for table, stored in ((self._own, self._stored), *self._frames):
            known = table.get(id(tensor)) or stored.get(storage_of(tensor))
            if known is not None:
                return known
        return None

    def is_itself(self, tensor: torch.Tensor) -> bool:
        """Whether the name of a tensor is its own, not that of what it is a view of."""
        return id(tensor) in self._own or any(id(tensor) in table for table, _ in self._frames)

    def variable(self, value: Any) -> Known | None:
        """The variable that holds a module, an optimizer or a tensor."""
        return next((table[id(value)] for table, _ in self._frames if id(value) in table), None)

    def of_module(self, module: nn.Module) -> tuple[str, str]:
        """The path of a module in the model, else of the variable that holds it, and its class."""
        path = self.modules[id(module)][0] if id(module) in self.modules else ""
        if id(module) not in self.modules:
            known = self.variable(module)
            path = known.name if known is not None else ""
        return path, type(module).__name__

    def is_of_model(self, module: Any) -> bool:
        """Whether the module is the model or in it."""
        return id(module) in self.modules

    def add_other(self, module: nn.Module) -> None:
        """Give names to the tensors of a module that is not of the model and that no variable holds."""
        path, cls = self.of_module(module)
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if self.of(tensor) is None:
                self._add(tensor, Known(f"{path or cls}.{name}", "loss"))

    def _add_module(self, prefix: str, module: nn.Module) -> None:
        for place in walk(module):
            path = (prefix + place.prefix).rstrip(".")
            for one in (place.module, *place.wrappers):
                self.modules.setdefault(id(one), (path, place.module))
            for name, parameter in place.module._parameters.items():
                if parameter is not None:
                    self.parameters.setdefault(_joined(path, name), parameter)
                    self._add(parameter, Known(_joined(path, name), "parameter"))
                    if parameter.grad is not None:
                        self._add(parameter.grad, Known(f"gradient of {_joined(path, name)}", "gradient"))
            for name, buffer in place.module._buffers.items():
                if buffer is not None:
                    self._add(buffer, Known(_joined(path, name), "buffer"))
            for name, tensor in _attributes(place.module):
                self._add(tensor, Known(_joined(path, name), "attribute"))

    def _add_optimizer(self, label: str, optimizer: torch.optim.Optimizer) -> None:
        for g, group in enumerate(optimizer.param_groups):
            for i, parameter in enumerate(group["params"]):
                known = self._own.get(id(parameter))
                name = known.name if known is not None else f"parameter {i} of group {g}"
                self._add(parameter, Known(name, "parameter"))
                if parameter.grad is not None:
                    self._add(parameter.grad, Known(f"gradient of {name}", "gradient"))
                state = optimizer.state.get(parameter, {})
                for path, tensor in items_of(dict(state), most=_MOST) if isinstance(state, Mapping) else ():
                    if isinstance(tensor, torch.Tensor):
                        self._add(tensor, Known(f"{state_key(path)} of {name}", "state"))
        del label

    def _add(self, tensor: torch.Tensor, known: Known) -> None:
        self._own.setdefault(id(tensor), known)
        self._stored.setdefault(storage_of(tensor), known)
        self.held.append((known, tensor))

    def _variables(self, step: Step) -> tuple[dict[int, Known], dict[int, Known]]:
        """Id of a tensor or module -> the shortest expression that reaches it from a variable; the same by storage."""
        own: dict[int, Known] = {}
        stored: dict[int, Known] = {}
        for known, value in sorted(_reached(step), key=lambda pair: _length(pair[0].name)):
            for name, leaf in (("", value), *self._inside(value)):
                one = Known(f"{known.name}.{name}", "loss", step, known.name) if name else known
                own.setdefault(id(leaf), one)
                if isinstance(leaf, torch.Tensor):
                    stored.setdefault(storage_of(leaf), one)
        return own, stored

    def _inside(self, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors of a module that is no part of the model, such as a loss or an average of its weights."""
        if isinstance(value, nn.Module) and id(value) not in self.modules:
            yield from value.named_parameters()
            yield from value.named_buffers()


def _reached(step: Step) -> Iterator[tuple[Known, Any]]:
    for root, value in [*step.frame.f_locals.items()]:
        if root.isidentifier():
            yield from ((Known(root + path, "given", step, root), leaf) for path, leaf in items_of(value, most=_MOST))


def _length(name: str) -> int:
    return name.count(".") + name.count("[")


def state_key(path: str) -> str:
    """The path of a state as its key alone: `['exp_avg']` is exp_avg."""
    head, _, rest = path.removeprefix("['").partition("']")
    return head + rest


def _attributes(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors that a module keeps as plain attributes, and those in the lists and dicts among them."""
    for name, value in [*module.__dict__.items()]:
        if (name.startswith("_") and name[1:] in ("parameters", "buffers", "modules")) or isinstance(value, nn.Module):
            continue
        if isinstance(value, torch.Tensor) or (isinstance(value, list | tuple | dict) and value):
            for path, leaf in items_of(value, most=200, depth=2):
                if isinstance(leaf, torch.Tensor):
                    yield name + path, leaf


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def storage_of(tensor: torch.Tensor) -> int:
    """The identity of a tensor's memory; its own where it has none that can be asked for."""
    with suppress(Exception):  # sparse, quantized and functional tensors have no storage to ask for
        return int(tensor.untyped_storage()._cdata)
    return -id(tensor)


def each_module(model: Any) -> Iterator[tuple[str, nn.Module]]:
    """The modules of what a caller passes as a model: one, a dict or list of them, nothing."""
    if isinstance(model, nn.Module):
        yield "", model
    elif isinstance(model, Mapping):
        yield from ((str(key), value) for key, value in model.items() if isinstance(value, nn.Module))
    elif isinstance(model, list | tuple):
        yield from ((str(i), value) for i, value in enumerate(model) if isinstance(value, nn.Module))


def each_optimizer(optimizer: Any) -> Iterator[tuple[str, torch.optim.Optimizer]]:
    """The optimizers of what a caller passes as one, those inside of wrappers too."""
    if isinstance(optimizer, torch.optim.Optimizer):
        yield "", optimizer
    elif isinstance(optimizer, Mapping):
        for key, value in optimizer.items():
            yield from ((str(key), one) for _, one in each_optimizer(value))
    elif isinstance(optimizer, list | tuple):
        for i, value in enumerate(optimizer):
            yield from ((str(i), one) for _, one in each_optimizer(value))
    elif isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        yield "", inner
