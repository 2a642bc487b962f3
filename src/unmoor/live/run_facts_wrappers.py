"""Where a module computes: the devices of its wrappers, hooks that place its tensors, the device of its inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from unmoor.errors import DeviceError
from unmoor.values.run_facts import WrapperFacts

from .devices import tag
from .wrappers import unwrap, walk

__all__ = ["Ground", "ground_of", "hooked_device", "home_of", "is_hooked", "wrapper_facts"]


class Ground(NamedTuple):
    """What stands around a module. `compute` is the device that inputs are brought to by it, "" where it brings none.

    `brings` tells that inputs may be anywhere, `casts` that it may cast them.
    """

    compute: str
    brings: bool
    casts: bool


def ground_of(module: nn.Module) -> Ground:
    """What the wrappers and hooks of a module do to its inputs."""
    inner, wrappers = unwrap(module)
    compute, brings, casts = "", False, False
    for wrapper in wrappers:
        source = _source(wrapper)
        if source is not None:
            compute, brings = compute or tag(source), True
        casts = casts or getattr(wrapper, "mixed_precision", None) is not None
    for device, casting in _sharded(wrappers, inner):
        compute, brings, casts = compute or tag(device), True, casts or casting
    hooked = hooked_device(inner)
    if hooked is not None:
        compute, brings = compute or tag(hooked), True
    return Ground(compute, brings, casts or type(module).__name__ == "_FabricModule")


def _source(wrapper: nn.Module) -> torch.device | None:
    """The device to which DataParallel and DistributedDataParallel bring inputs."""
    ids = getattr(wrapper, "device_ids", None)
    if not ids or type(wrapper).__name__ == "OptimizedModule":
        return None
    source = getattr(wrapper, "src_device_obj", None)
    if isinstance(source, torch.device):
        return source
    kind = getattr(wrapper, "device_type", None)
    return torch.device(kind, int(ids[0])) if isinstance(kind, str) else None


def _sharded(wrappers: tuple[nn.Module, ...], inner: nn.Module) -> Iterator[tuple[torch.device, bool]]:
    """The compute device of FSDP, of either kind, and whether it casts inputs."""
    for wrapper in wrappers:
        device = getattr(wrapper, "compute_device", None)
        if isinstance(device, torch.device):
            yield device, getattr(wrapper, "mixed_precision", None) is not None
    state = getattr(inner, "_get_fsdp_state", None)
    device = getattr(state(), "_device", None) if callable(state) else None
    if isinstance(device, torch.device):
        policy = getattr(state(), "_mp_policy", None) if callable(state) else None
        yield device, getattr(policy, "param_dtype", None) is not None


def is_hooked(module: nn.Module) -> bool:
    """Whether hooks of accelerate place the tensors of a module, and bring it its inputs."""
    return getattr(module, "_hf_hook", None) is not None


def hooked_device(module: nn.Module) -> torch.device | None:
    """The device on which accelerate's hook on a module, or on the first below it, has it run; None without hooks."""
    if not is_hooked(module) and not hasattr(module, "hf_device_map"):
        return None
    for inner in module.modules():
        hook = getattr(inner, "_hf_hook", None)
        for one in getattr(hook, "hooks", None) or [hook]:
            device = getattr(one, "execution_device", None)
            if device is not None:
                return _device(device)
    return None


def _device(value: Any) -> torch.device | None:
    try:
        return value if isinstance(value, torch.device) else torch.device(value)
    except (RuntimeError, TypeError, ValueError):
        return None


def wrapper_facts(module: nn.Module, at: str) -> Iterator[WrapperFacts]:
    """Every wrapper within a module that says on which device its module is."""
    for place in walk(module):
        for wrapper in place.wrappers:
            ids = tuple(int(i) for i in getattr(wrapper, "device_ids", None) or () if isinstance(i, int))
            source = _source(wrapper)
            name = _class_name(wrapper)
            built = getattr(wrapper, "device", None) if name == "DistributedDataParallel" else None
            if source is not None or isinstance(built, torch.device):
                yield WrapperFacts(
                    name,
                    "" if source is None else tag(source),
                    ids,
                    tag(built) if isinstance(built, torch.device) else "",
                    at,
                )


def _class_name(wrapper: nn.Module) -> str:
    """The class of torch that a wrapper is, or is derived from."""
    known = (cls.__name__ for cls in type(wrapper).__mro__ if cls.__module__.startswith("torch."))
    return next(known, type(wrapper).__name__)


def home_of(module: nn.Module) -> torch.device:
    """The one device that the inputs of a module belong on. Raises DeviceError where there is none, or several."""
    ground = ground_of(module)
    if ground.compute:
        return torch.device(ground.compute)
    found = _devices(module, "_parameters") or _devices(module, "_buffers")
    if len(found) == 1:
        return next(iter(found))
    if not found:
        what = "is on the meta device" if any(True for _ in module.parameters()) else "has no parameters or buffers"
        raise DeviceError(
            f"the model ({type(module).__qualname__}) {what}, so no device follows from it",
            remedy='Name the device: unmoor.to_device(batch, device="auto").',
        )
    tags = sorted(map(tag, found))
    raise DeviceError(
        f"the model ({type(module).__qualname__}) is on {len(tags)} devices, and its batch could go to any of them",
        details=[f"{name}: {_example(module, name)}" for name in tags],
        remedy=f"Name the one that its first layer is on: unmoor.to_device(batch, device={_first(module)!r}).",
    )


def _devices(module: nn.Module, kind: str) -> set[torch.device]:
    """The devices of all parameters or buffers; asked at every step, so without the names."""
    tensors = (tensor for inner in module.modules() for tensor in getattr(inner, kind).values() if tensor is not None)
    return {device for device in {tensor.device for tensor in tensors} if device.type != "meta"}


def _example(module: nn.Module, name: str) -> str:
    names = [n for n, p in module.named_parameters() if tag(p.device) == name]
    return f"{names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else "") if names else "a buffer"


def _first(module: nn.Module) -> str:
    return next((tag(p.device) for p in module.parameters() if p.device.type != "meta"), "cpu")
