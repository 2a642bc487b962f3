"""picklescan, fickling and modelscan beside unmoor, on the same files: what each says of each.

The scanners live in an environment of their own, made once by pip from peers.txt; their answers are kept in peers.json,
which `python -m benchmarks.hostile` makes anew. Answers are "danger", "suspicious", "clean" or "error"; unmoor's are
"danger", "warning", "refused" (an error that names why) or "clean".
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.dialects.environment import CACHE, Unavailable
from tests.hostile.gadgets import BENIGN, MALICIOUS, named
from tests.hostile.make_hostile import DATA, FILES, HERE, archive
from tests.kept import kept
from unmoor.describe.file import describe_file
from unmoor.errors import FileError

__all__ = ["ALARMS", "PEERS", "STORED", "Unavailable", "laid", "scanned", "told"]

PEERS = ("picklescan", "fickling", "modelscan")
ALARMS = ("danger", "suspicious", "warning", "refused", "error")
"""What counts as an alarm: everything but being waved through."""

STORED = Path(__file__).with_name("peers.json")
_PINS = Path(__file__).with_name("peers.txt")
_SCAN = Path(__file__).with_name("peers_scan.py")
_RUNS = ("runs-code", "suspicious-call")


def laid(folder: Path) -> dict[str, Path]:
    """Every file, by kind and name: dangerous pickles as torch files, hostile files, and harmless pickles."""
    made: dict[str, Path] = {}
    for kind, names in (("malicious", MALICIOUS), ("benign", BENIGN)):
        for number, name in enumerate(names):
            path = made[f"{kind}: {name}"] = folder / f"{kind}_{number}.pt"
            data = MALICIOUS[name]() if kind == "malicious" else named(name)
            path.write_bytes(archive([("a/data.pkl", data), ("a/version", b"3\n"), ("a/data/0", DATA)]))
    for name, (_, verdict, _) in FILES.items():
        made[f"{'malicious' if verdict in _RUNS else 'broken'}: file {name}"] = HERE / name
    return made


def told(path: Path) -> str:
    """What unmoor says of one file."""
    try:
        found = {finding.severity for finding in describe_file(path).findings if finding.code in _RUNS}
    except FileError:
        return "refused"
    return "danger" if "danger" in found else "warning" if found else "clean"


def scanned(paths: Iterable[Path]) -> dict[str, dict[str, str]]:
    """What the peers say of files. Raises Unavailable where pip cannot make their environment."""
    done = subprocess.run(
        [str(_python()), str(_SCAN)], input=json.dumps([str(path) for path in paths]), capture_output=True, text=True,
        check=False, timeout=1200,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"the scanners stopped: {done.stderr[-2000:]}")
    made: dict[str, dict[str, str]] = json.loads(done.stdout)
    return made


def _python() -> Path:
    key = hashlib.sha256(f"{sys.version_info[:2]}{_PINS.read_text()}".encode()).hexdigest()[:16]
    folder = kept(CACHE / f"scanners-{key}", lambda scratch: _build(scratch / "environment"))
    return folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def _build(folder: Path) -> Path:
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--requirement", str(_PINS)]
    for command in ([sys.executable, "-m", "venv", str(folder)], pip):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unavailable(f"pip cannot build the environment of the scanners: {done.stderr.strip()[-300:]}")
    return folder
