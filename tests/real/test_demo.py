"""The demo as a user sees it: one command, what it prints, how it ends, and what it leaves."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import unmoor
from unmoor import demo

pytestmark = pytest.mark.real


@pytest.mark.slow
def test_the_demo_resumes_a_published_run_and_proves_it(tmp_path: Path) -> None:
    """It ends with the proof and code 0, prints nothing but its own words, and leaves no file behind."""
    pytest.importorskip("chgnet", reason='chgnet is not installed: pip install "unmoor[real]"')
    environment = {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "80"}
    command = [sys.executable, "-m", "unmoor", "demo"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "A published training run: CHGNet 0.3.0, 390 tensors on cuda:7, 127 tensors on cpu"
    assert any(line.startswith("restored model, optimizer, scheduler from ") for line in lines)
    assert not [line for line in lines if "initialized with" in line or "Warning" in line]
    proof = r"5 of 5, bit for bit \(loss 0\.\d+, 136 parameters, 381 optimizer tensors, scheduler\)"
    assert re.fullmatch(f"resumed steps equal the uninterrupted ones: {proof}", lines[-1])
    # any optimizer of PyTorch makes PyTorch's own cache folder
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("torchinductor_")] == []


def test_without_chgnet_the_demo_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the package is missing nothing is printed and the error names the pip command."""
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    said: list[str] = []
    with pytest.raises(unmoor.UsageError, match=re.escape('pip install "unmoor[torch,real]"')):
        demo.run(said.append)
    assert said == []


def test_a_difference_is_named_and_ends_with_one() -> None:
    """Where the resumed run differs the last line says so and where, and the code is 1."""
    here, there = {"loss": [1.0, 2.0]}, {"loss": [1.0, 3.0]}
    text, code = demo._verdict(here, there, ["loss.1", "model.fc.weight"])
    assert code == 1
    assert (
        text
        == f"resumed steps DIFFER from the uninterrupted ones: 1 of {demo.STEPS} losses equal; loss.1, model.fc.weight"
    )
