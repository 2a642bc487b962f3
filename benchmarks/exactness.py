"""The share of the exactness matrices that each way of carrying a run gets right.

    python -m benchmarks.exactness                      every matrix, every peer; a few minutes
    python -m benchmarks.exactness --matrix schedulers --peer unmoor --peer torch

The cells are those of the tests (`tests/matrix`). A cell is right where the resumed run is, bit for bit, the run that
was never interrupted; a peer that cannot express it scores it as failed, with the reason. Each peer runs in a process
of its own, one after another, over the same cells.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tests.matrix import by_name, loaders, optimizers, schedulers, wrappers
from tests.matrix.carriers import Carrier, Unmoor
from tests.matrix.report import Outcome, reasons, table
from tests.matrix.wrapper_kinds import KINDS

import unmoor

from .peers import PEERS


def _optimizers(carrier: Carrier) -> Iterable[Outcome]:
    return optimizers.run(carrier, full=False)


def _by_name(carrier: Carrier) -> Iterator[Outcome]:
    """Situations whose outcome is fixed by hand; those that must be refused are no cells of this benchmark."""
    for situation in by_name.SITUATIONS:
        if situation.expected[0] == "refused":
            continue
        for alike in (False, True):
            cell = f"{situation.name}, {'one shape' if alike else 'shapes differ'}"
            with tempfile.TemporaryDirectory() as folder:
                verdict, reason = _reshaped(situation, carrier, Path(folder) / "run.pt", alike=alike)
            yield Outcome(situation.name, "by name", verdict, cell, reason)


def _reshaped(situation: by_name.Situation, carrier: Carrier, path: Path, *, alike: bool) -> tuple[Any, str]:
    saved = by_name.build(situation.saved, situation.groups or ((situation.saved, 0.1),), alike=alike)
    by_name.step(saved)
    groups = tuple((members, by_name.LIVE_LR) for members in situation.live_groups or (situation.live,))
    live = by_name.build(situation.live, groups, alike=alike, shapes=situation.origin)
    try:
        carrier.save(path, model=saved.model, optimizer=saved.optimizer)
        if isinstance(carrier, Unmoor):
            unmoor.restore(path, model=live.model, optimizer=live.optimizer, **situation.modes)
        else:
            if hasattr(carrier, "lenient"):
                carrier.lenient = bool({"missing", "unexpected"} & situation.modes.keys())
            carrier.restore(path, model=live.model, optimizer=live.optimizer)
    except Exception as error:  # noqa: BLE001 - whatever the carrier raises is the cell's reason
        return "refused", f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    rates = tuple(group["lr"] for group in live.optimizer.param_groups)
    if by_name.right(situation, saved, live) and rates == situation.rates:
        return "equal", ""
    return "differs", "state or learning rate at the wrong parameter"


def _judged(module: Any) -> Callable[[Carrier], Iterator[Outcome]]:
    def outcomes(carrier: Carrier) -> Iterator[Outcome]:
        with tempfile.TemporaryDirectory() as folder:
            for number, case in enumerate(module.cases()):
                place = Path(folder) / str(number)
                place.mkdir()
                yield module.judge(case, carrier, place)

    return outcomes


def _wrappers(carrier: Carrier) -> Iterator[Outcome]:
    """The cells in which both sides hold one model; that the others are refused is the tests' business."""
    for outcome in wrappers.outcomes(carrier):
        kinds = [KINDS[name] for name in outcome.cell.split(" -> ")]
        if wrappers.expected(*kinds) != "refused":
            yield outcome


BRIEF: Final = 110

MATRICES: Final[dict[str, Callable[[Carrier], Iterable[Outcome]]]] = {
    "optimizers": _optimizers,
    "groups and names": _by_name,
    "wrappers": _wrappers,
    "schedulers": _judged(schedulers),
    "data position": _judged(loaders),
}
"""Matrix -> its outcomes for one carrier."""


def measure(peer: str, matrix: str) -> list[dict[str, Any]]:
    """The outcomes of one matrix for one peer, from a process of its own."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.exactness", "--one", peer, matrix, file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{peer}, {matrix}: {done.stderr[-2000:]}")
        found: list[dict[str, Any]] = json.loads(Path(file.name).read_text())
        return found


def _one(peer: str, matrix: str, file: str) -> None:
    warnings.simplefilter("ignore")
    outcomes = [asdict(o) for o in MATRICES[matrix](PEERS[peer]()) if o.verdict != "illegal"]
    Path(file).write_text(json.dumps(outcomes))


def report(found: dict[tuple[str, str], list[dict[str, Any]]]) -> str:
    """One table over all matrices and peers, then each peer's reasons."""
    peers = list(dict.fromkeys(peer for peer, _ in found))
    flat = [
        Outcome(matrix, peer, o["verdict"], o["cell"], _brief(o["reason"]))
        for (peer, matrix), outcomes in found.items()
        for o in outcomes
    ]
    text = [table(flat, head="equal cells", columns=peers), _percent(flat, peers)]
    for peer in peers:
        own = [o for o in flat if o.column == peer]
        for verdict, words in (("refused", "cannot"), ("differs", "gets wrong")):
            why = reasons([o for o in own if o.verdict == verdict], verdict)  # type: ignore[arg-type]
            if why:
                text.append(f"\n{PEERS[peer]().name} {words}:\n{_top(why)}")
    return "\n".join(text)


def _percent(flat: Sequence[Outcome], peers: Sequence[str]) -> str:
    shares = []
    for peer in peers:
        own = [o for o in flat if o.column == peer]
        shares.append(f"{PEERS[peer]().name} {100 * sum(o.verdict == 'equal' for o in own) / len(own):.1f}%")
    return "\nshare of equal cells: " + ", ".join(shares)


def _brief(reason: str) -> str:
    """The beginning of a reason, without the names in it, so that like ones count together."""
    text = re.sub(r'"[^"]*"(, )?', "", " ".join(reason.split()))
    return text if len(text) <= BRIEF else text[:BRIEF].rsplit(" ", 1)[0] + " ..."


def _top(text: str, lines: int = 12) -> str:
    kept = text.splitlines()
    return "\n".join(kept[:lines] + ([f"       and {len(kept) - lines} more lines"] if len(kept) > lines else []))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--matrix", action="append", choices=[*MATRICES])
    parser.add_argument("--peer", action="append", choices=[*PEERS])
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        return _one(*chosen.one)
    found = {}
    for matrix in chosen.matrix or MATRICES:
        for peer in chosen.peer or PEERS:
            found[peer, matrix] = measure(peer, matrix)
            print(f"{matrix}: {peer} done", file=sys.stderr)
    print(report(found))
    return None


if __name__ == "__main__":
    main()
