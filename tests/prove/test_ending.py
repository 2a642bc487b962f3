"""Processes that wait for nobody: whatever ends who began a proof ends its legs."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest

from unmoor.wiring import proving_leg

CHILD = """
import os, sys, time
from unmoor.wiring.ending import end_with
end_with(int(sys.argv[1]) or os.getppid())
os.write(1, b"here")
time.sleep(60)
"""
PARENT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]])
time.sleep(60)
"""


@pytest.mark.skipif(os.name != "posix", reason="Windows names as the parent what a virtual environment starts through")
def test_a_process_ends_with_the_one_that_waits_for_it():
    """SIGKILL of the parent, which nothing can catch, leaves no child: its output, which both hold, ends."""
    with subprocess.Popen([sys.executable, "-c", PARENT, CHILD, "0"], stdout=subprocess.PIPE) as parent:
        assert os.read(parent.stdout.fileno(), 4) == b"here"
        parent.send_signal(signal.SIGKILL)
        assert select.select([parent.stdout], [], [], 30)[0]
        assert parent.stdout.read() == b""


@pytest.mark.skipif(os.name != "posix", reason="Windows names as the parent what a virtual environment starts through")
def test_a_process_whose_parent_is_gone_already_ends_at_once():
    """It is another one that has it then."""
    done = subprocess.run([sys.executable, "-c", CHILD, "1"], capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (1, b"")


def test_a_leg_ends_with_who_began_the_proof(monkeypatch):
    """It says whom it ends with before it does anything else."""
    monkeypatch.setenv(proving_leg.ENVIRONMENT, "4711")

    class Told(Exception):
        pass

    def told(parent: int) -> None:
        raise Told(parent)

    monkeypatch.setattr(proving_leg, "end_with", told)
    with pytest.raises(Told, match="4711"):
        proving_leg.main("no such leg", "0")
