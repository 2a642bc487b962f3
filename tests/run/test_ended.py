"""Processes that are really ended, from outside: the script of the documentation, run as its head says."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "run_training.py"
LIMIT = 120


@pytest.fixture
def killed(tmp_path):
    """Starts the script on a folder, and may send it a signal once it prints a line; its exit code and its lines."""

    def start(folder, until="", number=None):
        command, lines = [sys.executable, str(SCRIPT), str(tmp_path / folder)], []
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            for line in process.stdout:
                lines.append(line.rstrip())
                if number is not None and line.startswith(until):
                    process.send_signal(number)
                    number = None
            return process.wait(LIMIT), lines

    return start


def test_every_end_leads_to_the_same_run(killed):
    """SIGTERM, SIGKILL and no end at all: the same weights, bit for bit; a finished run takes no step more."""
    code, lines = killed("cut", "step 700:", signal.SIGTERM)
    assert code == 75, lines
    assert "starts at step 0" in lines[0]
    code, lines = killed("cut", "step 1300:", signal.SIGKILL)
    assert code == -signal.SIGKILL, lines
    assert 700 <= int(lines[0].split()[-1]) < 1300, lines[0]
    (_, lines), (_, whole) = killed("cut"), killed("whole")
    assert lines[0].endswith("at step 1000"), lines[0]
    assert lines[-1] == whole[-1]
    assert lines[-1].startswith("done: ")
    _, lines = killed("cut")
    assert "resumed from step_000002000.pt" in lines[0]
    assert lines[-1] == whole[-1]
    assert not [line for line in lines if line.startswith("step ")]
