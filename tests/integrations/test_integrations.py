"""Each integration with its program, in a process of the programs' environment: killed, damaged, resumed, compared."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.dialects import environment

pytestmark = [pytest.mark.real, pytest.mark.slow]

SCRIPTS = {
    "lightning": ("lightning", "lightning.pytorch"),
    "pytorch_lightning": ("lightning", "pytorch_lightning"),
    "transformers": ("transformers",),
    "ignite": ("ignite",),
    "accelerate": ("accelerate",),
}
"""What is tried -> the script, and its arguments behind the folder."""


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_run_that_was_killed_goes_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    """Killed within a save and resumed, it ends as the uninterrupted run; what is broken is never taken."""
    script, *words = SCRIPTS[name]
    settings = environment.settings()
    settings["PYTHONPATH"] = os.pathsep.join([settings["PYTHONPATH"], str(environment.ROOT / "src")])
    command = [str(environment.python()), "-m", f"tests.integrations.scripts.{script}", str(tmp_path), *words]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=environment.ROOT, env=settings, timeout=300
    )
    assert done.returncode == 0, f"{done.stdout[-1000:]}\n{done.stderr[-4000:]}"
