"""Proofs through real fresh processes: devices, ranks, wrappers, and the command with its pictures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import unmoor

from . import runs

ROOT = Path(__file__).parents[2]


def test_a_run_goes_on_on_another_device(sim):
    """From the CPU to another kind of device: the state bit for bit, and the steps after it."""
    seen = []
    proof = unmoor.prove(runs.build, steps=4, cut=2, resume_on="sim:0", progress=lambda *told: seen.append(told))
    assert proof.ok, str(proof)
    assert proof.setting == (("device", "saved on cpu, resumed on sim:0"),)
    assert seen[-1] == ("the resumed run", 2, 2)


@pytest.mark.slow
def test_a_run_of_two_ranks_goes_on_in_one_process():
    """DistributedDataParallel on two ranks, then a plain model: each sample once, the loss that of all ranks."""
    proof = unmoor.prove(runs.many, steps=4, cut=2, world=2, wrap="ddp", resume_world=1, resume_wrap="none")
    assert proof.ok, str(proof)
    assert (proof.verdict, proof.largest < 1e-5) == ("within", True)
    assert next(row for row in proof.table if row.component == "data order").verdict == "equal"


@pytest.mark.slow
def test_a_sharded_run_goes_on_whole():
    """What two ranks hold in parts is put together to be compared."""
    proof = unmoor.prove(runs.many, steps=3, cut=2, world=2, wrap="fsdp2", resume_world=1, resume_wrap="none")
    assert proof.ok, str(proof)
    assert {row.component: row.things for row in proof.table}["parameters"] == 4


def test_the_command_writes_pictures_and_ends_with_seven(tmp_path):
    """The example that forgets its sampler: the text, the JSON, both pictures, the exit code."""
    example = ROOT / "examples" / "prove_resume.py"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "unmoor", "prove", f"{example}:forgetful", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (7, "")
    told = json.loads(done.stdout)
    assert told["schema"] == "unmoor.proof/1"
    assert (told["verdict"], told["difference"]["component"]) == ("different", "data order")
    assert told["pictures"] == ["prove.png", "prove.html"]
    assert (tmp_path / "prove.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "prove.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("arguments", [[], ["examples/prove_resume.py:build", "--steps", "0"]])
def test_a_wrong_command_ends_with_two(arguments):
    """What cannot be meant is usage, and no process is started."""
    from click.testing import CliRunner

    from unmoor.cli import commands, exit_code

    result = CliRunner().invoke(commands, ["prove", *arguments])
    assert result.exit_code == 2 or exit_code(result.exception) == 2
