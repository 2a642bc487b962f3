"""The scripts of examples/, run as their heads say: they are what a user copies."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.cases.files import tiny, train
from tests.describe.zero_maker import Shape, ZeroMaker

from .launch import aborted_at_its_end, run_script

EXAMPLES = Path(__file__).parents[2] / "examples"
LIMIT = 180.0
LINE = r"rank (\d) of (\d): (saved|resumed) at step (\d+), ([0-9a-f]{8})"


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., str]:
    """Runs an example in a world of a size, on a path of its own; what it prints."""
    return lambda name, world, path: run_script(EXAMPLES / f"{name}.py", world, tmp_path / path, limit=LIMIT)


def told(output: str) -> dict[tuple[str, int], set[str]]:
    """What was done at which step -> the digests that the ranks printed; each rank prints its line once."""
    found: dict[tuple[str, int], set[str]] = {}
    lines = re.findall(LINE, output)
    for _, _, verb, step, digest in lines:
        found.setdefault((verb, int(step)), set()).add(digest)
    assert len(lines) == len(found) * int(lines[0][1])
    assert all(len(digests) == 1 for digests in found.values())
    return found


@pytest.mark.slow
def test_ddp_goes_on_under_any_number_of_ranks(run):
    """Two ranks, then three, then one process: each resumes with what the one before saved, on every rank."""
    two, three, one = (told(run("ddp_save_resume", world, "run.pt")) for world in (2, 3, 1))
    assert three["resumed", 4] == two["saved", 4]
    assert one["resumed", 8] == three["saved", 8]
    assert one["saved", 12] != one["resumed", 8]


@pytest.mark.slow
def test_shards_go_on_under_another_number_of_ranks_and_in_one_process(run):
    """FSDP2 on two ranks, then on three, then plain in one process that has no process group."""
    two, three = (told(run("fsdp2_save_resume", world, "run")) for world in (2, 3))
    assert three["resumed", 4] == two["saved", 4]
    alone = run("folder_to_one_process", 1, "run")
    assert f"one process: resumed at step 8, {next(iter(three['saved', 8]))}" in alone


@pytest.mark.slow
def test_tensor_parallel_goes_on_under_more_ranks(run):
    """Two ranks, then four: layers by columns and rows are cut anew."""
    two, four = (told(run("tensor_parallel", world, "run")) for world in (2, 4))
    assert four["resumed", 4] == two["saved", 4]


@pytest.mark.slow
def test_one_file_goes_into_shards(run):
    """Each of two ranks reads its half of the bytes, and the shards are the file's."""
    output = run("one_file_into_fsdp2", 2, "weights.safetensors")
    read = [int(number.replace(",", "")) for number in re.findall(r"read ([\d,]+) of 351,120 bytes", output)]
    assert len(read) == 2
    assert sum(read) == 351120
    assert output.count("every shard is the file's") == 2


@pytest.mark.slow
def test_a_save_in_the_background(run):
    """What is written behind training is the run at the time of the call."""
    output = run("async_save", 2, "run")
    assert output.count("bytes are on the disk") == 2
    assert output.count("step 6 is back, bit for bit") == 2


def test_conversion(run):
    """A file becomes a folder, the folder a file again, and the weights one of their own."""
    output = run("convert", 1, "scratch")
    assert output.count("step 1, equal bit for bit") == 2
    assert "model.safetensors: equal bit for bit" in output


def test_deepspeed_to_plain(run, tmp_path):
    """A folder of three ranks of ZeRO, in a process that has no DeepSpeed."""
    model = tiny()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    train(model, optimizer)
    ZeroMaker(model, optimizer, Shape(2, 3)).write(tmp_path / "checkpoint")
    output = run("deepspeed_to_plain", 1, "checkpoint")
    assert "state for 4 of 4 parameters, matched by name" in output
    assert "4 parameters, equal bit for bit" in output


def test_every_example_is_run() -> None:
    """No script of examples/ is left out: those of proofs and of runs are run beside the other tests of these."""
    others = [Path(__file__).parents[1] / name for name in ("prove/test_processes.py", "run/test_ended.py")]
    text = Path(__file__).read_text() + "".join(path.read_text() for path in others)
    run = [path for path in EXAMPLES.glob("*.py") if f'run("{path.stem}"' in text or f'"{path.name}"' in text]
    assert sorted(EXAMPLES.glob("*.py")) == sorted(run)


@pytest.mark.parametrize(
    ("words", "code", "done"),
    [
        ("terminate called without an active exception", -6, True),
        ("terminate called without an active exception", 1, False),
        ("terminate called after throwing an instance of 'std::bad_alloc'", -6, False),
    ],
)
def test_an_abort_counts_as_the_end_only_where_nothing_else_came_first(words, code, done):
    """A rank that raised, or that C++ ended for another reason, fails its example, whatever it printed before."""
    output = f"rank 0 of 2: saved\n{words}\nRoot Cause (first observed failure):\n[0]:\n  exitcode  : {code} (pid: 7)\n"
    assert aborted_at_its_end(output) is done
