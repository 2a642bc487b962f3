"""Checkpoints that other programs really wrote, read and resumed through unmoor. One row of `CASES` each."""

import re
import subprocess
import sys

import pytest

import unmoor
from tests.real.compare import differences

from .made import VARIANTS
from .resuming import CASES, Case

pytestmark = [pytest.mark.real, pytest.mark.slow]

every_case = pytest.mark.parametrize("case", CASES, ids=str)

ELSEWHERE = {
    ("accelerate", "ranks"): "test_ranks.py",
    ("hippynn", "pair"): "test_hippynn.py",
    ("deepspeed_layouts", "all"): "test_repartition.py",
}
"""What cannot be resumed by a function of one process with plain PyTorch, and where it is resumed."""


def test_every_checkpoint_that_is_written_is_resumed() -> None:
    """No writer's output stands outside the table, and no row is about one that is not written."""
    written = {(program, variant) for program, variants in VARIANTS.items() for variant in variants}
    assert {(case.program, case.variant) for case in CASES} | set(ELSEWHERE) == written


@every_case
def test_the_next_steps_are_those_of_the_uninterrupted_run(case: Case) -> None:
    """Parameters, buffers, optimizer state, losses, rates and draws after three more steps are equal, bit for bit."""
    resumed = case.run()
    assert not list(differences(resumed.wanted, resumed.got))
    assert roles(resumed.report.restored) == set(case.restored)


def roles(labels: tuple[str, ...]) -> set[str]:
    """The role words of labels such as model[0]."""
    return {re.sub(r"\[.*\]$", "", label) for label in labels}


@every_case
def test_the_program_is_named(case: Case) -> None:
    """The catalog says who wrote the checkpoint, and has nothing to say against it."""
    catalog = unmoor.describe(case.checkpoint)
    assert catalog.dialect == case.dialect
    assert [str(finding) for finding in catalog.findings if finding.severity == "error"] == []


@every_case
def test_load_gives_every_tensor_that_is_described(case: Case) -> None:
    """A bare load gives a tree that holds each tensor of the catalog at its place, with its shape and dtype."""
    catalog = unmoor.describe(case.checkpoint)
    tree = unmoor.load(case.checkpoint, model_device="cpu")
    assert catalog.tensors
    for entry in catalog.tensors:
        found = tree
        for key in entry.keys:
            found = found.state[key] if isinstance(found, unmoor.Opaque) else found[key]
        assert (tuple(found.shape), str(found.dtype)) == (entry.shape, f"torch.{entry.dtype}"), entry.path


@every_case
def test_inspect_fits_eighty_columns(case: Case) -> None:
    """The command prints a page whose lines are no wider than the terminal, and names the writer in its first ones."""
    command = [sys.executable, "-m", "unmoor", "inspect", str(case.checkpoint)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"COLUMNS": "80"})
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    word = WRITERS.get(case.dialect)
    assert word is None or word in " ".join(lines[:2])


WRITERS = {
    "accelerate": "accelerate",
    "deepspeed": "DeepSpeed",
    "guided-diffusion": "guided-diffusion",
    "hf-trainer": "HF Trainer",
    "lightning": "Lightning",
    "timm": "timm",
    "torchtitan": "torchtitan",
}
"""Dialect -> the program in words."""

STAY = {
    "lightning-bf16": "the simulated device has no autocast",
    "lightning-fp16": "the simulated device has no autocast",
    "transformers-safetensors": "the program took AdamW's fused kernel, which the simulated device lacks",
}
"""Rows whose arithmetic another device cannot repeat, and why."""

MOVED = [case for case in CASES if str(case) not in STAY]


@pytest.mark.parametrize("case", MOVED, ids=str)
def test_a_run_saved_on_the_cpu_goes_on_on_another_device(case: Case, sim: object) -> None:
    """Restored onto sim:0, the next steps are still those of the uninterrupted run."""
    resumed = case.run("sim:0")
    assert not list(differences(resumed.wanted, resumed.got))


@pytest.mark.parametrize("left_out", ["optimizer", "scheduler", "rng"])
def test_what_is_not_restored_shows(left_out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: leave out any one part of a run and the next steps differ."""
    (case,) = (case for case in CASES if str(case) == "accelerate-safetensors")
    restore = unmoor.restore

    def without(path: object, **objects: object) -> object:
        return restore(path, **{**objects, left_out: False if left_out == "rng" else None})

    monkeypatch.setattr(unmoor, "restore", without)
    resumed = case.run()
    assert list(differences(resumed.wanted, resumed.got))
