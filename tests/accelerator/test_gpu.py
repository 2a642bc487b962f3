"""The script of benchmarks that needs a GPU: that it runs, on `sim` in small, and its checks on a real device."""

from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import torch

from benchmarks import common, gpu, gpu_checks, gpu_ways
from unmoor.live import devices


def test_the_script_checks_measures_and_prints(
    sim: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One round on `sim`, in this process: every check holds, every way has figures, nothing takes a second state."""
    device = torch.device("sim:1")
    monkeypatch.setattr(common, "WIDTH", 32)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as the script does, so that it is gone afterwards
    monkeypatch.setattr(gpu, "_child", partial(gpu_ways.do, device=device))
    options = ["--device", "sim:1", "--gb", "0.001", "--rounds", "1", "--folder", str(tmp_path)]
    assert gpu.main(options) == 0
    said = capsys.readouterr().out
    assert "buffers are pinned" in said
    assert "what is queued before a save is in the file" in said
    for way in (*gpu.RESTORES, *gpu.SAVES, "pinned copies alone", "background=True"):
        assert way in said
    assert sim.waiting() == 0


def test_without_a_device_the_script_says_why_and_ends_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine without an accelerator is no failure."""
    monkeypatch.setattr(devices, "_accelerator_type", lambda: None)
    assert gpu.main([]) == 0
    assert capsys.readouterr().out == "nothing to measure: this torch has no accelerator here\n"


@pytest.mark.gpu
def test_a_real_device_gets_and_gives_the_right_bytes(tmp_path: Path) -> None:
    """What `benchmarks.gpu` checks before it measures, on the accelerator that is here."""
    device = devices.device_fallback()
    if device.type in ("cpu", "sim"):
        pytest.skip("no accelerator is here")
    assert list(gpu_checks.checks(device, str(tmp_path)))
