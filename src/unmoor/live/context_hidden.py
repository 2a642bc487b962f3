"""Failures whose frames are gone: another thread's or process's, a compiled model's.

What is left is the place, told by the stack that torch keeps with the error, and the objects that took part. The stack
says where to look; it does not decide that anything was apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast

import torch
from torch import nn

from .context_frames import Step

__all__ = ["Spot", "datasets", "is_hidden", "spot_of", "step_in", "wrapper_tensors"]

_LINE: Final = re.compile(r'^ *File "(?P<file>.+)", line (?P<line>\d+), in (?P<name>.+)$', re.MULTILINE)
"""A line of a traceback as Python itself writes it (the documentation of the module traceback)."""

_TORCH: Final = torch.__path__[0]
_LOADERS: Final = "torch.utils.data"


class Spot(NamedTuple):
    """Where code failed whose frame is gone."""

    file: str
    line: int
    name: str


def _reraised(steps: list[Step]) -> Any:
    """What carried an error over from a thread or process, None where none did."""
    for step in steps:
        own = step.value("self")
        if step.module == "torch._utils" and isinstance(getattr(own, "exc_msg", None), str):
            return own
    return None


def is_hidden(error: BaseException, steps: list[Step]) -> bool:
    """Whether the code that failed ran in another thread or process, or was being compiled."""
    return _reraised(steps) is not None or hasattr(error, "real_stack")


def spot_of(error: BaseException, steps: list[Step]) -> Spot | None:
    """The innermost place outside of torch that the kept stack names."""
    carried = _reraised(steps)
    spots: Iterable[Spot]
    if carried is not None:
        spots = (Spot(m["file"], int(m["line"]), m["name"]) for m in _LINE.finditer(carried.exc_msg))
    else:
        spots = (Spot(one.filename, one.lineno, one.name) for one in getattr(error, "real_stack", None) or ())
    outside = [spot for spot in spots if not spot.file.startswith(_TORCH)]
    return outside[-1] if outside else None


def step_in(spot: Spot, objects: Iterable[Any]) -> Step | None:
    """What can still be said of a frame that is gone: the object whose method it ran, as `self`, and its globals."""
    for one in objects:
        method = getattr(type(one), spot.name, None)
        code = getattr(method, "__code__", None)
        if code is not None and code.co_filename == spot.file and _covers(code, spot.line):
            frame = SimpleNamespace(f_locals={"self": one}, f_globals=getattr(method, "__globals__", {}), f_code=code)
            return Step(cast(Any, frame), spot.line, -1)
    return None


def datasets(steps: list[Step]) -> list[Any]:
    """The dataset of the loader that was being iterated, in whose workers the code may have run."""
    found = (getattr(step.value("self"), "_dataset", None) for step in steps if step.module.startswith(_LOADERS))
    return [one for one in found if one is not None][:1]


def _covers(code: Any, line: int) -> bool:
    return any(number == line for _, _, number in code.co_lines())


def wrapper_tensors(step: Step) -> tuple[nn.Module, torch.Tensor, str] | None:
    """DataParallel's refusal of a tensor that is not on its first device: the wrapper, the tensor, that device."""
    wrapper, tensor = step.value("self"), step.value("t")
    home = getattr(wrapper, "src_device_obj", None)
    if not (step.raises and isinstance(wrapper, nn.Module) and isinstance(tensor, torch.Tensor) and home is not None):
        return None
    return (wrapper, tensor, str(home)) if tensor.device != home else None
