"""`unmoor doctor [PATH]`."""

from __future__ import annotations

import sys

import click

from .exits import verdict
from .output import page, say_document, say_lines
from .shape import examples, json_option, path_argument

__all__ = ["command"]


@click.command("doctor", epilog=examples("unmoor doctor", "unmoor doctor run/step_1000.pt", "unmoor doctor --json"))
@path_argument("path", required=False)
@json_option("every fact and finding")
def command(path: str | None, *, as_json: bool) -> int:
    """Say which devices are here, what model_device="auto" chooses and why, and what stands in the way.

    With PATH, whether the devices of that checkpoint are here, and the calls that load it. Works where PyTorch is
    missing or broken: that is then what it says. Ends with 1 where something will fail.
    """
    from unmoor import api_looks
    from unmoor.report.machine import machine_document, machine_lines

    machine = api_looks.doctor(path)
    if as_json:
        say_document(machine_document(machine))
    else:
        width, ellipsis = page(sys.stdout)
        say_lines(machine_lines(machine, width=width, ellipsis=ellipsis))
    return verdict(machine.findings)
