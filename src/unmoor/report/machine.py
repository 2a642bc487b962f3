"""A machine as a page of text: what "auto" chooses here and why, then what is wrong, then the facts. Pure."""

from __future__ import annotations

from typing import Any, Final

from unmoor.values.machine import DeviceFacts, Machine, TagFit
from unmoor.values.text import count, format_bytes, listing

from .attention import finding_lines
from .layout import Line, Page, join_lines, plain
from .restore import row_lines

__all__ = ["machine_document", "machine_lines", "machine_text"]

SCHEMA: Final = "unmoor.machine/1"
_SHOWN: Final = 16
_LISTED: Final = 40

Row = tuple[str, str]


def machine_text(machine: Machine, *, width: int = 80, ellipsis: str = "…") -> str:
    """What this machine can do for a run, and what stands in its way."""
    return join_lines(machine_lines(machine, width=width, ellipsis=ellipsis))


def machine_lines(machine: Machine, *, width: int = 80, ellipsis: str = "…") -> list[Line]:
    """The lines of `machine_text` with their tones."""
    page = Page(width, ellipsis)
    grave = [finding for finding in machine.findings if finding.severity != "info"]
    notes = [finding for finding in machine.findings if finding.severity == "info"]
    lines = [Line(line, "headline") for line in page.wrap(plain(_headline(machine)), rest="  ")]
    blocks = [
        finding_lines(grave, page),
        _checkpoint(machine, page),
        _devices(machine.devices, page),
        row_lines([*_torch(machine), *_system(machine)], page),
        finding_lines(notes, page),
    ]
    for block in blocks:
        lines += [Line(""), *block] if block else []
    return lines


def machine_document(machine: Machine) -> dict[str, Any]:
    """A machine as a JSON document."""
    return {"schema": SCHEMA, **machine.to_json()}


def _headline(machine: Machine) -> str:
    choice = machine.auto
    if machine.torch.error:
        return f"no PyTorch {'here' if machine.torch.missing else 'that can be imported'}: nothing can be resumed"
    if choice.error:
        return 'model_device="auto" chooses nothing here: it raises DeviceError'
    return f'model_device="auto" is {choice.device} here: {choice.why}'


def _devices(devices: tuple[DeviceFacts, ...], page: Page) -> list[Line]:
    rows = [("device", "memory free", "what it is")]
    rows += [(d.tag, _memory(d), _what(d)) for d in devices[:_SHOWN]]
    more = [Line(f"  and {count(len(devices) - _SHOWN, 'device')} more")] if len(devices) > _SHOWN else []
    return [*map(Line, page.table(rows)), *more] if devices else []


def _memory(device: DeviceFacts) -> str:
    if device.free < 0:
        return format_bytes(device.total) if device.total >= 0 else ""
    return f"{format_bytes(device.free)} of {format_bytes(device.total)}"


def _what(device: DeviceFacts) -> str:
    words = [plain(device.name)] if device.name else []
    words += [f"compute capability {device.capability}"] if device.capability else []
    words += [f"device {device.physical} before renumbering"] if device.physical else []
    words += ["does not answer"] if device.error else []
    return ", ".join(words)


def _torch(machine: Machine) -> list[Row]:
    torch = machine.torch
    if torch.error:
        return [("torch", "not installed" if torch.missing else torch.error)]
    switches = ", ".join(f"{name} {value}" for name, value in torch.switches.items())
    return [
        ("torch", f"{torch.version}, {torch.build} build, in {torch.path}"),
        ("defaults", f"dtype {torch.default_dtype}, device {torch.default_device}, {count(torch.threads, 'thread')}"),
        *([("switches", switches)] if switches else []),
    ]


def _system(machine: Machine) -> list[Row]:
    drivers = [
        f"{d.vendor} {d.version or 'without a driver'}, {count(len(d.devices), 'device')}" for d in machine.drivers
    ]
    packages = listing([f"{name} {version or 'missing'}" for name, version in machine.packages.items()], 8)
    folder, known = machine.folder, machine.environment
    able = [word for word, has in (("fsync", folder.fsync), ("preadv", folder.preadv)) if has]
    able.append("shares blocks of copies" if folder.reflink else "copies whole files")
    free = f", {format_bytes(folder.free)} free" if folder.free >= 0 else ""
    return [
        *([("drivers", "; ".join(drivers))] if drivers else []),
        ("ranks", ", ".join(f"{k}={v}" for k, v in known.items())[: _LISTED * 10] if known else _ALONE),
        ("python", f"{machine.python}, unmoor {machine.unmoor}, {packages}"),
        ("system", machine.platform),
        ("folder", f"{folder.path}: {', '.join(able)}{free}" if folder.writable else f"{folder.path}: read-only"),
    ]


_ALONE: Final = "one process: neither torchrun nor CUDA_VISIBLE_DEVICES has set anything"


def _checkpoint(machine: Machine, page: Page) -> list[Line]:
    """Where the tensors of a checkpoint would go, and the calls that put them somewhere."""
    if not machine.checkpoint:
        return []
    rows = [("saved on", _fit(fit)) for fit in machine.tags] or [("saved on", "no device: it keeps none")]
    rows += [("works", call) for call in machine.calls]
    return [Line(plain(machine.checkpoint)), *row_lines(rows, page)]


def _fit(fit: TagFit) -> str:
    here = "here" if fit.here else "NOT here"
    return f"{fit.tag}: {count(fit.tensors, 'tensor')}, {format_bytes(fit.nbytes)}; {here}"
