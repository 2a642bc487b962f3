"""What is wrong with machines that this one is not: facts as literals in, findings out."""

from __future__ import annotations

import re
from typing import Any

import pytest

from unmoor.cli.exits import verdict
from unmoor.diagnose.machine import machine_findings, working_calls
from unmoor.values.finding import Finding
from unmoor.values.machine import Choice, DeviceFacts, Driver, FolderFacts, Machine, TagFit, TorchFacts, shown_devices

from .machines import A100, CPU, GIB, TORCH, machine, two_gpus

NVIDIA = (Driver("NVIDIA", "550.54.15", (A100, A100)),)
LAUNCHED = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}


def found(made: Machine) -> dict[str, Finding]:
    return {finding.code: finding for finding in machine_findings(made)}


RANKS = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}


@pytest.mark.parametrize("made", [machine(), two_gpus(), two_gpus(environment=LAUNCHED)], ids=["cpu", "gpus", "ranks"])
def test_a_sound_machine_has_no_findings(made: Machine) -> None:
    """Nothing to tell, and the command ends with 0."""
    assert found(made) == {}
    assert verdict(machine_findings(made)) == 0


@pytest.mark.parametrize(
    ("made", "code", "severity", "words"),
    [
        (machine(torch=TorchFacts(error="x", missing=True)), "torch-missing", "error", "is not installed"),
        (machine(torch=TorchFacts(error="OSError: libcudart.so.12")), "torch-broken", "error", "libcudart.so.12"),
        (machine(drivers=NVIDIA), "torch-build", "error", "2 x NVIDIA A100-SXM4-80GB, and torch .* is a cpu build"),
        (machine(drivers=(Driver("AMD", "", ("a device",)),)), "torch-build", "error", "1 x a device of AMD"),
        (machine(drivers=(Driver("NVIDIA"),)), "torch-build", "error", "a device of NVIDIA"),
        (
            machine(torch=TORCH, drivers=NVIDIA),
            "devices-unreachable",
            "error",
            r"sees none of them: torch.cuda.is_available\(\) is False",
        ),
        (
            machine(torch={"build": "cuda 12.6", "unavailable": "The driver is too old"}, drivers=NVIDIA),
            "devices-unreachable",
            "error",
            "driver is too old",
        ),
        (
            machine(torch=TORCH, drivers=NVIDIA, environment={"CUDA_VISIBLE_DEVICES": ""}),
            "devices-hidden",
            "warning",
            "CUDA_VISIBLE_DEVICES='' hides every device",
        ),
        (machine(environment={"CUDA_VISIBLE_DEVICES": "-1"}), "devices-hidden", "warning", "'-1' hides"),
        (two_gpus(environment={"CUDA_VISIBLE_DEVICES": "3,1"}), "devices-renumbered", "info", "cuda:0 is device 3"),
        (two_gpus(environment={"CUDA_VISIBLE_DEVICES": "GPU-8f"}), "devices-renumbered", "info", "is device GPU"),
        (two_gpus(environment={"CUDA_VISIBLE_DEVICES": "0,x,1"}), "visible-devices", "error", "'x' is no device"),
        (two_gpus(environment={"CUDA_VISIBLE_DEVICES": "0,-1"}), "visible-devices", "error", "'-1' is no device"),
        (two_gpus(environment={"CUDA_VISIBLE_DEVICES": "1,1"}), "visible-devices", "error", "stands in it twice"),
        (
            two_gpus(devices=(DeviceFacts("cuda:0", A100, 80 * GIB, -1, "8.0", "", "OutOfMemoryError: full"), CPU)),
            "device-unusable",
            "error",
            "does not answer: OutOfMemoryError: full",
        ),
        (
            two_gpus(auto=Choice(error="local rank 2 has no cuda device of its own\n  x\nStart one rank for each")),
            "rank-without-device",
            "error",
            "local rank 2 has no cuda device",
        ),
        (machine(environment={"LOCAL_RANK": "1"}), "launcher-incomplete", "warning", "LOCAL_RANK is set"),
        (machine(environment={**RANKS, "RANK": "2"}), "launcher-contradictory", "error", "RANK=2 of WORLD_SIZE=2"),
        (machine(environment={**RANKS, "LOCAL_RANK": "5"}), "launcher-contradictory", "error", "LOCAL_RANK=5 of WORLD"),
        (machine(environment={**RANKS, "LOCAL_RANK": "abc"}), "launcher-contradictory", "error", "'abc' is no number"),
        (
            machine(environment={**RANKS, "RANK": "", "LOCAL_RANK": "-1"}),
            "launcher-contradictory",
            "error",
            "RANK='', LOCAL_RANK='-1' are no numbers",
        ),
        (machine(torch={"default_dtype": "float64"}), "default-dtype", "info", "float64"),
        (machine(torch={"default_device": "cuda:0"}), "default-device", "info", "cuda:0"),
        (machine(packages={"isal": ""}), "slow-checksums", "info", "twice as long"),
        (machine(packages={"numpy": ""}), "numpy-missing", "warning", "numpy is missing"),
        (machine(folder=FolderFacts("/ro", writable=False)), "folder-read-only", "warning", "nothing can be saved"),
        (machine(folder=FolderFacts("/fuse", fsync=False)), "no-fsync", "warning", "confirms no write"),
        (
            machine(checkpoint="a.pt", tags=(TagFit("cuda:7", 3, 12, here=False), TagFit("cpu", 1, 4, here=True))),
            "device-absent",
            "error",
            r"saved on cuda:7 \(3 tensors\), which this machine has not",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(made: Machine, code: str, severity: str, words: str) -> None:
    """Each fault is the only finding, of its own code and severity, and says what it is."""
    assert list(found(made)) == [code]
    assert found(made)[code].severity == severity
    assert re.search(words, found(made)[code].message)
    assert verdict(machine_findings(made)) == (1 if severity == "error" else 0)


def test_errors_say_what_to_do() -> None:
    """No error goes without a remedy."""
    for made in (machine(drivers=NVIDIA), machine(torch=TORCH, drivers=NVIDIA), machine(torch=TorchFacts(error="x"))):
        assert all(finding.remedy for finding in machine_findings(made) if finding.severity == "error")


def test_the_order_of_cuda_is_told() -> None:
    """A renumbering says whose numbers it speaks of, as the environment has it."""
    shown = {"CUDA_VISIBLE_DEVICES": "3,1"}
    assert "nvidia-smi by PCI bus" in found(two_gpus(environment=shown))["devices-renumbered"].remedy
    shown["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    assert "nvidia-smi" not in found(two_gpus(environment=shown))["devices-renumbered"].remedy


@pytest.mark.parametrize(
    ("text", "shown", "fault"),
    [
        ("0,1", ("0", "1"), False),
        (" 2 , 0 ", ("2", "0"), False),
        ("GPU-5a,MIG-77", ("GPU-5a", "MIG-77"), False),
        ("", (), False),
        ("-1", (), False),
        ("NoDevFiles", (), True),
        ("1,-1,0", ("1",), True),
        ("1,1", (), True),
        ("0,,1", ("0", "1"), False),
    ],
)
def test_what_a_list_of_visible_devices_shows(text: str, shown: tuple[str, ...], fault: bool) -> None:
    """Indices and UUIDs in their order, up to the first entry that is none."""
    assert shown_devices(text)[0] == shown
    assert bool(shown_devices(text)[1]) is fault


@pytest.mark.parametrize(
    ("made", "here", "calls"),
    [
        (two_gpus(), True, ['torch.load("a b.pt")', "unmoor.load", "unmoor.restore"]),
        (
            two_gpus(),
            False,
            ["unmoor.load", "unmoor.restore", 'torch.load("a b.pt", map_location={"cuda:7": "cuda:0"})',
             "unmoor relocate 'a b.pt' --to cuda:0"],
        ),
        (machine(torch=TorchFacts(error="x", missing=True)), False, ["unmoor relocate 'a b.pt' --to cpu"]),
        (machine(torch=TorchFacts(error="x", missing=True)), True, []),
    ],
)  # fmt: skip
def test_the_calls_that_work_here(made: Any, here: bool, calls: list[str]) -> None:
    """The calls that load a checkpoint on this machine, by whether its devices are here and torch is."""
    told = working_calls("a b.pt", "'a b.pt'", (TagFit("cuda:7", 3, 12, here=here),), made)
    assert len(told) == len(calls)
    assert all(line.startswith(call) for line, call in zip(told, calls, strict=True))
