"""Packages of peers that are not among this project's dependencies, made importable in this process.

Most come from the environment in which the tests of other programs' files run (`tests/dialects/environment.py`); what
no test needs is fetched here, pinned, without what it would bring along: torch stays this environment's own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.dialects import environment
from tests.kept import kept

__all__ = ["PINNED", "Unavailable", "fetched", "reach"]

Unavailable = environment.Unavailable

PINNED: Final = {"moonclip": "moonclip==0.3.1"}
"""Package -> what pip is asked for."""


def reach() -> None:
    """Make the packages of the tests' other environment importable, after this one's own. Raises Unavailable."""
    root = environment.built().parents[1]
    for packages in sorted(root.glob("lib/python*/site-packages")) or [root / "Lib" / "site-packages"]:
        _append(packages)


def fetched(package: str) -> None:
    """Make one pinned package importable. Raises Unavailable."""
    wanted = PINNED[package]
    tag = f"{wanted}-cp{sys.version_info[0]}{sys.version_info[1]}"
    _append(kept(environment.CACHE.parent / "peers" / tag, lambda scratch: _install(wanted, scratch / "packages")))


def _install(wanted: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment.settings())
    if done.returncode:
        raise Unavailable(f"pip cannot install {wanted}: {(done.stderr.strip().splitlines() or ['no reason'])[-1]}")
    return folder


def _append(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
