"""The machine without PyTorch: accelerators that the system has, variables, packages, what a folder can do.

Imports no torch: these facts are for machines where it is missing or broken, too.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Final

from unmoor.filing import HAS_PREADV
from unmoor.values.machine import Driver, FolderFacts

__all__ = ["VARIABLES", "drivers", "environment", "folder_facts", "packages", "platform_text", "python_text"]

VARIABLES: Final = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK",
    "HABANA_VISIBLE_MODULES", "ASCEND_RT_VISIBLE_DEVICES", "LOCAL_RANK", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_PROCID", "SLURM_LOCALID",
    "CUBLAS_WORKSPACE_CONFIG", "CUDA_LAUNCH_BLOCKING", "PYTORCH_ENABLE_MPS_FALLBACK",
)  # fmt: skip
"""Variables that decide which devices a process gets, which rank it is, or whether its arithmetic repeats itself."""

_PACKAGES: Final = ("numpy", "isal", "safetensors", "torchdata")
_VENDORS: Final = {"0x10de": "NVIDIA", "0x1002": "AMD"}
_DISPLAYS: Final = ("0x0300", "0x0302", "0x0380")
_ACCELERATOR: Final = "0x1200"


def platform_text() -> str:
    """The operating system and processor."""
    return f"{platform.system()} {platform.release()} {platform.machine()}"


def python_text() -> str:
    """The version of Python and where it is."""
    return f"{platform.python_version()} ({sys.executable or 'embedded'})"


def environment() -> dict[str, str]:
    """The variables of `VARIABLES` that are set."""
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def packages() -> dict[str, str]:
    """Name -> version of packages that change what this library can do; "" for one that is missing."""
    return {name: _version(name) for name in _PACKAGES}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def drivers(root: str = "/") -> tuple[Driver, ...]:
    """Accelerators of NVIDIA and AMD below `root`, by what the kernel says; on systems without /proc and /sys none."""
    base = Path(root)
    found = [_nvidia(base / "proc/driver/nvidia"), _amd(base)]
    known = {driver.vendor for driver in found if driver is not None}
    bare = [Driver(vendor, "", tuple(names)) for vendor, names in _on_the_bus(base).items() if vendor not in known]
    return (*(driver for driver in found if driver is not None), *bare)


def _nvidia(folder: Path) -> Driver | None:
    text = _read(folder / "version")
    if not text:
        return None
    version = re.search(r"Kernel Module(?:\s+for \S+)?\s+(\d+[\d.]*)", text)
    names = [re.search(r"Model:\s*(.+)", _read(info)) for info in sorted(folder.glob("gpus/*/information"))]
    models = tuple(name[1].strip() if name else "a device" for name in names)
    return Driver("NVIDIA", version[1] if version else "", models)


def _amd(base: Path) -> Driver | None:
    """The kernel driver of ROCm; nodes of its topology that are GPUs have compute units."""
    folder = base / "sys/class/kfd/kfd/topology/nodes"
    nodes = [_read(node / "properties") for node in sorted(folder.glob("*"))] if folder.is_dir() else []
    units = [text for text in nodes if re.search(r"^simd_count [1-9]", text, re.MULTILINE)]
    if not units:
        return None
    return Driver("AMD", _read(base / "sys/module/amdgpu/version").strip(), ("a device",) * len(units))


def _on_the_bus(base: Path) -> dict[str, list[str]]:
    """Display controllers and accelerators by vendor, whether a driver serves them or not."""
    found: dict[str, list[str]] = {}
    for device in sorted((base / "sys/bus/pci/devices").glob("*")):
        vendor, kind = _read(device / "vendor").strip(), _read(device / "class").strip()
        if vendor in _VENDORS and kind.startswith((*_DISPLAYS, _ACCELERATOR)):
            found.setdefault(_VENDORS[vendor], []).append(f"PCI {device.name}")
    return found


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace")[:4096]
    return ""


def folder_facts(path: str) -> FolderFacts:
    """What the file system of a folder can do; tried with two small hidden files that are gone afterwards."""
    free = -1
    with suppress(OSError):
        free = shutil.disk_usage(path).free
    tried = list(_tried(path))
    return FolderFacts(path, bool(tried), "fsync" in tried, "reflink" in tried, HAS_PREADV, free)


def _tried(path: str) -> Iterator[str]:
    with (
        suppress(OSError),
        tempfile.NamedTemporaryFile(dir=path, prefix=".unmoor-") as one,
        tempfile.NamedTemporaryFile(dir=path, prefix=".unmoor-") as other,
    ):
        one.write(b"unmoor" * 1024)
        one.flush()
        yield "written"
        os.fsync(one.fileno())
        yield "fsync"
        import fcntl

        fcntl.ioctl(other.fileno(), 0x40049409, one.fileno())
        yield "reflink"
