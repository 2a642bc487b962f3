"""A run as the user's own function builds it: the objects that a checkpoint fills, and how one step is taken.

`build()` or `build(device)` returns a mapping. Its keys are the keywords of `restore` (model, optimizer, scheduler,
scaler, loss, metrics, ema, loader, rng, and any other object with a state under a name of its own). Two more are known:
`train_step`, a callable that takes one step and returns its loss, and `batch`, one example batch. A parameter `wrap` is
given what wraps the model: the function applies it before it makes the optimizer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from torch.optim.lr_scheduler import ReduceLROnPlateau

from unmoor.errors import UsageError

__all__ = ["ABSENT", "Built", "build_run", "parameters_of", "sorted_run", "take_step"]

ABSENT: Final = object()
"""Stands for a batch where the build function gives none."""


@dataclass(frozen=True)
class Built:
    """What a build function returned, sorted: `objects` by the keywords of `restore`, and how a step is taken.

    `train_step` is None where the function gives none: then `take_step` takes the usual one. `batch` is ABSENT where
    it gives none. `name` is how errors and reports call the function, `made` what it returned.
    """

    objects: Mapping[str, Any]
    train_step: Callable[..., Any] | None = None
    batch: Any = ABSENT
    name: str = "build"
    made: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, role: str) -> Any:
        """The object of a role, None where the run has none."""
        return self.objects.get(role)


def build_run(build: Callable[..., Any], *, device: Any = None, wrap: Any = None, name: str = "") -> Built:
    """Call `build`, with `device=` and `wrap=` where it takes them and they are given, and sort what it returns.

    Raises UsageError where it does not return a mapping with a model in it, or takes arguments that nobody can know.
    """
    name = name or getattr(build, "__qualname__", repr(build))
    given = _arguments(build, device, wrap, name)
    try:
        made = build(**given)
    except SystemExit as error:
        if isinstance(error.code, str):
            raise UsageError(f"{name}() ended the program instead of building a run: {error.code}") from error
        raise UsageError(
            f"{name}() ended the program (exit code {error.code}) instead of building a run",
            remedy="It finds no arguments of a command line: give its parser defaults, or read them elsewhere.",
        ) from error
    return sorted_run(made, name)


def sorted_run(made: Any, name: str) -> Built:
    """What a build function returned, sorted. Raises UsageError where that is no run."""
    if not isinstance(made, Mapping):
        raise UsageError(
            f"{name}() returned {type(made).__name__}, not a mapping of what a run consists of",
            remedy=_EXAMPLE,
        )
    objects = {str(key): value for key, value in made.items() if value is not None}
    train_step, batch = objects.pop("train_step", None), objects.pop("batch", ABSENT)
    if "model" not in objects:
        raise UsageError(
            f"{name}() returned no model; its keys are {', '.join(map(repr, made)) or 'none'}", remedy=_EXAMPLE
        )
    if train_step is not None and not callable(train_step):
        raise UsageError(
            f"{name}() gave {type(train_step).__name__} as 'train_step', which is no function",
            remedy="train_step takes one step (with a batch, where there is a loader) and returns its loss.",
        )
    return Built(objects, train_step, batch, name, made)


_EXAMPLE: Final = (
    'Return a dict such as {"model": model, "optimizer": optimizer, "loader": loader, "train_step": step}.'
)


def parameters_of(build: Callable[..., Any]) -> dict[str, bool]:
    """The names of a function's parameters, each with whether it has to be given; none where they cannot be known."""
    try:
        parameters = inspect.signature(build).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {p.name: p.default is p.empty for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}


def _arguments(build: Callable[..., Any], device: Any, wrap: Any, name: str) -> dict[str, Any]:
    given = {"device": device, "wrap": wrap}
    parameters = parameters_of(build)
    unknown = [parameter for parameter, needed in parameters.items() if needed and parameter not in given]
    if unknown:
        raise UsageError(
            f"{name} needs the arguments {', '.join(unknown)}, and only device and wrap are known",
            remedy="Give them defaults, or name a function that takes none, device or wrap.",
        )
    if parameters.get("wrap") and wrap is None:
        given["wrap"] = _as_it_is
    return {
        key: value for key, value in given.items() if parameters.get(key) or (key in parameters and value is not None)
    }


def _as_it_is(model: Any) -> Any:
    return model


def take_step(built: Built, batch: Any = ABSENT) -> Any:
    """Take one training step and give its loss: the run's own `train_step`, else forward, loss, backward, step.

    The usual step clears gradients first, takes a batch as (inputs, targets) or as a mapping with targets under
    "labels", "label", "targets", "target" or "y", scales by the scaler where there is one, and advances the schedulers
    after their optimizers, with the loss where they follow it. An optimizer that wants a closure is given one.
    """
    if built.train_step is not None:
        return built.train_step() if batch is ABSENT else built.train_step(batch)
    model, optimizers = built["model"], _each(built["optimizer"])
    scaler = built["scaler"]

    def closure() -> Any:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = _loss(built, model, batch)
        (scaler.scale(loss) if scaler is not None else loss).backward()
        return loss

    if scaler is None and len(optimizers) == 1 and _needs_closure(optimizers[0]):
        loss = optimizers[0].step(closure)
    else:
        loss = closure()
        for optimizer in optimizers:
            scaler.step(optimizer) if scaler is not None else optimizer.step()
    if scaler is not None:
        scaler.update()
    for scheduler in _each(built["scheduler"]):
        scheduler.step(loss.detach()) if isinstance(scheduler, ReduceLROnPlateau) else scheduler.step()
    return loss


def _needs_closure(optimizer: Any) -> bool:
    """Whether an optimizer computes the loss several times in a step, as LBFGS does."""
    return parameters_of(optimizer.step).get("closure", False)


TARGETS: Final = ("labels", "label", "targets", "target", "y")
"""The keys under which a batch that is a mapping usually holds what the model is to learn."""


def _loss(built: Built, model: Any, batch: Any) -> Any:
    """The loss of one batch; a model that knows its own loss (a mapping's `loss`, an attribute) is asked for it."""
    if batch is ABSENT:
        raise UsageError(
            f"{built.name}() gives neither a train_step nor a loader or batch, so no step can be taken",
            remedy="Return a train_step, a loader, or a batch.",
        )
    loss = built["loss"]
    if isinstance(batch, Mapping):
        key = next((key for key in TARGETS if key in batch), None)
        if loss is None or key is None:
            return _own_loss(model(**batch), built)
        inputs = {name: value for name, value in batch.items() if name != key}
        output = model(**inputs) if len(inputs) > 1 else model(*inputs.values())
        return loss(output, batch[key])
    if isinstance(batch, tuple | list) and len(batch) == 2 and loss is not None:
        return loss(model(batch[0]), batch[1])
    raise UsageError(
        f"how {built.name}'s run takes a step is not clear from a batch of {type(batch).__name__}"
        + ("" if loss is not None else " and no loss"),
        remedy="Return a train_step: a function that takes a batch, takes one step and returns its loss.",
    )


def _own_loss(output: Any, built: Built) -> Any:
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if loss is None:
        raise UsageError(
            f"{built.name}() gives no loss, and the model's output {type(output).__name__} has none",
            remedy='Return the loss function under "loss", or a train_step.',
        )
    return loss


def _each(value: Any) -> list[Any]:
    """The objects of a role: one, those of a list or of a dict, or none."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else [value]
