"""doctor on this machine, on one with a simulated accelerator, and where PyTorch is missing or broken."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from click.testing import CliRunner

import unmoor
from tests.describe.makers import tagged
from unmoor import cli
from unmoor.errors import NotACheckpoint
from unmoor.live import devices, system
from unmoor.live import machine as torch_side
from unmoor.live.devices import device_fallback
from unmoor.live.machine import see

CHILD = """
import sys
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise {error}
sys.meta_path.insert(0, Broken())
from unmoor.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of a launcher is set."""
    for name in system.VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_this_machine_is_told() -> None:
    """Facts of this process: torch's version and build, python, the folder, what auto chooses."""
    made = unmoor.doctor()
    assert made.torch.version == torch.__version__
    assert made.auto.device == devices.tag(device_fallback())
    assert made.packages["numpy"]
    assert made.folder.writable
    assert str(made).startswith('model_device="auto" is ')
    assert made.devices[-1].tag == "cpu"
    assert 0 < made.devices[-1].free <= made.devices[-1].total
    assert json.loads(json.dumps(made.to_json()))["torch"]["switches"]["deterministic_algorithms"] in ("on", "off")


@pytest.mark.parametrize("rank", [None, "0", "2"])
def test_the_choice_is_that_of_auto(sim: ModuleType, monkeypatch: pytest.MonkeyPatch, rank: str | None) -> None:
    """What doctor says that auto chooses is what auto chooses, and the reason names its rule."""
    if rank is not None:
        for name, value in {"LOCAL_RANK": rank, "RANK": rank, "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}.items():
            monkeypatch.setenv(name, value)
    made = unmoor.doctor()
    assert made.auto.device == devices.tag(device_fallback()) == f"sim:{rank or 0}"
    assert (f"LOCAL_RANK={rank}" if rank else "LOCAL_RANK is not set") in made.auto.why
    assert [device.tag for device in made.devices if device.tag.startswith("sim")] == [f"sim:{i}" for i in range(4)]
    assert made.findings == ()


def test_a_device_that_the_program_has_set(sim: ModuleType) -> None:
    """A current device other than 0 is the program's own choice, and is given as the reason."""
    with sim.device(3):
        made = unmoor.doctor()
    assert made.auto.device == "sim:3"
    assert "the program has made it the current sim device" in made.auto.why


def test_a_rank_without_a_device_is_an_error(sim: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where auto raises, doctor says with what, and ends with 1."""
    for name, value in {"LOCAL_RANK": "9", "RANK": "9", "WORLD_SIZE": "10"}.items():
        monkeypatch.setenv(name, value)
    made = unmoor.doctor()
    assert [finding.code for finding in made.findings] == ["rank-without-device"]
    assert "local rank 9 has no sim device of its own" in made.findings[0].message
    assert "torchrun --nproc-per-node 4" in made.findings[0].remedy
    assert str(made).startswith('model_device="auto" chooses nothing here')


def test_a_device_that_does_not_answer_is_a_fact(sim: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of one device is told with its words; the others are listed as they are."""

    def failing(index: int) -> tuple[int, int]:
        if index == 1:
            raise RuntimeError("the device is lost")
        return 5, 10

    monkeypatch.setattr(sim, "mem_get_info", failing, raising=False)
    made = unmoor.doctor()
    assert [d.error for d in made.devices if d.tag.startswith("sim")] == [
        "",
        "RuntimeError: the device is lost",
        "",
        "",
    ]
    assert [finding.place for finding in made.findings] == ["sim:1"]
    assert next(d for d in made.devices if d.tag == "sim:0").free == 5


def test_what_torch_warns_of_its_devices_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason that torch gives for having no device becomes a fact and is not printed."""

    def available() -> dict[str, int]:
        import warnings

        warnings.warn("CUDA initialization: the driver is too old (Triggered internally at x.cpp:1.)", stacklevel=1)
        return {"cpu": 1, "meta": 1}

    monkeypatch.setattr(devices, "available", available)
    assert see()[0].unavailable == "CUDA initialization: the driver is too old"


def test_a_checkpoint_of_devices_that_are_not_here(tmp_path: Path, sim: ModuleType) -> None:
    """Each tag is here or is not; the calls that work are named, and do."""
    path = tmp_path / "run.pt"
    with tagged("cuda:7"):
        torch.save({"w": torch.ones(3)}, path)
    made = unmoor.doctor(path)
    assert [(fit.tag, fit.here) for fit in made.tags] == [("cuda:7", False)]
    assert [finding.code for finding in made.findings] == ["device-absent"]
    call = next(call for call in made.calls if call.startswith("torch.load"))
    loaded = eval(call, {"torch": torch})
    assert str(loaded["w"].device) == made.auto.device


def test_a_checkpoint_whose_devices_are_here(tmp_path: Path, sim: ModuleType) -> None:
    """A plain torch.load is among the calls then, and nothing is found."""
    path = tmp_path / "run.pt"
    torch.save({"w": torch.ones(3, device="sim:1"), "c": torch.ones(2)}, path)
    made = unmoor.doctor(path)
    assert all(fit.here for fit in made.tags)
    assert made.calls[0] == f'torch.load("{path}")'
    assert made.findings == ()


def test_a_path_that_is_no_checkpoint_is_the_readers_error(tmp_path: Path) -> None:
    """What describe says of a path, doctor says."""
    with pytest.raises(NotACheckpoint):
        unmoor.doctor(tmp_path / "none.pt")


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        ("ModuleNotFoundError(\"No module named 'torch'\", name='torch')", "torch-missing", "PyTorch is not installed"),
        ("OSError('libcudart.so.12: cannot open shared object file')", "torch-broken", "libcudart.so.12"),
        ("ImportError('DLL load failed')", "torch-broken", "DLL load failed"),
    ],
)
def test_a_torch_that_cannot_be_imported_is_the_answer(tmp_path: Path, error: str, code: str, words: str) -> None:
    """Without a torch that works, doctor still prints its page, says why, tells of a checkpoint, and ends with 1."""
    with tagged("cuda:7"):
        torch.save({"w": torch.ones(3)}, tmp_path / "run.pt")
    for more in ((), ("--json",)):
        command = [sys.executable, "-c", CHILD.format(error=error), "doctor", str(tmp_path / "run.pt"), *more]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (1, "")
        assert words in done.stdout
        if more:
            document = json.loads(done.stdout)
            assert [finding["code"] for finding in document["findings"]] == [code]
            assert document["checkpoint"]["tags"][0]["here"] is False


def test_accelerators_are_found_without_torch(tmp_path: Path) -> None:
    """What the kernel says below /proc and /sys: NVIDIA's driver, AMD's, and cards that nothing serves."""
    assert system.drivers(str(tmp_path)) == ()
    bus = tmp_path / "sys/bus/pci/devices"
    for number, (vendor, kind) in enumerate([("0x10de", "0x030200"), ("0x8086", "0x030000"), ("0x1002", "0x120000")]):
        device = bus / f"0000:0{number}:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text(vendor + "\n")
        (device / "class").write_text(kind + "\n")
    assert [(d.vendor, d.version, d.devices) for d in system.drivers(str(tmp_path))] == [
        ("NVIDIA", "", ("PCI 0000:00:00.0",)),
        ("AMD", "", ("PCI 0000:02:00.0",)),
    ]
    folder = tmp_path / "proc/driver/nvidia"
    (folder / "gpus/0000:01:00.0").mkdir(parents=True)
    (folder / "version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version: 12\n"
    )
    (folder / "gpus/0000:01:00.0/information").write_text("Model: \t\t NVIDIA H100\nIRQ: 5\n")
    node = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    for number, text in enumerate(["cpu_cores_count 8\nsimd_count 0\n", "simd_count 304\n"]):
        (node / str(number)).mkdir(parents=True)
        (node / str(number) / "properties").write_text(text)
    assert [(d.vendor, d.version, d.devices) for d in system.drivers(str(tmp_path))] == [
        ("NVIDIA", "550.54.15", ("NVIDIA H100",)),
        ("AMD", "", ("a device",)),
    ]


def test_the_open_kernel_module_is_a_driver_too(tmp_path: Path) -> None:
    """NVIDIA's open module words its version otherwise."""
    folder = tmp_path / "proc/driver/nvidia"
    folder.mkdir(parents=True)
    (folder / "version").write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release\n")
    assert [d.version for d in system.drivers(str(tmp_path))] == ["570.86.10"]


def test_a_folder_is_left_as_it_was(tmp_path: Path) -> None:
    """What a folder can do is tried, and nothing stays in it; one that cannot be written says so."""
    facts = system.folder_facts(str(tmp_path))
    assert (facts.writable, facts.fsync) == (True, True)
    assert facts.free > 0
    assert list(tmp_path.iterdir()) == []
    assert not system.folder_facts(str(tmp_path / "none")).writable


def test_memory_is_unknown_where_the_system_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /proc the memory of the machine is left out."""
    monkeypatch.setattr("builtins.open", lambda *a, **k: (_ for _ in ()).throw(FileNotFoundError()))
    assert torch_side._memory() == (-1, -1)


def test_the_command_prints_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """`unmoor doctor` prints the text of the value and ends by its findings."""
    monkeypatch.setenv("COLUMNS", "80")
    done = CliRunner().invoke(cli.commands, ["doctor"])
    assert done.exit_code == 0
    assert done.output.split("\n")[0] == str(unmoor.doctor()).split("\n")[0]
    monkeypatch.setenv("LOCAL_RANK", "0")
    done = CliRunner().invoke(cli.commands, ["doctor", "--json"])
    assert [f["code"] for f in json.loads(done.output)["findings"]] == ["launcher-incomplete"]
