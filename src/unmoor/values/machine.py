"""What a machine and its PyTorch can do, as frozen values. `text` is made by the report stage. Must not know torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from .finding import Finding

__all__ = ["Choice", "DeviceFacts", "Driver", "FolderFacts", "Machine", "TagFit", "TorchFacts", "shown_devices"]

_STOPS: Final = "CUDA reads the list up to the first entry that names no device"


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """One device that this torch can see: its tag, what it is, its memory in bytes (-1 where not told).

    `capability` is CUDA's compute capability as text, `physical` which device it is before relabelling, `error` what
    the device answered when it was asked for its memory.
    """

    tag: str
    name: str = ""
    total: int = -1
    free: int = -1
    capability: str = ""
    physical: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class TorchFacts:
    """The PyTorch of this process. `error` is why it cannot be imported, "" where it can; the rest is empty then.

    `build` is cpu, "cuda 12.6", "rocm 6.2" or "xpu"; `unavailable` what torch said when it was asked for its devices
    and has none. `switches` are the settings that decide whether a run repeats itself, by PyTorch's names.
    """

    version: str = ""
    path: str = ""
    build: str = ""
    error: str = ""
    missing: bool = False
    unavailable: str = ""
    default_dtype: str = ""
    default_device: str = ""
    threads: int = 0
    switches: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Driver:
    """Accelerators that the system has, whatever torch sees: vendor, driver version, and the names of devices."""

    vendor: str
    version: str = ""
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """What model_device="auto" chooses, and by which rule; `error` where it raises instead."""

    device: str = ""
    why: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """What the file system of a folder can do for a save; `free` is in bytes, -1 where it is not told."""

    path: str
    writable: bool = True
    fsync: bool = True
    reflink: bool = False
    preadv: bool = True
    free: int = -1


@dataclass(frozen=True, slots=True)
class TagFit:
    """A device tag of a checkpoint: its tensors and bytes, and whether that device is here."""

    tag: str
    tensors: int
    nbytes: int
    here: bool


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """What can be known of this machine for resuming a run on it.

    `environment` are the variables that decide which devices a process gets. `packages` is name -> version, "" where
    one is missing. `checkpoint` and `tags` tell of a checkpoint that was asked about; `calls` are calls and commands
    for it that work here.
    """

    platform: str
    python: str
    unmoor: str
    torch: TorchFacts
    devices: tuple[DeviceFacts, ...]
    drivers: tuple[Driver, ...]
    auto: Choice
    environment: Mapping[str, str]
    packages: Mapping[str, str]
    folder: FolderFacts
    checkpoint: str = ""
    tags: tuple[TagFit, ...] = ()
    calls: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    text: str = field(default="", repr=False)

    def __str__(self) -> str:
        return self.text

    def to_json(self) -> dict[str, Any]:
        """The machine as plain JSON values."""
        made = {
            "platform": self.platform,
            "python": self.python,
            "unmoor": self.unmoor,
            "torch": {**asdict(self.torch), "switches": dict(self.torch.switches)},
            "devices": [asdict(device) for device in self.devices],
            "drivers": [{**asdict(driver), "devices": list(driver.devices)} for driver in self.drivers],
            "auto": asdict(self.auto),
            "environment": dict(self.environment),
            "packages": dict(self.packages),
            "folder": asdict(self.folder),
            "findings": [finding.to_json() for finding in self.findings],
        }
        if self.checkpoint:
            made["checkpoint"] = {
                "path": self.checkpoint,
                "tags": [asdict(tag) for tag in self.tags],
                "calls": list(self.calls),
            }
        return made


def shown_devices(text: str) -> tuple[tuple[str, ...], str]:
    """What CUDA_VISIBLE_DEVICES shows, in its order, and what is the matter with it ("" for nothing).

    An entry is an index, or the beginning of a UUID (GPU-..., MIG-...). After
    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-environment-variables.

    >>> shown_devices("3,1"), shown_devices("0,-1,2")[0], shown_devices("")
    ((('3', '1'), ''), ('0',), ((), ''))
    """
    shown: list[str] = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        if not (entry.isdecimal() or entry.startswith(("GPU-", "MIG-"))):
            hidden = entry == "-1" and not shown
            return tuple(shown), "" if hidden else f"{entry!r} is no device: {_STOPS}"
        if entry in shown:
            return (), f"{entry} stands in it twice: CUDA then shows no device at all"
        shown.append(entry)
    return tuple(shown), ""
