"""The PyTorch of this process and the devices that it sees. torch is imported within, and may be missing or broken."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Any

from unmoor.errors import DeviceError
from unmoor.values.machine import Choice, DeviceFacts, TorchFacts, shown_devices

__all__ = ["Seen", "see"]

Seen = tuple[TorchFacts, tuple[DeviceFacts, ...], Choice, "dict[str, int]"]
"""The torch, its devices, what "auto" chooses, and device type -> number of devices."""


def see() -> Seen:
    """All that torch tells. Never raises for a torch that cannot be imported: its error is a fact."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            import torch

            from . import devices
        except Exception as error:  # noqa: BLE001 - whatever keeps torch from being imported is what is to be told
            missing = isinstance(error, ModuleNotFoundError) and error.name == "torch"
            said = f"{type(error).__name__}: {error}"
            return TorchFacts(error=said, missing=missing), (), Choice(), {}
        present, choice = devices.available(), _choice(devices)
        found = tuple(_devices(present))
    return _facts(torch, [str(warning.message) for warning in caught]), found, choice, present


def _choice(devices: Any) -> Choice:
    try:
        device, why = devices.fallback_and_why()
    except DeviceError as error:
        return Choice(error=str(error))
    return Choice(devices.tag(device), why)


def _facts(torch: Any, said: list[str]) -> TorchFacts:
    unavailable = next((text.split(" (Triggered internally")[0] for text in said if "CUDA" in text), "")
    return TorchFacts(
        version=str(torch.__version__),
        path=os.path.dirname(torch.__file__),
        build=_build(torch),
        unavailable=unavailable,
        default_dtype=str(torch.get_default_dtype()).removeprefix("torch."),
        default_device=str(torch.get_default_device()) if hasattr(torch, "get_default_device") else "cpu",
        threads=torch.get_num_threads(),
        switches=dict(_switches(torch)),
    )


def _build(torch: Any) -> str:
    for name, word in (("cuda", "cuda"), ("hip", "rocm"), ("xpu", "xpu")):
        version = getattr(torch.version, name, None)
        if version:
            return f"{word} {version}"
    return "mps" if torch.backends.mps.is_built() else "cpu"


def _switches(torch: Any) -> Iterator[tuple[str, str]]:
    yield "deterministic_algorithms", _word(torch.are_deterministic_algorithms_enabled())
    yield "cudnn.deterministic", _word(torch.backends.cudnn.deterministic)
    yield "cudnn.benchmark", _word(torch.backends.cudnn.benchmark)
    yield "float32_matmul_precision", str(torch.get_float32_matmul_precision())


def _word(value: Any) -> str:
    return "on" if value else "off"


def _devices(present: dict[str, int]) -> Iterator[DeviceFacts]:
    from .devices import device_module

    order = _physical()
    for kind, number in present.items():
        if kind not in ("cpu", "meta"):
            for index in range(number):
                physical = order[index] if kind == "cuda" and index < len(order) else ""
                yield _device(device_module(kind), kind, index, physical)
    yield DeviceFacts("cpu", f"{os.cpu_count() or 1} processors", *_memory())


def _physical() -> tuple[str, ...]:
    """Which devices CUDA_VISIBLE_DEVICES has made cuda:0, cuda:1, ...; nothing where it is not set."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    return shown_devices(text)[0] if text is not None else ()


def _device(module: Any, kind: str, index: int, physical: str) -> DeviceFacts:
    """One device. Its memory is asked for last: that starts the device, and one that is broken says so here."""
    tag = kind if kind == "mps" else f"{kind}:{index}"
    name, capability, total = "", "", -1
    try:
        if hasattr(module, "get_device_properties"):
            facts = module.get_device_properties(index)
            name, total = str(getattr(facts, "name", "")), int(getattr(facts, "total_memory", -1))
            capability = f"{facts.major}.{facts.minor}" if kind == "cuda" else ""
        free, whole = module.mem_get_info(index) if hasattr(module, "mem_get_info") else (-1, total)
    except Exception as error:  # noqa: BLE001 - what a device answers is what is to be told
        return DeviceFacts(tag, name, total, -1, capability, physical, f"{type(error).__name__}: {error}")
    return DeviceFacts(tag, name, int(whole), int(free), capability, physical)


def _memory() -> tuple[int, int]:
    """Bytes of memory of this machine, and those that are free; -1 where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            rows = dict(line.split(":", 1) for line in lines)
        return tuple(int(rows[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))  # type: ignore[return-value]
    except (OSError, KeyError, ValueError):
        return -1, -1
