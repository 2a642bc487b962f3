"""doctor: facts of the system and of torch, of a checkpoint where one is given -> findings -> a page."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from unmoor.describe import describe_path
from unmoor.diagnose.machine import machine_findings, working_calls
from unmoor.filing import path_text
from unmoor.live import machine as torch_side
from unmoor.live import system
from unmoor.report.machine import machine_text
from unmoor.report.relocation import shell_word
from unmoor.values.machine import Machine, TagFit
from unmoor.values.tags import split_tag
from unmoor.version import __version__

__all__ = ["examine"]


def examine(path: str | os.PathLike[str] | None) -> Machine:
    """This machine; with `path`, what of that checkpoint it has devices for."""
    catalog = None if path is None else describe_path(path_text(path))
    torch, devices, auto, present = torch_side.see()
    made = Machine(
        platform=system.platform_text(),
        python=system.python_text(),
        unmoor=__version__,
        torch=torch,
        devices=devices,
        drivers=system.drivers(),
        auto=auto,
        environment=system.environment(),
        packages=system.packages(),
        folder=system.folder_facts(os.getcwd()),
    )
    if catalog is not None:
        tags = tuple(TagFit(tag, *numbers, _is_here(tag, present)) for tag, numbers in catalog.devices().items())
        calls = working_calls(catalog.path, shell_word(catalog.path), tags, made)
        made = replace(made, checkpoint=catalog.path, tags=tags, calls=calls)
    made = replace(made, findings=machine_findings(made))
    return replace(made, text=machine_text(made))


def _is_here(tag: str, present: Mapping[str, int]) -> bool:
    """Whether a plain torch.load can put data where a tag says; what is on the meta device has none."""
    try:
        kind, index = split_tag(tag)
    except ValueError:
        return False
    return kind in ("cpu", "meta") or (index or 0) < present.get(kind, 0)
