"""Machines made of literals: facts as they are found on machines that this one is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from unmoor.values.machine import Choice, DeviceFacts, Driver, FolderFacts, Machine, TorchFacts

__all__ = ["GIB", "machine", "two_gpus"]

GIB = 1 << 30

CPU = DeviceFacts("cpu", "16 processors", 64 * GIB, 50 * GIB)
TORCH = TorchFacts(
    version="2.13.0+cu126",
    path="/env/torch",
    build="cuda 12.6",
    default_dtype="float32",
    default_device="cpu",
    threads=8,
    switches={"deterministic_algorithms": "off", "cudnn.benchmark": "off"},
)
A100 = "NVIDIA A100-SXM4-80GB"


def machine(**changed: Any) -> Machine:
    """A CPU machine with a CPU build of torch, changed in some facts; those of `torch` may be given as a dict."""
    plain = Machine(
        platform="Linux 6.1 x86_64",
        python="3.12.1 (/env/bin/python)",
        unmoor="0.1.0",
        torch=replace(TORCH, version="2.13.0+cpu", build="cpu"),
        devices=(CPU,),
        drivers=(),
        auto=Choice("cpu", "this torch has no accelerator here"),
        environment={},
        packages={"numpy": "2.1.0", "isal": "1.7.2", "safetensors": "0.5.0"},
        folder=FolderFacts("/run", free=100 * GIB),
    )
    if isinstance(changed.get("torch"), dict):
        changed["torch"] = replace(plain.torch, **changed["torch"])
    return replace(plain, **changed)


def two_gpus(**changed: Any) -> Machine:
    """A machine with two GPUs and a torch that sees them."""
    gpus = tuple(DeviceFacts(f"cuda:{i}", A100, 80 * GIB, (79 - 70 * i) * GIB, "8.0") for i in range(2))
    facts = {
        "torch": TORCH,
        "devices": (*gpus, CPU),
        "drivers": (Driver("NVIDIA", "550.54.15", (A100, A100)),),
        "auto": Choice("cuda:0", "the first cuda device; LOCAL_RANK is not set, so no launcher shares them out"),
    }
    return machine(**{**facts, **changed})
