"""What a run survives: kills, power cuts, bad disks, flipped bits, hostile files, fuzzing; others beside it.

    python -m benchmarks.survival                     every table in its long form (an hour); goes on where it stopped
    python -m benchmarks.survival --short             in the form of `make test` (some minutes)
    python -m benchmarks.survival --what kills rot    some: kills disks referee rot hostile fuzz soak
    python -m benchmarks.survival --again             anew what the file of figures has already
    python -m benchmarks.survival --render            measure nothing: docs/reliability.md from the stored figures

Each table counts what was tried and what held; the tests that hold the same in short stand in tests/crash, disks,
chaos, rot, hostile and fuzz. Figures go to docs/reliability.json after each table, and from there into the page.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from .common import table

__all__ = ["JSON", "PAGE", "filled", "main", "rendered"]

ROOT: Final = Path(__file__).parents[1]
JSON: Final = ROOT / "docs" / "reliability.json"
PAGE: Final = ROOT / "docs" / "reliability.md"
Rows = list[list[str]]


def kills(*, short: bool) -> Rows:
    """Processes killed at the operations of their saves and at random times, and power cut at any moment."""
    from tests.crash.figures import figures

    words = {"operation": "killed at an operation", "random": "killed at a random time", "power": "power cut"}
    found: dict[str, Counter[str]] = {}
    for row in figures(long=not short):
        found.setdefault(row.kind, Counter()).update(tried=row.tried, survived=row.survived)
    return [["what happens to a save", "tried", "old or new, complete"]] + [
        [words[kind], f"{counts['tried']:,}", f"{counts['survived']:,}"] for kind, counts in found.items()
    ]


def disks(*, short: bool) -> Rows:
    """Refusals of the system at the calls of every verb."""
    from tests.disks.cells import figures
    from tests.faults.zygote import Zygote

    with Zygote("tests.disks.verbs") as zygote:
        found = figures(zygote, few=short)
    words = {"writes": "verbs that write", "reads": "verbs that read"}
    return [["a disk that refuses", "tried", "named error, nothing lost"]] + [
        [words[kind], f"{tried:,}", f"{met:,}"] for kind, (tried, met) in found.items()
    ]


def referee(*, short: bool) -> Rows:
    """An outside referee's verdicts on a script around Run, and on the trainers that it brings along."""
    from tests.chaos.referee import TRAINERS, judged, trainer

    points = 3 if short else 0
    made = {"unmoor.Run": judged(points=points), "unmoor.Run, in the background": judged("--behind", points=points)}
    if not short:
        made |= {name: trainer(name) for name in TRAINERS}
    head = ["ckpt-chaos", "kill points", "exact resume", "hard failure", "silent divergence", "lost work"]
    return [head] + [[name, *_verdicts(verdicts)] for name, verdicts in made.items()]


def _verdicts(verdicts: Counter[str]) -> list[str]:
    words = ("PASS", "HARD_FAIL", "SILENT_DIVERGENCE", "LOST_WORK")
    return [f"{sum(verdicts[word] for word in words)}", *(str(verdicts[word]) for word in words)]


def rot(*, short: bool) -> Rows:
    """Every bit of small files flipped, and random damage to a large one; torch.load beside it."""
    from tests.rot.flips import large
    from tests.rot.flips import table as flips

    made = flips(251 if short else 1) | {
        f"50 MB, {what}": tally for what, tally in large(50 if short else 10_000).items()
    }
    head = [
        "flipped",
        "tried",
        "verify finds",
        "restore: refused",
        "same state",
        "ANOTHER state",
        "torch.load: another",
    ]
    rows = [head]
    for name, tally in made.items():
        counts = [tally.tried, tally.verify["found"] + tally.verify["raised"], tally.restore["raised"],
                  tally.restore["same"], tally.restore["SILENT"]]  # fmt: skip
        beside = f"{tally.torch['SILENT']:,}" if tally.torch else "-"
        rows.append([name, *(f"{number:,}" for number in counts), beside])
    return rows


def hostile(*, short: bool) -> Rows:
    """Dangerous, broken and harmless files as unmoor and the scanners judge them; stored answers in the short form."""
    from tests.hostile.peers import STORED

    from .hostile import SCANNERS, answers, counted

    rows = json.loads(STORED.read_text()) if short else answers()
    return [["files", *SCANNERS], *([words, *map(str, numbers)] for words, numbers in counted(rows))]


def fuzz(*, short: bool) -> Rows:
    """Inputs made by the fuzzers, and what they broke."""
    from tests.fuzz.campaign import fuzzed

    made = fuzzed(20 if short else 600, seed=1)
    accepted = sum(made.accepted.values())
    counts = (len(made.executions), made.total, accepted, made.total - accepted, len(made.crashes))
    return [["fuzzed readers", "inputs", "read", "refused", "crashes"], [f"{count:,}" for count in counts]]


def soak(*, short: bool) -> Rows:
    """A training that is killed again and again."""
    from .soak import EVERY, soaked

    made = soaked(1 if short else 30)
    same = "yes" if made.same and not made.wrong else "NO"
    head = ["a training of", "checkpoint every", "ended", "steps done again", "most at once", "exact at the end"]
    ended = f"{sum(made.kills.values())} times"
    return [head, [f"{made.steps:,} steps", f"{EVERY} steps", ended, f"{made.lost:,}", str(made.most), same]]


TABLES: Final[dict[str, Callable[..., Rows]]] = {
    "kills": kills,
    "disks": disks,
    "referee": referee,
    "rot": rot,
    "hostile": hostile,
    "fuzz": fuzz,
    "soak": soak,
}


def rendered(figures: dict[str, Any]) -> dict[str, str]:
    """Table by name, as Markdown; one of the short form says so."""
    short = "\n\nIn the short form, of which `make test` holds the same."
    return {
        name: table([tuple(row) for row in made["rows"]]) + (short if made["form"] == "short" else "")
        for name, made in figures.items()
    }


def filled(text: str, figures: dict[str, Any]) -> str:
    """A page with its tables between their marks."""
    for name, made in rendered(figures).items():
        start, stop = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        head, found, rest = text.partition(start)
        if found and stop in rest:
            text = f"{head}{start}\n{made}\n\n{rest[rest.index(stop) :]}"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", nargs="+", choices=tuple(TABLES), default=list(TABLES))
    for flag in ("--short", "--again", "--render"):
        parser.add_argument(flag, action="store_true")
    chosen = parser.parse_args()
    figures: dict[str, Any] = json.loads(JSON.read_text()) if JSON.is_file() else {}
    for name in [] if chosen.render else chosen.what:
        if chosen.again or name not in figures or (figures[name]["form"] != "long" and not chosen.short):
            rows = TABLES[name](short=chosen.short)
            figures = json.loads(JSON.read_text()) if JSON.is_file() else {}  # another may have measured meanwhile
            figures[name] = {"form": "short" if chosen.short else "long", "rows": rows}
            JSON.write_text(json.dumps(figures, indent=1) + "\n")
        print(f"{rendered(figures)[name]}\n", flush=True)
    PAGE.write_text(filled(PAGE.read_text(), figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
