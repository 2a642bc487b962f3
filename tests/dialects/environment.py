"""The environment in which other programs write their checkpoints: a virtual environment of its own, made once.

`python()` gives its interpreter, and builds the environment where the cache lacks it: torch first and alone, then each
line of constraints.txt without looking for further dependencies, so that nothing pulls a second torch. A file
constraints-SIDE.txt holds what cannot stand beside the rest; it goes to a folder of its own, which `settings(SIDE)`
puts first on the path. Where pip cannot do it the test that asked is skipped, with pip's own words; where the
environment says CI=true it fails instead.

    python -m tests.dialects.environment        builds it and prints the interpreter
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kept import kept

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "environments"
CONSTRAINTS = Path(__file__).with_name("constraints.txt")
SIDES = {path.stem.removeprefix("constraints-"): path for path in sorted(CONSTRAINTS.parent.glob("constraints-*.txt"))}

SETTINGS = {
    "DS_BUILD_OPS": "0",
    "DS_ACCELERATOR": "cpu",
    "HF_HUB_OFFLINE": "1",
    "HIPPYNN_PROGRESS": "none",
    "HIPPYNN_USE_CUSTOM_KERNELS": "False",
    "OMP_NUM_THREADS": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "WANDB_MODE": "disabled",
}
"""What every process of this environment gets: no kernels to compile, no hub, one thread, the tests importable."""


class Unavailable(RuntimeError):
    """pip could not build the environment."""


def settings(side: str = "") -> dict[str, str]:
    """The variables for a process of this environment, with the packages of one side first where one is named."""
    path = [str(CACHE / key() / "sides" / side)] if side else []
    return {**os.environ, **SETTINGS, "PYTHONPATH": os.pathsep.join([*path, str(ROOT)])}


def python() -> Path:
    """The interpreter of the environment; builds it where the cache lacks it."""
    try:
        return built()
    except Unavailable as reason:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(reason))


def built() -> Path:
    """The interpreter of the environment. Raises Unavailable where pip cannot build it."""
    # Scripts of a virtual environment name the folder in which it was made, a scratch one here: nothing calls a script,
    # all programs start with `python -m`.
    return _interpreter(kept(CACHE / key(), lambda scratch: _build(scratch / "environment")))


def key() -> str:
    """What the environment is made of, as a folder name: the versions and the Python that runs them."""
    text = "".join([f"{sys.version_info[:2]}", *(path.read_text() for path in (CONSTRAINTS, *SIDES.values()))])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _interpreter(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _build(folder: Path) -> Path:
    torch = next(line for line in CONSTRAINTS.read_text().splitlines() if line.startswith("torch=="))
    pip = [str(_interpreter(folder)), "-m", "pip", "install", "--quiet"]
    _call([sys.executable, "-m", "venv", str(folder)])
    _call([*pip, torch])
    pip += ["--no-deps", "--no-build-isolation", "--requirement"]
    _call([*pip, str(CONSTRAINTS)])
    for side, lines in SIDES.items():
        _call([*pip, str(lines), "--target", str(folder / "sides" / side)])
    return folder


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=settings())
    if done.returncode:
        words = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr.strip()]
        raise Unavailable(f"pip cannot build the environment of the other programs: {words[-1]}")


if __name__ == "__main__":
    print(built())
