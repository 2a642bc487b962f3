"""What other programs wrote themselves is listed: every checkpoint whole, with the step at which the run was."""

from __future__ import annotations

import pytest

import unmoor

from .made import made
from .training import AFTER, BEFORE

BOTH = [BEFORE + AFTER, BEFORE]

FOLDERS = {
    ("lightning", "fit"): ("", "lightning", BOTH),
    ("transformers", "safetensors"): ("run", "hf-trainer", BOTH),
    ("accelerate", "safetensors"): ("", "accelerate", [BEFORE]),
    ("accelerate", "ranks"): ("", "accelerate", [BEFORE]),
    ("deepspeed", "zero0"): ("saved", "deepspeed", [BEFORE]),
    ("deepspeed", "zero2"): ("saved", "deepspeed", [BEFORE]),
    ("deepspeed", "zero3"): ("saved", "deepspeed", [BEFORE]),
    ("dcp", "ranks"): ("", "dcp", [BEFORE]),
    ("diffusion", "triple"): ("run", "guided-diffusion", [BEFORE, 0]),
}
"""Program and variant -> where its checkpoints lie, who wrote them, and their steps, the newest first."""


@pytest.mark.parametrize(("program", "variant"), FOLDERS)
def test_what_a_program_wrote_is_listed(program: str, variant: str) -> None:
    """Nothing of it is taken for broken, and the newest is the one that the run would go on from."""
    below, dialect, steps = FOLDERS[program, variant]
    found = unmoor.runs(made(program, variant) / below)
    own = [row for row in found if row.dialect == dialect]
    assert [row.step for row in own] == steps
    assert all(row.complete for row in found), str(found)
    assert found.newest is own[0]
