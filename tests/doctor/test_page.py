"""The page of a machine as a person sees it at 80 columns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unmoor.diagnose.machine import machine_findings, working_calls
from unmoor.report.layout import cells
from unmoor.report.machine import machine_document, machine_lines, machine_text
from unmoor.values.machine import Choice, DeviceFacts, Driver, FolderFacts, Machine, TagFit, TorchFacts

from .machines import A100, CPU, GIB, machine, two_gpus

GOLDEN = Path(__file__).parent / "golden"


def _with_checkpoint() -> Machine:
    tags = (TagFit("cuda:7", 390, 4_700_000, here=False), TagFit("cpu", 127, 508, here=True))
    made = machine(drivers=(Driver("NVIDIA", "550.54.15", (A100,)),), checkpoint="run.pt", tags=tags)
    return machine(
        drivers=made.drivers, checkpoint="run.pt", tags=tags, calls=working_calls("run.pt", "run.pt", tags, made)
    )


SCENES = {
    "cpu": machine(),
    "gpus": two_gpus(environment={"CUDA_VISIBLE_DEVICES": "3,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
    "no_torch": machine(
        torch=TorchFacts(error="ModuleNotFoundError: No module named 'torch'", missing=True), devices=(), auto=Choice()
    ),
    "broken_torch": machine(
        torch=TorchFacts(error="OSError: libcudart.so.12: cannot open shared object file"), devices=(), auto=Choice()
    ),
    "checkpoint": _with_checkpoint(),
    "trouble": two_gpus(
        environment={"LOCAL_RANK": "2", "RANK": "2", "WORLD_SIZE": "4"},
        auto=Choice(error="local rank 2 has no cuda device of its own: cuda:2 is not here\nStart one rank for each."),
        devices=(DeviceFacts("cuda:0", A100, 80 * GIB, -1, "8.0", "", "AcceleratorError: CUDA error: busy"), CPU),
        folder=FolderFacts("/data", writable=False),
        packages={"numpy": "", "isal": ""},
    ),
}


def _told(made: Machine) -> Machine:
    from dataclasses import replace

    return replace(made, findings=machine_findings(made))


@pytest.mark.parametrize("name", SCENES)
def test_the_page_is_as_it_was_looked_at(name: str, request: pytest.FixtureRequest) -> None:
    """The text at 80 columns equals the one that was read by a person."""
    path = GOLDEN / f"{name}.txt"
    text = machine_text(_told(SCENES[name])) + "\n"
    if not path.exists():
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("width", [40, 80, 132])
def test_no_line_is_wider_than_the_page(name: str, width: int) -> None:
    """At any width lines fit, and the first one answers the question."""
    lines = machine_lines(_told(SCENES[name]), width=width)
    assert all(cells(line.text) <= width for line in lines)
    assert lines[0].tone == "headline"


@pytest.mark.parametrize("name", SCENES)
def test_the_document_is_json(name: str) -> None:
    """A machine is a JSON document with its schema, findings and all."""
    made = _told(SCENES[name])
    document = json.loads(json.dumps(machine_document(made), allow_nan=False))
    assert document["schema"] == "unmoor.machine/1"
    assert len(document["findings"]) == len(made.findings)
    assert ("checkpoint" in document) == bool(made.checkpoint)


def test_what_a_device_says_cannot_move_the_cursor() -> None:
    """Names and errors that come from drivers are escaped."""
    made = machine(devices=(DeviceFacts("cuda:0", "\x1b[2JGPU", error="\x1b]0;x"), CPU))
    assert "\x1b" not in machine_text(_told(made))
