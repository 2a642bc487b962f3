"""verify, and diff as far as it goes, in a process in which PyTorch cannot be imported."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from tests.describe.makers import save

CHILD = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "numpy", "rich"):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, NoTorch())
from unmoor.cli import main
raise SystemExit(main(sys.argv[1:]))
"""


@pytest.fixture
def run(tmp_path):
    """Two checkpoints that differ in one element, and a command on them in such a process."""
    state = {"model": {"a.weight": torch.arange(6.0).view(2, 3), "b.weight": torch.ones(2)}}
    save(state, tmp_path / "a.pt")
    state["model"]["b.weight"][1] = 2.0
    save(state, tmp_path / "b.pt")

    def run(*arguments):
        command = [sys.executable, "-W", "error", "-c", CHILD, *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)

    return run


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("verify", "a.pt"), 0, "every checksum holds"),
        (("diff", "a.pt", "a.pt"), 0, "equal: 2 tensors bit for bit"),
        (("diff", "a.pt", "b.pt", "--structure"), 0, "equal in structure"),
        (("diff", "a.pt", "b.pt"), 7, "PyTorch is not installed"),
    ],
)
def test_what_needs_no_pytorch_works_without_it(arguments, code, text, run):
    """Only how far tensors are apart needs it, and that is said."""
    done = run(*arguments)
    assert (done.returncode, done.stderr) == (code, "")
    assert text in done.stdout
