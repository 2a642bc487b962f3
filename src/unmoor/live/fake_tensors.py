"""Tensors where a device is in pretence: how they move, how they are made, grouped, swapped and loaded.

Everything here changes torch for the whole process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from .moving import move as _move

if TYPE_CHECKING:
    from .fake import Faked

__all__ = ["change_load", "change_makers", "change_tensors", "move"]


def move(value: Any, *, device: Any) -> Any:
    """A batch on a device."""
    return _move(value, device=device, like=None, non_blocking=False, keep=())


def change_tensors(faked: Faked) -> None:
    """Let tensors move to the device, and those that are there answer as they would."""
    kind, changed, fakes = faked.device.type, torch.Tensor, FakeTensor
    _set(changed, "to", _to(faked))
    _set(changed, kind, lambda self, device=None, *_, **__: self.to(faked.device if device is None else device))
    _set(changed, "_make_subclass", staticmethod(_subclass(changed._make_subclass)))
    _set(changed, "pin_memory", lambda self, *_: self)
    _set(changed, "record_stream", lambda *_: None)
    _set(fakes, f"is_{kind}", property(lambda self: self.fake_device.type == kind))
    _set(fakes, "is_cpu", property(lambda self: self.fake_device.type == "cpu"))
    _set(fakes, "is_meta", property(lambda self: self.fake_mode.in_kernel_invocation))
    _set(fakes, "get_device", lambda self: -1 if self.fake_device.index is None else self.fake_device.index)
    _set(fakes, "numpy", _refuse_numpy)
    _set(fakes, "__array__", _refuse_numpy)
    _set(fakes, "__format__", lambda self, spec: format(self.item() if self.dim() == 0 else str(self), spec))
    _set(fakes, "tolist", lambda self: self.cpu().tolist())
    _set(torch.utils, "swap_tensors", _swap)
    native: Any = torch._C
    _set(native, "_group_tensors_by_device_and_dtype", _grouped(native._group_tensors_by_device_and_dtype))


def _set(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


def _indexed(faked: Faked, value: Any) -> Any:
    """A device of the kind with its index: without one, torch would ask a driver for the current one."""
    kind = faked.device.type
    if isinstance(value, int) and not isinstance(value, bool):
        return torch.device(kind, value)
    if isinstance(value, str) and value.partition(":")[0] == kind:
        value = torch.device(value)
    if isinstance(value, torch.device) and value.type == kind and value.index is None:
        return faked.device
    return value


def _to(faked: Faked) -> Any:
    kept = torch.Tensor.to

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        other = kwargs.pop("other", args[0] if args and isinstance(args[0], torch.Tensor) else None)
        if other is not None:
            args = (other.device, other.dtype, *[arg for arg in args if arg is not other])
        if args and not isinstance(args[0], torch.dtype):
            args = (_indexed(faked, args[0]), *args[1:])
        if "device" in kwargs:
            kwargs["device"] = _indexed(faked, kwargs["device"])
        return kept(_across(faked, self, kwargs.get("device", args[0] if args else None)), *args, **kwargs)

    return to


def _across(faked: Faked, tensor: torch.Tensor, place: Any) -> torch.Tensor:
    """A tensor of one device in pretence on another, where it is asked for."""
    there = isinstance(place, torch.device) and place.type == faked.device.type
    if not (there and isinstance(tensor, FakeTensor)) or place == tensor.fake_device:
        return tensor
    moved: torch.Tensor = _Across.apply(tensor, faked, place)  # type: ignore[no-untyped-call]
    return moved


class _Across(torch.autograd.Function):
    """From one device in pretence to another. For autograd, which is told meta of both, it would be no move at all."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, faked: Faked, device: torch.device) -> torch.Tensor:
        """Go there."""
        ctx.faked, ctx.origin = faked, tensor.fake_device
        return faked.put(tensor, device)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        """Come back."""
        return ctx.faked.put(grad, ctx.origin), None, None


def _subclass(kept: Any) -> Any:
    def made(cls: Any, elem: torch.Tensor, requires_grad: bool = False, **options: Any) -> Any:  # noqa: FBT001, FBT002
        """A fake tensor tells its device to Python alone; C++ is told that of its element, which is meta."""
        if issubclass(cls, FakeTensor):
            options["dispatch_device"] = False
        return kept(cls, elem, requires_grad, **options)

    return made


def _refuse_numpy(self: Any, *_: Any, **__: Any) -> Any:
    raise TypeError(
        f"can't convert {self.fake_device} device type tensor to numpy. "
        "Use Tensor.cpu() to copy the tensor to host memory first."
    )


def _swap(first: torch.Tensor, second: torch.Tensor) -> None:
    """torch.utils.swap_tensors without its refusal of weak references, which follow the Python object here."""
    first.__class__, second.__class__ = second.__class__, first.__class__
    first.__dict__, second.__dict__ = second.__dict__, first.__dict__
    torch._C._swap_tensor_impl(first, second)


def _grouped(kept: Any) -> Any:
    def grouped(lists: Any, with_indices: bool = False) -> Any:  # noqa: FBT001, FBT002
        """Optimizers group tensors by the device that C++ is told: the groups are divided by the devices there are."""
        found: dict[Any, Any] = {}
        for (_, dtype), (columns, indices) in kept(lists, with_indices).items():
            for i in range(len(columns[0])):
                row = [column[i] if column else None for column in columns]  # a list that is not used is empty
                device = next(one.device for one in row if one is not None)
                into, places = found.setdefault((device, dtype), ([[] for _ in columns], []))
                for target, column, one in zip(into, columns, row, strict=True):
                    target.extend([one] if column else [])
                places += [indices[i]] if indices else []
        return found

    return grouped


def change_makers(faked: Faked) -> None:
    """Let what makes tensors, or draws for them, do without a driver."""
    torch.utils._device._device_constructors()  # knows the functions by identity, and keeps what it has seen first
    for name in ("tensor", "as_tensor", "asarray"):
        _set(torch, name, _maker(faked, getattr(torch, name)))
    context: Any = torch.utils._device.DeviceContext
    begin = context.__init__
    _set(context, "__init__", lambda self, device: begin(self, _indexed(faked, device)))
    _set(torch, "Generator", _generator())


def _maker(faked: Faked, kept: Any) -> Any:
    def make(*args: Any, **kwargs: Any) -> Any:
        """Torch makes it on the CPU and moves it then; without an index it would ask a driver."""
        if kwargs.get("device") is not None:
            kwargs["device"] = _indexed(faked, kwargs["device"])
        return kept(*args, **kwargs)

    return make


def _generator() -> Any:
    real = torch.Generator

    class Kind(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, real)

    class Generator(metaclass=Kind):
        """A generator of any device: that of the CPU draws in its place."""

        def __new__(cls, device: Any = "cpu") -> Any:
            del device
            return real()

    return Generator


def change_load(faked: Faked) -> None:
    """Let torch.load read to the CPU, and move then what its mapping would have put on the device."""
    kept, kind = torch.load, faked.device.type

    def load(file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        there: dict[int, torch.device] = {}

        def keep(storage: Any, tag: str) -> Any:
            place = map_location.get(tag, tag) if isinstance(map_location, dict) else map_location or tag
            place = _indexed(faked, place) if isinstance(place, str | int | torch.device) else None
            if isinstance(place, torch.device) and place.type == kind:
                there[storage._cdata] = place
            return storage

        def moved(leaf: Any) -> Any:
            place = there.get(leaf.untyped_storage()._cdata) if isinstance(leaf, torch.Tensor) else None
            return leaf if place is None else leaf.to(place)

        return pytree.tree_map(moved, kept(file, keep, *args, **kwargs))

    _set(torch, "load", load)
