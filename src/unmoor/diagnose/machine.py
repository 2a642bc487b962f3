"""A machine -> findings: what will keep a run from using it, and what a reader should know of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from unmoor.values.finding import Finding
from unmoor.values.machine import Machine, TagFit, shown_devices
from unmoor.values.text import count, listing

__all__ = ["machine_findings", "working_calls"]

_INSTALL = "https://pytorch.org/get-started/locally/"
_PIP = 'pip install "unmoor[torch]"'
_HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
_LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


def machine_findings(machine: Machine) -> tuple[Finding, ...]:
    """What to know of a machine, and of a checkpoint on it."""
    return (
        *_torch(machine),
        *_devices(machine),
        *_visible(machine),
        *_ranks(machine),
        *_settings(machine),
        *_folder(machine),
        *_checkpoint(machine),
    )


def _torch(machine: Machine) -> Iterator[Finding]:
    torch = machine.torch
    if torch.missing:
        what = "PyTorch is not installed: inspect, verify, diff and relocate work, nothing that trains does"
        yield Finding("torch-missing", "error", "", what, _PIP)
    elif torch.error:
        what = f"PyTorch is installed and cannot be imported: {torch.error}"
        yield Finding("torch-broken", "error", "", what, f"install it anew, as {_INSTALL} says for this system")
    else:
        yield from _build(machine)


def _build(machine: Machine) -> Iterator[Finding]:
    """A build that does not go with the accelerators of the system, or cannot reach them."""
    torch, seen = machine.torch, {device.tag.partition(":")[0] for device in machine.devices}
    for driver in machine.drivers:
        wanted = "cuda" if driver.vendor == "NVIDIA" else "rocm"
        what = _models(driver.vendor, driver.devices)
        if "cuda" in seen:
            continue
        if not torch.build.startswith(wanted):
            message = f"this machine has {what}, and torch {torch.version} is a {torch.build} build: it cannot use them"
            yield Finding("torch-build", "error", "", message, f"install a {wanted} build: {_INSTALL}")
        elif machine.environment.get("CUDA_VISIBLE_DEVICES", "0") not in ("", "-1"):
            said = torch.unavailable or "torch.cuda.is_available() is False"
            message = f"this machine has {what}, and torch {torch.version} ({torch.build}) sees none of them: {said}"
            remedy = "its driver is older than this build wants, or is not loaded: update it, or take an older build"
            yield Finding("devices-unreachable", "error", "", message, remedy)


def _models(vendor: str, names: tuple[str, ...]) -> str:
    """The devices of a vendor, those of one model together."""
    told = [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    shown = listing(told) if told else "a device"
    return shown if vendor in shown else f"{shown} of {vendor}"


def _devices(machine: Machine) -> Iterator[Finding]:
    for device in machine.devices:
        if device.error:
            what = f"it is listed, and does not answer: {device.error}"
            remedy = "another process may hold it, or its memory is full, or it has failed: look with nvidia-smi"
            yield Finding("device-unusable", "error", device.tag, what, remedy)


def _visible(machine: Machine) -> Iterator[Finding]:
    """What launchers and users have hidden and renumbered."""
    for name in _HIDING:
        text = machine.environment.get(name)
        if text is not None and text.strip() in ("", "-1"):
            what = f"{name}={text!r} hides every device from this process"
            yield Finding("devices-hidden", "warning", "", what, f"unset {name}, or list the devices to show")
    text = machine.environment.get("CUDA_VISIBLE_DEVICES", "")
    shown, fault = shown_devices(text)
    if fault:
        yield Finding("visible-devices", "error", "", f"CUDA_VISIBLE_DEVICES={text}: {fault}", "correct the list")
    elif shown and shown != tuple(map(str, range(len(shown)))):
        named = listing([f"cuda:{i} is device {entry}" for i, entry in enumerate(shown)], 8)
        what = f"CUDA_VISIBLE_DEVICES={text} renumbers devices: {named}"
        yield Finding("devices-renumbered", "info", "", what, _order(machine))


def _order(machine: Machine) -> str:
    if machine.environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return "a checkpoint of this process says cuda:0 for the first of them"
    return "CUDA counts the fastest first, nvidia-smi by PCI bus: CUDA_DEVICE_ORDER=PCI_BUS_ID makes both agree"


def _ranks(machine: Machine) -> Iterator[Finding]:
    if machine.auto.error:
        headline, _, rest = machine.auto.error.partition("\n")
        yield Finding("rank-without-device", "error", "", headline, rest.split("\n")[-1].strip())
    wrong = _wrong_ranks(machine.environment)
    if wrong:
        remedy = "start with torchrun, which sets them together, or unset what is left over"
        yield Finding("launcher-contradictory", "error", "", wrong, remedy)
    found = [name for name in _LAUNCHER if name in machine.environment]
    if found and len(found) < len(_LAUNCHER):
        lacking = listing([name for name in _LAUNCHER if name not in found])
        what = f"{listing(found)} {'is' if len(found) == 1 else 'are'} set, and not {lacking}: no launcher does that"
        yield Finding("launcher-incomplete", "warning", "", what, "start with torchrun, or unset what is left over")


def _wrong_ranks(environment: Mapping[str, str]) -> str:
    """What of a launcher's variables cannot be so; "" for nothing."""
    texts = {name: environment[name] for name in _LAUNCHER if name in environment}
    strange = [f"{name}={text!r}" for name, text in texts.items() if not text.strip().isdecimal()]
    if strange:
        return f"{listing(strange)} {'is no number' if len(strange) == 1 else 'are no numbers'} of a rank"
    world = int(texts.get("WORLD_SIZE", "-1"))
    outside = [
        f"{name}={int(texts[name])}" for name in ("RANK", "LOCAL_RANK") if 0 <= world <= int(texts.get(name, -1))
    ]
    return f"{listing(outside)} of WORLD_SIZE={world}: ranks count from 0 to {world - 1}" if outside else ""


def _settings(machine: Machine) -> Iterator[Finding]:
    torch = machine.torch
    if torch.default_dtype not in ("", "float32"):
        what = f"the default dtype is {torch.default_dtype}: modules that are built now have it"
        yield Finding("default-dtype", "info", "", what)
    if torch.default_device not in ("", "cpu"):
        what = f"the default device is {torch.default_device}: tensors that are made now are there"
        yield Finding("default-device", "info", "", what)
    if not machine.packages.get("isal", "x"):
        yield Finding("slow-checksums", "info", "", "isal is missing: checksums take twice as long", "pip install isal")
    if not torch.error and not machine.packages.get("numpy", "x"):
        what = "numpy is missing: its random state is neither saved nor restored"
        yield Finding("numpy-missing", "warning", "", what, "pip install numpy")


def _folder(machine: Machine) -> Iterator[Finding]:
    folder = machine.folder
    if not folder.writable:
        yield Finding("folder-read-only", "warning", folder.path, "nothing can be saved here", "go to another folder")
    elif not folder.fsync:
        what = "this file system confirms no write: a save may be lost in a power failure after it has returned"
        yield Finding("no-fsync", "warning", folder.path, what)


def _checkpoint(machine: Machine) -> Iterator[Finding]:
    absent = [fit for fit in machine.tags if not fit.here]
    if absent and not machine.torch.error:
        named = listing([f"{fit.tag} ({count(fit.tensors, 'tensor')})" for fit in absent])
        what = f"saved on {named}, which this machine has not: torch.load fails without map_location"
        yield Finding("device-absent", "error", machine.checkpoint, what, "one of the calls below")


def working_calls(path: str, word: str, tags: tuple[TagFit, ...], machine: Machine) -> tuple[str, ...]:
    """Calls and commands with which a checkpoint gets onto this machine; `word` is its path for a shell."""
    absent = [fit.tag for fit in tags if not fit.here]
    relocate = f"unmoor relocate {word} --to {machine.auto.device or 'cpu'}"
    if machine.torch.error:
        return (f"unmoor relocate {word} --to cpu",) if absent else ()
    calls = [
        f'unmoor.load("{path}", model_device="auto")',
        f'unmoor.restore("{path}", model=model, optimizer=optimizer)',
    ]
    if not absent:
        return (f'torch.load("{path}")', *calls)
    mapping = ", ".join(f'"{tag}": "{machine.auto.device or "cpu"}"' for tag in absent)
    return (*calls, f'torch.load("{path}", map_location={{{mapping}}})', f"{relocate} (then a plain torch.load)")
