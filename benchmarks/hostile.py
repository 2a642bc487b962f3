"""Dangerous pickles, broken files and harmless ones, as unmoor, picklescan, fickling and modelscan judge them.

python -m benchmarks.hostile            prints the table and keeps the answers in tests/hostile/peers.json
python -m benchmarks.hostile --misses   names what each waves through
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.hostile.peers import ALARMS, PEERS, STORED, Unavailable, laid, scanned, told

SCANNERS = ("unmoor", *PEERS)


def answers() -> dict[str, dict[str, str]]:
    """File -> scanner -> what it says."""
    with tempfile.TemporaryDirectory() as scratch:
        files = laid(Path(scratch))
        theirs = scanned(files.values())
        return {name: {"unmoor": told(path), **theirs[str(path)]} for name, path in files.items()}


def counted(rows: dict[str, dict[str, str]]) -> Iterator[tuple[str, list[int]]]:
    """Kind of file, in words, and the alarms of each scanner."""
    for kind, words in (
        ("malicious", "dangerous, flagged"),
        ("broken", "broken or bombs, refused"),
        ("benign", "harmless, flagged"),
    ):
        own = [row for name, row in rows.items() if name.startswith(kind)]
        yield f"{words}, of {len(own)}", [sum(row[n].partition(":")[0] in ALARMS for row in own) for n in SCANNERS]


def table(rows: dict[str, dict[str, str]]) -> list[str]:
    """Alarms of each scanner by kind of file."""
    lines = [f"{'files':<38}" + "".join(f"{name:>12}" for name in SCANNERS)]
    lines += [f"{words:<38}" + "".join(f"{number:>12}" for number in counts) for words, counts in counted(rows)]
    return lines


def _alarm(said: str) -> bool:
    return said.partition(":")[0] in ALARMS


def main() -> int:
    try:
        rows = answers()
    except Unavailable as reason:
        print(reason)
        return 1
    STORED.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
    print("\n".join(table(rows)))
    if "--misses" in sys.argv:
        for scanner in SCANNERS:
            missed = [n for n, row in rows.items() if n.startswith("malicious") and not _alarm(row[scanner])]
            false = [n for n, row in rows.items() if n.startswith("benign") and _alarm(row[scanner])]
            print(f"\n{scanner}\n  missed: {', '.join(missed) or 'none'}\n  false alarms: {', '.join(false) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
