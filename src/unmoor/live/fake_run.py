"""One training step of a run on a device in pretence: which parts were reached, what ended it, what it holds there.

Only for a process of its own (see `fake`).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn
from torch._subclasses import fake_tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from unmoor.errors import UsageError
from unmoor.values.mismatch import Met, Mismatch
from unmoor.values.preflight import Invented, Stop

from .built import ABSENT, Built, build_run, parameters_of, take_step
from .context import read_mismatch
from .context_frames import source_line, steps_of, user_steps
from .context_names import each_module, each_optimizer
from .fake import Faked, is_fake
from .moving import leaves, move

__all__ = ["Attempt", "attempt", "built_there", "invented_lines", "memory_on", "modules_there"]

_CANNOT: Final = tuple(
    getattr(fake_tensor, name)
    for name in (
        "DynamicOutputShapeException",
        "DataDependentOutputException",
        "UnsupportedFakeTensorException",
        "UnsupportedOperatorException",
        "UnsupportedMutationAliasingException",
    )
    if hasattr(fake_tensor, name)
) + (NotImplementedError,)
"""What torch raises where it has no rule for an operation without data."""


_MACHINERY: Final = ("torch._library", "torch._subclasses", "torch._ops", "torch.library")
"""Torch's own machinery of fake tensors: what it raises itself is of a rule that it lacks."""


@dataclass(slots=True)
class Attempt:
    """What came of a step: `parts` that were reached, and the mismatch or other error that ended it."""

    parts: dict[str, int] = field(default_factory=dict)
    mismatch: Mismatch | None = None
    stop: Stop | None = None

    def reached(self, part: str) -> None:
        """Count a part of the step."""
        self.parts[part] = self.parts.get(part, 0) + 1


def built_there(build: Callable[..., Any], device: torch.device, name: str) -> tuple[Built, bool]:
    """The run, and whether its model had to be put on the device because the function takes none."""
    built = build_run(build, device=str(device), name=name)
    takes = "device" in parameters_of(build)
    modules = [module for _, module in each_module(built["model"])]
    away = not any(is_fake(tensor) for module in modules for tensor in module.parameters())
    if takes or not away:
        return built, False
    for module in modules:
        module.to(device)
    return built, True


def attempt(built: Built, faked: Faked) -> Attempt:
    """Take one step of the run."""
    made = Attempt()
    with _watched(built, made):
        try:
            take_step(built, _batch(built, faked.device))
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001 (whatever ends the step is what this is for)
            made.mismatch = _mismatch(error, built)
            if made.mismatch is None:
                made.stop = _stop(error, invented=bool(faked.notes.found))
    return made


@contextmanager
def _watched(built: Built, made: Attempt) -> Iterator[None]:
    """Count forward, backward and optimizer steps."""
    kept: Any = torch.autograd.backward

    def backward(*args: Any, **kwargs: Any) -> None:
        kept(*args, **kwargs)
        made.reached("backward")

    hooks = [
        module.register_forward_hook(lambda *_: made.reached("forward")) for _, module in each_module(built["model"])
    ]
    hooks.append(register_optimizer_step_post_hook(lambda *_: made.reached("optimizer step")))
    torch.autograd.backward = backward
    try:
        yield
    finally:
        torch.autograd.backward = kept
        for hook in hooks:
            hook.remove()


def _batch(built: Built, device: torch.device) -> Any:
    """The batch of the step: the loader's first, else the one that is given; none where train_step draws its own.

    The usual step has nobody who brings the loader's batches to the device; so it is done here. A batch that is given
    is taken as it is.
    """
    step, loader = built.train_step, built["loader"]
    if step is not None and not parameters_of(step):
        return ABSENT
    if loader is None:
        return built.batch
    if isinstance(loader, Mapping):
        loader = loader.get("train", next(iter(loader.values())))
    batch = next(iter(loader), ABSENT)
    if batch is ABSENT:
        raise UsageError(f"the loader of {built.name}() gives no batches", remedy="Return one that has some.")
    return batch if step is not None else move(batch, device=device, like=None, non_blocking=False, keep=())


def _mismatch(error: Exception, built: Built) -> Mismatch | None:
    found = read_mismatch(error, error.__traceback__, built["model"], built["optimizer"])
    devices = [getattr(error, name, None) for name in ("common_device", "device")]
    if found is not None or not all(isinstance(device, torch.device) for device in devices):
        return found
    met = tuple(Met("a tensor", "result", str(device)) for device in devices)
    lines = tuple(source_line(step) for step in user_steps(steps_of(error.__traceback__))[-1:])
    home = next((one.device for one in met if one.device != "cpu"), met[0].device)
    return Mismatch("code", "", "", met, home, lines=lines)


def _stop(error: Exception, *, invented: bool) -> Stop:
    steps = steps_of(error.__traceback__)
    cannot = isinstance(error, _CANNOT) or steps[-1].module.startswith(_MACHINERY)
    why = "operator" if cannot else "invented" if invented else "fails"
    users = user_steps(steps)
    users = [step for step in users if not step.module.startswith("unmoor.")] or users
    lines = dict.fromkeys(source_line(step) for step in (*users[:1], *users[-1:]))
    message = " ".join(str(error).split()) or str(getattr(error, "func", ""))
    trace = "".join(traceback.format_exception(error))
    return Stop(why, type(error).__name__, message, tuple(lines), trace)


def invented_lines(faked: Faked) -> tuple[Invented, ...]:
    """The lines at which something was invented, in the order in which they were met."""
    return tuple(Invented(what, line) for what, line in faked.notes.found)


def memory_on(built: Built, batch: Any = None) -> dict[str, int]:
    """What the run holds on the device, in bytes; gradients as they will be, where there are none yet."""
    parameters: dict[int, torch.Tensor] = {}
    buffers: dict[int, torch.Tensor] = {}
    for role in ("model", "loss", "ema"):
        for _, module in each_module(built[role]):
            parameters.update({id(one): one for one in module.parameters() if is_fake(one)})
            buffers.update({id(one): one for one in module.buffers() if is_fake(one)})
    trained = [one for one in parameters.values() if one.requires_grad]
    state = {
        id(value): value
        for _, optimizer in each_optimizer(built["optimizer"])
        for entry in optimizer.state.values()
        for _, value in leaves(entry)
        if is_fake(value)
    }
    given = [value for _, value in leaves(batch) if is_fake(value)] if batch is not None else []
    sums = {
        "parameters": _nbytes(parameters.values()),
        "buffers": _nbytes(buffers.values()),
        "gradients": _nbytes(trained),
        "optimizer state": _nbytes(state.values()),
        "batch": _nbytes(given),
    }
    return {what: nbytes for what, nbytes in sums.items() if nbytes}


def _nbytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def modules_there(built: Built) -> bool:
    """Whether any parameter of the model is on the device."""
    modules: list[nn.Module] = [module for _, module in each_module(built["model"])]
    return any(is_fake(parameter) for module in modules for parameter in module.parameters())
