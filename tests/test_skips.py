"""Nothing is skipped in CI without failing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SKIPS = {
    "a package": "import pytest\ndef test_one():\n    pytest.importorskip('no_package', reason='it is not here')\n",
    "a mark": "import pytest\n@pytest.mark.skipif(True, reason='it is not here')\ndef test_one(): pass\n",
    "a fixture": "import pytest\n@pytest.fixture\ndef f(): pytest.skip('it is not here')\ndef test_one(f): pass\n",
    "a module": "import pytest\npytest.skip('it is not here', allow_module_level=True)\n",
}
GPU = "import pytest\n@pytest.mark.gpu\ndef test_one(): pytest.skip('it is not here')\n"


def run(folder: Path, text: str, ci: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(text + "def test_two(): pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.skips", "-p", "no:cacheprovider", str(folder)]
    environment = {**os.environ, "CI": ci, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder)


@pytest.mark.parametrize("what", SKIPS)
def test_a_skip_is_a_failure_in_ci_and_nowhere_else(tmp_path: Path, what: str) -> None:
    """The absence that lets a test skip at home is named as a failure in CI."""
    assert run(tmp_path, SKIPS[what], "").returncode in (0, 5)
    done = run(tmp_path, SKIPS[what], "true")
    assert done.returncode in (1, 2)
    assert "it is not here" in done.stdout


def test_a_test_of_a_real_accelerator_may_skip_in_ci(tmp_path: Path) -> None:
    """CI has no accelerator, so a test that is marked gpu skips there too."""
    assert run(tmp_path, GPU, "true").returncode == 0
