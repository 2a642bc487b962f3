"""Devices of this machine: which there are, what "auto" means, and what a caller's word for one stands for.

Where several processes of one machine work together, each has a device of its own: the current one where the program
has set one, else the one whose index is the process's local rank, as torchrun numbers them in LOCAL_RANK. It is never
device 0 for all.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any, Final

import torch

from unmoor.errors import ArgumentConflict, DeviceError
from unmoor.values.tags import is_tag, normalize_tag

__all__ = [
    "available",
    "device_fallback",
    "device_module",
    "fallback_and_why",
    "is_available",
    "of_other_ranks",
    "own_index",
    "read_map_location",
    "resolve",
    "tag",
]

_CANDIDATES = ("cuda", "xpu", "mps", "hpu", "mtia", "npu")

_VISIBLE: Final = {
    "cuda": ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    "xpu": ("ZE_AFFINITY_MASK",),
    "hpu": ("HABANA_VISIBLE_MODULES",),
    "npu": ("ASCEND_RT_VISIBLE_DEVICES",),
}
"""Device type -> variables by which a launcher shows a process only some devices, which it then numbers from 0."""


def device_fallback() -> torch.device:
    """The device that model_device="auto" means: this process's own accelerator, else the CPU.

    The accelerator is torch.accelerator's where this torch has it (2.6 on), else the first available of CUDA, XPU
    and MPS. Where its devices are numbered, the index is the current device's if the program has set one other than
    0, else LOCAL_RANK where torchrun set that, else 0.

    Raises DeviceError where LOCAL_RANK is beyond the devices here, so that ranks would share one unasked.
    """
    return fallback_and_why()[0]


def fallback_and_why() -> tuple[torch.device, str]:
    """The device that model_device="auto" means, and the rule by which it is that one."""
    kind = _accelerator_type()
    if kind is None:
        return torch.device("cpu"), "this torch has no accelerator here"
    return _own_and_why(kind)


def of_other_ranks() -> dict[str, int]:
    """Tag -> local rank, of the devices that are the own ones of other processes on this machine.

    Nothing outside of torchrun, and where this process was shown a device of its own.
    """
    kind, rank = _accelerator_type(), _local_rank()
    if kind is None or rank is None or not _is_numbered(kind) or _sees_one(kind):
        return {}
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    number = min(int(ranks) if ranks.isdecimal() else 0, _count(kind))
    return {f"{kind}:{i}": i for i in range(number) if i not in (rank, _current(kind) or rank)}


def own_index(kind: str) -> int:
    """The index of this process's own device of a type; of the current one where it has to share."""
    try:
        return _own(kind).index or 0
    except DeviceError:
        return _current(kind)


def _own(kind: str) -> torch.device:
    """This process's own device of a type that is present."""
    return _own_and_why(kind)[0]


def _own_and_why(kind: str) -> tuple[torch.device, str]:
    if not _is_numbered(kind):
        return torch.device(kind), f"the accelerator of this machine is {kind}"
    current, rank = _current(kind), _local_rank()
    if current:
        return torch.device(kind, current), f"the program has made it the current {kind} device"
    if rank is None:
        return torch.device(kind, 0), f"the first {kind} device; LOCAL_RANK is not set, so no launcher shares them out"
    if _sees_one(kind):
        return torch.device(kind, 0), f"the launcher shows this process one {kind} device alone"
    if rank >= _count(kind):
        raise _shared(kind, rank)
    return torch.device(kind, rank), f"the one of LOCAL_RANK={rank}"


def _is_numbered(kind: str) -> bool:
    return kind not in ("cpu", "meta", "mps") and hasattr(device_module(kind), "current_device")


def _current(kind: str) -> int:
    """The index of the current device. Asking a module that nothing has initialised yet would take memory there."""
    module = device_module(kind)
    started = getattr(module, "is_initialized", None)
    return int(module.current_device()) if started is None or started() else 0


def _local_rank() -> int | None:
    rank = os.environ.get("LOCAL_RANK", "")
    return int(rank) if rank.isdecimal() else None


def _sees_one(kind: str) -> bool:
    """Whether a launcher has shown this process one device alone, which is then its own."""
    shown = (os.environ.get(name) for name in _VISIBLE.get(kind, ()))
    return _count(kind) == 1 and any(value and "," not in value for value in shown)


def _shared(kind: str, rank: int) -> DeviceError:
    number = _count(kind)
    ranks = f"torchrun --nproc-per-node {number}"
    return DeviceError(
        f"local rank {rank} has no {kind} device of its own: {kind}:{rank} is not here, and another would be shared",
        details=(
            f"LOCAL_RANK={rank}, LOCAL_WORLD_SIZE={os.environ.get('LOCAL_WORLD_SIZE', 'not set')}",
            f"present here: {', '.join(_names())}",
        ),
        remedy=f'Start one rank for each device ({ranks}), or say where: model_device="{kind}:0" shares that one on '
        'purpose, model_device="cpu" needs none.',
    )


def _accelerator_type() -> str | None:
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None:
        found = accelerator.current_accelerator()
        return found.type if found is not None and _count(found.type) > 0 else None
    return next((kind for kind in (*_CANDIDATES, _private_name()) if _count(kind) > 0), None)


def _private_name() -> str:
    return str(torch._C._get_privateuse1_backend_name())


def device_module(kind: str) -> Any:
    """The module that serves a device type (torch.cuda, torch.mps, ...), or None."""
    return getattr(torch, kind, None) if kind != "cpu" else None


def _count(kind: str) -> int:
    module = device_module(kind)
    if module is None or not hasattr(module, "is_available"):
        return int(kind == "mps" and torch.backends.mps.is_available())
    if not module.is_available():
        return 0
    return int(module.device_count()) if hasattr(module, "device_count") else 1


def available() -> dict[str, int]:
    """Device type -> number of devices present here; the CPU and meta always are."""
    kinds = {kind: _count(kind) for kind in dict.fromkeys((*_CANDIDATES, _private_name()))}
    return {"cpu": 1, "meta": 1, **{kind: n for kind, n in kinds.items() if n}}


def is_available(name: str) -> bool:
    """Whether the device that a tag names is present here."""
    kind, _, index = name.partition(":")
    return (int(index) if index else 0) < available().get(kind, 0)


@lru_cache(maxsize=256)
def tag(device: torch.device) -> str:
    """A live device as a tag, in the one spelling that values use."""
    return normalize_tag(str(device))


def resolve(model_device: Any) -> torch.device | None:
    """What `model_device` asks for: None, "auto", an index of the current accelerator type, a tag or a torch.device.

    Under torchrun a tag without an index is this process's own device of that type, as "auto" is. Raises DeviceError
    where it is absent here, ArgumentConflict where it is no device at all.
    """
    if model_device is None:
        return None
    if model_device == "auto":
        return device_fallback()
    device = _parse("model_device", model_device)
    name = tag(device)
    if not is_available(name):
        raise _absent("model_device", model_device, name)
    return torch.device(name) if device.index is not None or name == "cpu" else _with_index(device)


def _with_index(device: torch.device) -> torch.device:
    """A device whose index was left out; it stays so outside of torchrun, where torch's current device is meant."""
    if device.index is not None or _local_rank() is None or not is_available(device.type):
        return device
    return _own(device.type)


def _absent(argument: str, value: Any, name: str) -> DeviceError:
    return DeviceError(
        f"{argument}={value!r} asks for {name}, which this machine does not have",
        details=(f"present here: {', '.join(_names())}",),
        remedy='Pass model_device="auto" for the accelerator if there is one and the CPU if not.',
    )


def _names() -> list[str]:
    return [
        f"{k}:{i}" if k not in ("cpu", "mps") else k for k, n in available().items() if k != "meta" for i in range(n)
    ]


def _parse(argument: str, value: Any) -> torch.device:
    if isinstance(value, torch.device):
        return value
    try:
        if isinstance(value, int) and not isinstance(value, bool):
            return torch.device(_accelerator_type() or "cuda", value)
        return torch.device(normalize_tag(value))
    except (ValueError, RuntimeError, AttributeError, TypeError):
        if isinstance(value, str) and is_tag(value):
            raise _absent(argument, value, normalize_tag(value)) from None
        raise ArgumentConflict(
            f"{argument}={value!r} is no device",
            remedy='Pass a tag such as "cpu", "cuda:0" or "mps", or a torch.device; model_device="auto" chooses.',
        ) from None


def read_map_location(value: Any) -> tuple[str | dict[str, str] | None, Any]:
    """`map_location` in torch's meaning as plain values: one tag, a mapping of tags, or None; and the callable, if any.

    Where to, a tag without an index is this process's own device under torchrun. Raises ArgumentConflict for anything
    else.
    """
    if value is None:
        return None, None
    if isinstance(value, str | torch.device):
        return tag(_with_index(_parse("map_location", value))), None
    if isinstance(value, dict):
        return {_tag_of(old): _goal(new) for old, new in value.items()}, None
    if callable(value):
        return None, value
    raise ArgumentConflict(
        f"map_location={value!r} is none of what torch.load takes",
        remedy="Pass a device, a dict from saved to new devices, or a callable; model_device= is the simpler way.",
    )


def _tag_of(value: Any) -> str:
    """One side of a map_location; tags of types that this torch does not know are let through."""
    try:
        return normalize_tag(str(value))
    except ValueError as error:
        raise ArgumentConflict(f"map_location holds {value!r}: {error}") from None


def _goal(value: Any) -> str:
    """The side of a map_location that says where to."""
    name = _tag_of(value)
    return tag(_with_index(torch.device(name))) if is_available(name) else name
