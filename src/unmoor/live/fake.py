"""A device that this machine need not have: tensors there have a shape, a dtype and a place, and no data.

The law: what is on the CPU is real; what is on the device is a fake tensor (torch's FakeTensorMode), whose device is
the one that was asked for by name, while autograd, which would look for a driver, is told the meta device. So forward,
backward and the optimizer's step all run. A value that leaves the device is invented, and the line that asked for it is
noted. This changes torch for its whole process: only for a process of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import torch._dynamo  # compares torch's own signatures as it is imported, so it has to come before they are exchanged
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from unmoor.values.mismatch import SourceLine

from .context_frames import Step, source_line
from .fake_values import invented, packed, sized

__all__ = ["Faked", "Notes", "is_fake", "pretend"]

aten = torch.ops.aten

_LEAVES: Final = "value"
_SHAPES: Final = "shape"


@dataclass(slots=True)
class Notes:
    """What was invented while a step was faked: (what, line) -> how often."""

    found: dict[tuple[str, SourceLine], int] = field(default_factory=dict)

    def add(self, what: str) -> None:
        """Note that the user's running line asked for what a fake tensor has not."""
        key = (what, _user_line())
        self.found[key] = self.found.get(key, 0) + 1


def _user_line() -> SourceLine:
    frame = sys._getframe(1)
    while frame is not None:
        step = Step(frame, frame.f_lineno, frame.f_lasti)
        if step.is_user:
            return source_line(step)
        frame = frame.f_back  # type: ignore[assignment]
    return SourceLine("", 0, "")


class _Mode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Torch's own mode, which must not look for a driver either.

    `last` is the device that was worked on last. Torch itself, where it makes a tensor beside another, asks that one's
    device of C++, which is told meta.
    """

    last: torch.device

    @property
    def avoid_device_init(self) -> bool:
        return True

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation over fake tensors."""
        kwargs = dict(kwargs or {})
        if _is_meta(kwargs.get("device")) and not (self.in_kernel_invocation or _wants_meta()):
            kwargs["device"] = self.last
        return super().dispatch(func, types, args, kwargs)


def _is_meta(device: Any) -> bool:
    return isinstance(device, torch.device) and device.type == "meta"


def _wants_meta() -> bool:
    """Whether the program itself asks for the meta device."""
    return torch.get_default_device().type == "meta" or "meta" in _user_line().text


@dataclass(slots=True)
class Faked:
    """The device in pretence: `device` with its index, the mode that makes its tensors, what was invented."""

    device: torch.device
    mode: _Mode
    notes: Notes = field(default_factory=Notes)

    def put(self, tensor: torch.Tensor, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A fake tensor of the same shape on `device`."""
        with torch._C._DisableTorchDispatch():
            twin = torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=dtype or tensor.dtype, device="meta")
        return FakeTensor(self.mode, twin, device)

    def bring(self, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A real tensor on the CPU in the place of a fake one; its values are invented."""
        self.notes.add(_LEAVES)
        return invented(tensor, dtype)


def is_fake(value: Any) -> bool:
    """Whether it is a tensor on the device in pretence."""
    return isinstance(value, FakeTensor)


class _World(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sends each operation where it belongs: those that touch the device to the fakes, all others to the CPU."""

    def __init__(self, faked: Faked) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._faked = faked

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        leaves = pytree.arg_tree_leaves(*args, **kwargs)
        fakes = any(isinstance(leaf, FakeTensor) for leaf in leaves)
        asked = kwargs.get("device")
        there = isinstance(asked, torch.device) and asked.type == self._faked.device.type
        there = there or (_is_meta(asked) and not _wants_meta())
        if not (fakes or there):
            return func(*args, **kwargs)
        _hold_together(func, args, leaves)
        own = _OWN.get(func)
        if own is not None:
            result = own(self._faked, func, args, kwargs)
            if result is not NotImplemented:
                return result
        with self._faked.mode:
            result = func(*args, **kwargs)
        if isinstance(result, FakeTensor) and result.fake_device.type == self._faked.device.type:
            self._faked.mode.last = result.fake_device
        return _marked(func, args, result)


_UNHELD: Final = frozenset(
    {
        aten.convolution.default,
        aten.convolution_backward.default,
        aten._embedding_bag.default,
        aten.embedding.default,
        aten.masked_select.default,
        aten.bincount.default,
    }
)
"""Operations whose tensors torch's mode does not hold against each other, and a real device does."""


def _hold_together(func: Any, args: Sequence[Any], leaves: Sequence[Any]) -> None:
    if func in _UNHELD:
        _agree(leaves)
    elif func._schema.name.startswith("aten::_foreach_"):
        for row in zip(*(arg for arg in args if isinstance(arg, list | tuple) and arg), strict=False):
            _agree(row)


def _agree(values: Sequence[Any]) -> None:
    devices = dict.fromkeys(one.device for one in values if isinstance(one, torch.Tensor) and one.dim())
    if len(devices) > 1:
        first, second = list(devices)[:2]
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {first} and {second}!"
        )


def _copy_over(faked: Faked, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """`to`: between the CPU and the device."""
    del func
    source, device, dtype = args[0], kwargs.get("device"), kwargs.get("dtype")
    if isinstance(source, FakeTensor):
        return faked.bring(source, dtype) if device is not None and device.type == "cpu" else NotImplemented
    return faked.put(source, device, dtype) if device is not None else NotImplemented


def _copy_into(faked: Faked, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """`copy_` into a tensor on the CPU."""
    target, source = args[0], args[1]
    if isinstance(target, FakeTensor):
        return NotImplemented
    return func(target, faked.bring(source), **kwargs)


def _number(faked: Faked, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """`item`, `float`, `bool`: a value that code goes on with."""
    del func, kwargs
    return faked.bring(args[0]).item()


def _selected(faked: Faked, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """An operation whose result has as many elements as its values say."""
    made = sized(func, args, kwargs, lambda shape, like, dtype: _of_shape(faked, shape, like, dtype))
    if made is not NotImplemented:
        faked.notes.add(_SHAPES)
    return made


def _packed(faked: Faked, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Padded sequences, packed: their lengths are real."""
    del kwargs
    if isinstance(args[1], FakeTensor) or not isinstance(args[0], FakeTensor):
        return NotImplemented
    return packed(func, args, lambda shape, like, dtype: _of_shape(faked, shape, like, dtype))


def _of_shape(faked: Faked, shape: tuple[int, ...], like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    with torch._C._DisableTorchDispatch():
        twin = torch.empty(shape, dtype=dtype, device="meta")
    return FakeTensor(faked.mode, twin, like.device)


_OWN: Final[dict[Any, Callable[[Faked, Any, Sequence[Any], dict[str, Any]], Any]]] = {
    aten._to_copy.default: _copy_over,
    aten.copy_.default: _copy_into,
    aten._local_scalar_dense.default: _number,
    aten.nonzero.default: _selected,
    aten.masked_select.default: _selected,
    aten.index.Tensor: _selected,
    aten._unique2.default: _selected,
    aten.unique_dim.default: _selected,
    aten._pack_padded_sequence.default: _packed,
}


def _marked(func: Any, args: Sequence[Any], result: Any) -> Any:
    """Keep which truth values are false in a sound run: those of `isnan` and `isinf`, and what is made of them."""
    if not (isinstance(result, FakeTensor) and result.dtype is torch.bool):
        return result
    given = [arg for arg in args if isinstance(arg, FakeTensor)]
    false = (
        (func is aten.ne.Tensor and len(given) == 2 and given[0] is given[1])
        or (func in (aten.eq.Scalar, aten.isinf.default) and (func is aten.isinf.default or _is_infinite(args[1])))
        or func is aten.isnan.default
    )
    if func in (aten.logical_not.default, aten.bitwise_not.default):
        false = not getattr(given[0], "_unmoor_false", False)
    elif func not in (aten.ne.Tensor, aten.eq.Scalar) and given:
        false = false or all(getattr(one, "_unmoor_false", False) for one in given)
    setattr(result, "_unmoor_false", false)  # noqa: B010
    return result


def _is_infinite(value: Any) -> bool:
    return isinstance(value, float) and value in (float("inf"), float("-inf"))


@contextmanager
def pretend(device: torch.device) -> Iterator[Faked]:
    """Let the process have `device`, which has an index, for as long as the context lasts; torch stays changed.

    In the context a tensor that is moved to the device, or made there, is a fake one.
    """
    from .fake_torch import change_torch

    faked = Faked(device, _Mode(allow_non_fake_inputs=True))
    faked.mode.last = device
    change_torch(faked)
    torch._C._set_only_lift_cpu_tensors(True)
    machinery: Any = fake_tensor
    machinery.init_gpu_context = lambda _: None
    with _World(faked):
        yield faked
