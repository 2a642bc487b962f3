"""From an error that PyTorch raised to the tensors on different devices that caused it, or to the answer that none did.

The law: whether it was the devices is decided by facts, the tensors that the failing expression was given, and by
asking torch whether it works where all are on one device (`context_replay`). The words of the error are a hint alone,
taken only where that question has no answer: they never make a mismatch without tensors that are apart.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from unmoor.errors import DeviceMismatch, UsageError
from unmoor.values.mismatch import Fix, Met, Mismatch

from .context_fix import Culprit, anchor_in, fixes_for, making_of
from .context_frames import Source, Step, source_line, steps_of, user_steps
from .context_hidden import datasets, is_hidden, spot_of, step_in, wrapper_tensors
from .context_look import Operand, is_factory, operands
from .context_names import Known, Names, each_module, each_optimizer, storage_of
from .context_optimizer import Apart, apart, capturable_on_cpu, optimizer_of
from .context_replay import works_on_one_device

__all__ = ["MODELS", "OPTIMIZERS", "read_mismatch", "refuse_strangers"]

_OTHER: Final = tuple(
    getattr(torch, name) for name in ("OutOfMemoryError", "AcceleratorError") if hasattr(torch, name)
) + (NotImplementedError, DeviceMismatch)
"""RuntimeErrors that are never of two devices: memory, a fault of one device, an operator that is missing."""


def read_mismatch(error: BaseException, traceback: TracebackType | None, model: Any, optimizer: Any) -> Mismatch | None:
    """What was apart when `error` was raised; None where the devices had no part in it."""
    if not isinstance(error, RuntimeError | AssertionError) or isinstance(error, _OTHER):
        return None
    steps = steps_of(traceback)
    seen = [step for step in steps if not step.is_plumbing]
    if not seen or (seen[-1].is_user and seen[-1] == steps[-1] and seen[-1].raises):
        return None
    return _Reading(error, steps, seen, model, optimizer).read()


MODELS: Final = (nn.Module, type(None))
OPTIMIZERS: Final = (Optimizer, type(None))
"""What is a model and an optimizer at first sight, which is all that there is time for at every step."""


def refuse_strangers(model: Any, optimizer: Any) -> None:
    """Raise UsageError for what is no model and no optimizer, nor a dict or list of them."""
    for role, value, found, kind in (
        ("model", model, each_module(model), "a torch.nn.Module"),
        ("optimizer", optimizer, each_optimizer(optimizer), "a torch.optim.Optimizer"),
    ):
        nothing = value is None or (isinstance(value, dict | list | tuple) and not value)
        if not nothing and next(iter(found), None) is None:
            shown = value.__name__ if isinstance(value, type) else type(value).__name__
            raise UsageError(
                f"device_context was given {shown} as its {role}",
                remedy=f"Pass {kind}, a dict or list of them, or None.",
            )


class _Reading:
    """One error being read. `seen` are the frames that are not plumbing; `last` is the innermost of them."""

    def __init__(self, error: BaseException, steps: list[Step], seen: list[Step], model: Any, optimizer: Any) -> None:
        self.error, self.steps, self.seen, self.model = error, steps, seen, model
        self.users, self.last = user_steps(seen), seen[-1]
        self.source = Source(self.last)
        self.names = Names(model, optimizer, self._by_nearness())
        self.counts = Counter(str(parameter.device) for parameter in self.names.parameters.values())
        self.module = next((step for step in reversed(seen) if isinstance(step.value("self"), nn.Module)), None)

    def read(self) -> Mismatch | None:
        if is_hidden(self.error, self.steps):
            return self._of_hidden()
        optimizer = optimizer_of(self.seen)
        found = self._of_optimizer(optimizer) if optimizer is not None else None
        return found or self._of_wrapper() or self._of_operands()

    def _of_optimizer(self, optimizer: torch.optim.Optimizer) -> Mismatch | None:
        """State or gradients that are not beside their parameters."""
        parts = apart(optimizer)
        if parts and self._devices_to_blame():
            return self._optimizer_mismatch(optimizer, parts)
        parameter = capturable_on_cpu(optimizer)
        if parameter is None or not isinstance(self.error, AssertionError):
            return None
        name = self.names.variable(optimizer)
        called = name.name if name is not None else "optimizer"
        met = self._met(parameter, self._known(parameter), "", "parameter")
        fix = (Fix("capturable", f'for group in {called}.param_groups: group["capturable"] = False'),)
        return self._mismatch("capturable", called, type(optimizer).__name__, [met], str(parameter.device), fix)

    def _optimizer_mismatch(self, optimizer: torch.optim.Optimizer, parts: list[Apart]) -> Mismatch:
        name = self.names.variable(optimizer)
        mets, culprits = [], []
        for part in parts:
            owner = self._known(part.parameter) or Known("a parameter", "parameter")
            kind = "gradient" if part.key == "gradient" else "state"
            met = self._met(part.tensor, Known(f"{part.key} of {owner.name}", kind), part.key, kind)
            mets.append(met)
            culprits.append(Culprit(met, None, None, optimizer))
        first = parts[0].parameter
        mets.append(self._met(first, self._known(first), "parameter", "parameter"))
        called = name.name if name is not None else "optimizer"
        home = str(first.device)
        fix = fixes_for(culprits, self.names, self.model, home, None)
        return self._mismatch("optimizer", called, type(optimizer).__name__, mets, home, fix)

    def _of_wrapper(self) -> Mismatch | None:
        """DataParallel's own check: the tensor that it met, and where its first device is."""
        found = wrapper_tensors(self.last)
        if found is None:
            return None
        wrapper, tensor, home = found
        known = self._known(tensor)
        met = [self._met(tensor, known, "", known.kind if known else "parameter")]
        fix = fixes_for([Culprit(met[0], known, None)], self.names, self.model or wrapper, home, None)
        return self._mismatch("wrapper", self.names.of_module(wrapper)[0], type(wrapper).__name__, met, home, fix)

    def _of_operands(self) -> Mismatch | None:
        """The tensors that the failing expression was given."""
        found = self._apart(operands(self.source)) if not self.last.raises else []
        if not found:
            found = self._apart(_locals(self.last)) if self.last.is_torch else []
        found = found or self._apart(self._of_functional_call())
        return self._of_tensors(found) if found and self._devices_to_blame() else None

    def _of_functional_call(self) -> list[Operand]:
        """The tensors that stood in for a module's own, which it has back by now, and what else the code was given."""
        call = next((step for step in self.steps if step.module == "torch.nn.utils.stateless"), None)
        stand_ins = call.value("parameters_and_buffers") if call is not None else None
        if not isinstance(stand_ins, Mapping):
            return []
        found = [_operand(str(name), one) for name, one in stand_ins.items() if isinstance(one, torch.Tensor)]
        own = {id(tensor) for _, tensor in self.names.held}
        return [*found, *(one for one in operands(self.source) if id(one.value) not in own)]

    def _of_hidden(self) -> Mismatch | None:
        """Frames are gone: what the line that failed names, what was handed in, what the model keeps elsewhere."""
        spot = spot_of(self.error, self.steps)
        modules = [module for _, module in self.names.modules.values()]
        step = step_in(spot, [*modules, *datasets(self.steps)]) if spot is not None else None
        if step is not None:
            self.seen.append(step)
            self.users.append(step)
        if not self._hinted(self.counts):
            return None
        home = self._main_device()
        tries = [operands(Source(step))] if step is not None else []
        tries += [operands(self.source), [_operand(known.name, tensor) for known, tensor in self.names.held]]
        for found in tries:
            spread = [one for operand in found for one in self._spread(operand)]
            away = [one for one in spread if _device(one) != home and not _is_number(one)]
            if away and home:
                return self._of_hidden_tensors(step, [*away, *self._one_at(home)])
        return None

    def _of_hidden_tensors(self, step: Step | None, found: list[Operand]) -> Mismatch:
        if step is not None:
            self.last, self.module = step, step if isinstance(step.value("self"), nn.Module) else None
        return self._of_tensors(found)

    def _main_device(self) -> str:
        """Where most parameters of the model are; an accelerator, where any is."""
        devices = [device for device in self.counts if device != "cpu"] or list(self.counts)
        return max(devices, key=self.counts.__getitem__, default="")

    def _one_at(self, home: str) -> list[Operand]:
        """A parameter of the model, which stands for the side that is at home."""
        pairs = self.names.parameters.items()
        return [_operand(name, parameter) for name, parameter in pairs if str(parameter.device) == home][:1]

    def _devices_to_blame(self) -> bool:
        """Whether the operation works where all is on one device; where it does not, or nobody can tell, a hint."""
        return (not self.last.raises and works_on_one_device(self.source) is True) or self._hinted(self.counts)

    def _hinted(self, devices: Iterable[str]) -> bool:
        text = str(self.error).lower()
        kinds = {device.partition(":")[0] for device in devices} - {"cpu"}
        return "device" in text or any(kind in text for kind in kinds)

    def _apart(self, found: list[Operand]) -> list[Operand]:
        """The operands, where they are on several devices; those that a call took itself decide before others."""
        tensors = [one for operand in found for one in self._spread(operand)]
        for chosen in (
            [one for one in tensors if one.direct and not _is_number(one)],
            [one for one in tensors if one.direct],
            [one for one in tensors if not _is_number(one)],
        ):
            if len({_device(one) for one in chosen}) > 1:
                return chosen
        return []

    def _spread(self, operand: Operand) -> list[Operand]:
        """An operand that is a module stands for its tensors, one for each device."""
        if not isinstance(operand.value, nn.Module):
            return [operand]
        tensors = {str(t.device): t for t in reversed([*operand.value.parameters(), *operand.value.buffers()])}
        return [Operand(operand.text, t, operand.direct, operand.node) for t in tensors.values()]

    def _of_tensors(self, found: list[Operand]) -> Mismatch:
        module = self.module.value("self") if self.module is not None else None
        if module is not None and not self.names.is_of_model(module):
            self.names.add_other(module)
        mets: list[Met] = []
        culprits: list[Culprit] = []
        for operand in found:
            met, culprit = self._of_operand(operand)
            if all((met.name, met.device) != (one.name, one.device) for one in mets):
                mets.append(met)
                culprits.append(culprit)
        situation = "module" if self.module is not None and self.module.is_torch else "code"
        return self._finished(situation, mets, culprits)

    def _of_operand(self, operand: Operand) -> tuple[Met, Culprit]:
        if operand.value is None:
            made = is_factory(operand.node, self.last)
            met = Met(operand.text, "made" if made else "result", operand.device, word=operand.text)
            return met, Culprit(met, None, None)
        known = self._known(operand.value)
        making = None
        if known is None and self.last.is_user:
            making = making_of(self.last, operand.text)
        elif known is not None and known.step is not None:
            making = making_of(known.step, known.root)
        kind = known.kind if known is not None else "result"
        if making is not None and kind in ("given", "result"):
            kind = "made"
        word = self._word(operand)
        met = self._met(operand.value, known or Known(word if self.last.is_user else f"its {word}", kind), word, kind)
        if making is not None and kind == "made":
            met = replace(met, made=making.line)
        return met, Culprit(met, known, making, given=self._given(operand.value) if known is None else "")

    def _given(self, tensor: torch.Tensor) -> str:
        """The expression by which the user's code gave the outermost module its only argument, if it is the tensor."""
        step = next(iter(self._calling()), None)
        node = Source(step).running() if step is not None and self.module is not None else None
        if step is None or not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
            return ""
        inner = self.steps[self.steps.index(step) + 1 :]
        first = next((one for one in inner if isinstance(one.value("self"), nn.Module)), None)
        passed = [*first.frame.f_locals.values(), *(first.value("args") or ())] if first is not None else []
        storages = {storage_of(one) for one in passed if isinstance(one, torch.Tensor)}
        if storage_of(tensor) not in storages or isinstance(node.args[0], ast.Starred):
            return ""
        text = ast.unparse(node.args[0])
        return text if isinstance(node.args[0], ast.Call | ast.Name | ast.Attribute | ast.Subscript) else f"({text})"

    def _word(self, operand: Operand) -> str:
        """What the module's forward calls the tensor; its expression where it has no such argument."""
        if self.last.is_user:
            return operand.text
        step = self.module or self.last
        for name, value in step.frame.f_locals.items():
            if isinstance(value, torch.Tensor) and storage_of(value) == storage_of(operand.value):
                return name
        return operand.text.partition("[")[0].removeprefix("self.")

    def _known(self, tensor: torch.Tensor) -> Known | None:
        return self.names.of(tensor)

    def _met(self, tensor: torch.Tensor, known: Known | None, word: str, kind: str) -> Met:
        dtype = str(tensor.dtype).removeprefix("torch.")
        shape = None if known and known.step and not self.names.is_itself(tensor) else tuple(tensor.shape)
        return Met(known.name if known else word, kind, str(tensor.device), dtype, shape, word)

    def _finished(self, situation: str, mets: list[Met], culprits: list[Culprit]) -> Mismatch:
        home = self._home(mets)
        if any(met.device != home and met.kind != "result" for met in mets):
            kept = [i for i, met in enumerate(mets) if met.device == home or met.kind != "result"]
            mets, culprits = [mets[i] for i in kept], [culprits[i] for i in kept]
        away = [culprit for culprit in culprits if culprit.met.device != home]
        last = self.users[-1] if self.users else self.last
        fix = fixes_for(away, self.names, self.model, home, anchor_in(last, Source(last), home))
        place, owner = "", ""
        if self.module is not None and (situation == "module" or self.module == last):
            place, owner = self.names.of_module(self.module.value("self"))
        if self.last.is_user:
            mets = [_called_here(met) if met.device == home else met for met in mets]
        return self._mismatch(situation, place, owner, mets, home, fix)

    def _home(self, mets: list[Met]) -> str:
        """Where the tensors belong: on the accelerator, and among several of them where the parameters are."""
        devices = [met.device for met in mets if met.device.partition(":")[0] != "cpu"] or [mets[0].device]
        own = [met.device for met in mets if met.kind == "parameter" and met.device in devices]
        return own[0] if own else max(devices, key=lambda device: (self.counts[device], -devices.index(device)))

    def _mismatch(
        self, situation: str, place: str, owner: str, mets: list[Met], home: str, fixes: tuple[Fix, ...]
    ) -> Mismatch:
        named = {met.name for met in mets}
        others = Counter(str(p.device) for name, p in self.names.parameters.items() if name not in named)
        lines = dict.fromkeys(source_line(step) for step in (*self._calling(), *self.users[-1:]))
        return Mismatch(situation, place, owner, tuple(mets), home, fixes, tuple(lines), dict(others))

    def _by_nearness(self) -> list[Step]:
        """The user's frames for names: the one that called the model, those around it outwards, then those within."""
        calling = self._calling()
        i = self.users.index(calling[0]) if calling else 0
        return [*reversed(self.users[: i + 1]), *self.users[i + 1 :]]

    def _calling(self) -> list[Step]:
        """The user's frame that called the outermost module, the innermost of all where none was called."""
        for i, step in enumerate(self.steps):
            if isinstance(step.value("self"), nn.Module) and user_steps(self.steps[:i]):
                return user_steps(self.steps[:i])[-1:]
        return self.users[-1:]


def _called_here(met: Met) -> Met:
    """A tensor that is where it should be goes by what the failing code calls it."""
    return replace(met, name=met.word) if met.kind in ("given", "made", "result") and met.word else met


def _device(operand: Operand) -> str:
    return operand.device or str(operand.value.device)


def _is_number(operand: Operand) -> bool:
    """A tensor without dimensions on the CPU, which most operations take as a number."""
    value = operand.value
    return value is not None and value.dim() == 0 and value.device.type == "cpu"


def _locals(step: Step) -> list[Operand]:
    """Every tensor that a frame had as a variable."""
    return [_operand(name, value) for name, value in step.frame.f_locals.items() if isinstance(value, torch.Tensor)]


def _operand(text: str, tensor: torch.Tensor) -> Operand:
    """A tensor that is known otherwise than by an expression."""
    return Operand(text, tensor, True, ast.Constant(None))
