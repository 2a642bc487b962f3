"""Every code block of the documentation and of the README runs, and prints what stands there."""

from __future__ import annotations

import ast
import re

import pytest

from .blocks import blocks_of
from .running import ROOT, agree, real, run_page, simulated

PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])

NOT_RUN = {
    "": "a picture in characters, or what was printed in a run that a test elsewhere makes",
    "text": "output; held where it stands right behind the code that prints it",
    "json": "output",
    "py": "code of a program that is not installed here: it has to parse, and the table below says whose it is",
    "torchrun": "several processes: tests/worlds/test_examples.py runs each script of examples/",
    "yaml": "a setting of another program",
}
"""Tags of blocks that are not run, and why."""

FOREIGN = {
    "lightning": "Lightning is run in tests/dialects, in an environment of its own",
    "accelerate": "accelerate is run in tests/dialects, in an environment of its own",
    "transformers": "transformers is run in tests/dialects, in an environment of its own",
    "ignite": "Ignite is run in tests/integrations, in the environment of tests/dialects",
    "hippynn": "hippynn is run in tests/real",
    "dist_util": "guided-diffusion is on no package index; tests/worlds runs its loader",
    "torch_xla": "no such device here",
}
"""What a `py` block imports, and where that is run instead."""


def _id(page):
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_every_block_does_what_the_page_says(page, tmp_path, sim):
    """Python blocks run in order, console blocks print what stands below them, values are those in the comments."""
    run = run_page(page, tmp_path)
    assert not run.faults, "\n\n".join(map(str, run.faults))


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_what_is_not_run_has_a_reason(page):
    """A block that is neither python nor console has a tag in the table; foreign code parses and says whose it is."""
    for block in blocks_of(page.read_text()):
        assert block.tag in {"python", "console", *NOT_RUN}, f"{page.name}:{block.first}: {block.tag}"
        if block.tag == "py":
            ast.parse(block.code)
            assert any(re.search(rf"\b{name}\b", block.code) for name in FOREIGN), f"{page.name}:{block.first}"
        if block.tag == "torchrun":
            scripts = re.findall(r"examples/(\w+\.py)", block.code)
            assert all((ROOT / "examples" / script).is_file() for script in scripts), f"{page.name}:{block.first}"


@pytest.mark.parametrize(
    ("wanted", "got", "same"),
    [
        ("read 3 tensors in 0.1 s", "read 3 tensors in 12 s", True),
        ("read 3 tensors", "read 4 tensors", False),
        ("a\n...\nd", "a\nb\nc\nd", True),
        ("a  b", "a    b\n", True),
        ("on cuda:0", "on sim:0", True),
        ("", "surprise", False),
    ],
)
def test_output_agrees(wanted, got, same):
    """Times may differ and dots stand for anything; a number, a word or a line more do not pass."""
    assert agree(wanted, got) is same


@pytest.mark.parametrize(
    ("page", "run"),
    [
        ('device = "cuda"', 'device = "sim"'),
        ('model.to("cuda:1")', 'model.to("sim:1")'),
        ("torch.cuda.is_available()", "torch.sim.is_available()"),
        ('map_location={"cuda:7": "cpu"}', 'map_location={"cuda:7": "cpu"}'),
        ("--map cuda:7=cuda:0", "--map cuda:7=sim:0"),
    ],
)
def test_cuda_is_the_simulated_accelerator(page, run):
    """A page says cuda, the test runs sim; tags of devices that nobody has are left alone."""
    assert simulated(page) == run
    assert real(run) == page
