"""Devices of this machine: which there are, what "auto" means, and what a caller's word for one stands for."""

from __future__ import annotations

from typing import Any

import torch

from unmoor.errors import ArgumentConflict, DeviceError
from unmoor.values.tags import is_tag, normalize_tag

__all__ = ["available", "device_fallback", "device_module", "is_available", "read_map_location", "resolve", "tag"]

_CANDIDATES = ("cuda", "xpu", "mps", "hpu", "mtia", "npu")


def device_fallback() -> torch.device:
    """The device that model_device="auto" means: the current accelerator, else the CPU.

    The accelerator is torch.accelerator's where this torch has it (2.6 on), else the first available of CUDA, XPU
    and MPS; its index is the current device's, where devices of that type are numbered.
    """
    kind = _accelerator_type()
    if kind is None:
        return torch.device("cpu")
    module = device_module(kind)
    current = getattr(module, "current_device", None)
    return torch.device(kind, current()) if current is not None and kind != "mps" else torch.device(kind)


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


def tag(device: torch.device) -> str:
    """A live device as a tag, in the one spelling that values use."""
    return normalize_tag(str(device))


def resolve(model_device: Any) -> torch.device | None:
    """What `model_device` asks for: None, "auto", an index of the current accelerator type, a tag or a torch.device.

    Raises DeviceError where it is absent here, ArgumentConflict where it is no device at all.
    """
    if model_device is None:
        return None
    if model_device == "auto":
        return device_fallback()
    device = _parse("model_device", model_device)
    name = tag(device)
    if not is_available(name):
        raise _absent("model_device", model_device, name)
    return torch.device(name) if device.index is not None or name == "cpu" else device


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

    Raises ArgumentConflict for anything else.
    """
    if value is None:
        return None, None
    if isinstance(value, str | torch.device):
        return tag(_parse("map_location", value)), None
    if isinstance(value, dict):
        return {_tag_of(old): _tag_of(new) for old, new in value.items()}, None
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
