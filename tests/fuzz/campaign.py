"""A run of the fuzzer over all targets, in a process of its own that is watched: what was tried, and what broke.

python -m tests.fuzz.campaign SECONDS SEED [TARGET ...]    prints a line of JSON at the end
"""

from __future__ import annotations

import base64
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.choices import Files, packed

__all__ = ["Crash", "Outcome", "fuzzed"]

ROOT = Path(__file__).parents[2]
_MOST_CRASHES = 40


@dataclass(frozen=True)
class Crash:
    """An input that broke its target, as small as it could be made: what came out, and where from."""

    target: str
    what: str
    where: str
    files: str

    @property
    def kind(self) -> str:
        """What is the same for all inputs that break it alike."""
        return f"{self.target} {self.what.partition(':')[0]} {self.where}"


@dataclass
class Outcome:
    """How often each target was run, how many inputs were accepted and refused, and the crashes, one of a kind."""

    seconds: float = 0
    executions: dict[str, int] = field(default_factory=dict)
    accepted: dict[str, int] = field(default_factory=dict)
    crashes: list[Crash] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(self.executions.values())

    @classmethod
    def of_json(cls, found: dict[str, Any]) -> Outcome:
        return cls(
            found["seconds"], found["executions"], found["accepted"], [Crash(**crash) for crash in found["crashes"]]
        )


def fuzzed(seconds: float, *, seed: int, targets: Iterable[str] = ()) -> Outcome:
    """Fuzz for so many seconds, all targets or those named, in a process of its own; one that dies is a crash."""
    command = [sys.executable, "-W", "error", "-m", "tests.fuzz.campaign", str(seconds), str(seed), *targets]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=60 + 2 * seconds)
    try:
        return Outcome.of_json(json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        died = f"the process ended with {done.returncode}: {done.stderr[-2000:]}"
        return Outcome(seconds, crashes=[Crash("", died, "", "")])


class Fuzzer:
    """Tries inputs one after another within one process."""

    def __init__(self, folder: Path, guard: Any) -> None:
        from tests.fuzz.targets import TARGETS

        self.folder, self.guard, self.targets = folder, guard, TARGETS
        self.outcome = Outcome()
        self.kinds: set[str] = set()

    def warm(self, names: Iterable[str]) -> None:
        """Look at every seed once, unwatched, so that whatever is imported late is there."""
        from tests.fuzz.targets import seeds_of

        guard, self.guard = self.guard, None
        for name in names:
            for files in seeds_of(name):
                self.tried(name, files)
        self.guard = guard

    def tried(self, name: str, files: Files) -> Crash | None:
        """One execution."""
        try:
            made = self.targets[name].look(files, self.folder, self.guard, self.other(name))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            return Crash(
                name, f"{type(error).__name__}: {error}"[:2000], _where(error), base64.b85encode(packed(files)).decode()
            )
        self.outcome.accepted[name] = self.outcome.accepted.get(name, 0) + (not isinstance(made, BaseException))
        return None

    def count(self, name: str, files: Files) -> None:
        """One execution that counts; a crash of a new kind is made small and kept."""
        self.outcome.executions[name] = self.outcome.executions.get(name, 0) + 1
        crash = self.tried(name, files)
        if crash is not None and crash.kind not in self.kinds and len(self.kinds) < _MOST_CRASHES:
            self.kinds.add(crash.kind)
            print(f"crash: {crash.kind}: {crash.what[:300]}", file=sys.stderr, flush=True)
            quick = not crash.what.startswith("TooLong")
            self.outcome.crashes.append(smallest(files, crash, lambda f: self.tried(name, f)) if quick else crash)

    def other(self, name: str) -> Path | None:
        """A sound checkpoint to compare with: the first seed."""
        from tests.fuzz.looks import _laid
        from tests.fuzz.targets import seeds_of

        place = self.folder / "other" / name
        if not place.is_dir():
            place.mkdir(parents=True)
            seeds = seeds_of(name)
            if seeds:
                _laid(seeds[0], place)
        return next((found for found in (place / "one" / "f.pt", place / "d") if found.exists()), None)


def _where(error: BaseException) -> str:
    """The innermost line of this package that the error went through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f"{Path(frame.filename).name}:{frame.name}" for frame in frames if "/unmoor/" in frame.filename]
    return own[-1] if own else ""


def smallest(files: Files, crash: Crash, again: Callable[[Files], Crash | None], seconds: float = 3) -> Crash:
    """The same crash by an input from which files and pieces of files were taken as long as it stays."""
    stop = time.monotonic() + seconds
    best, found = dict(files), crash

    def still(smaller: Files) -> bool:
        nonlocal best, found
        made = again(smaller)
        if made is None or made.kind != crash.kind:
            return False
        best, found = smaller, made
        return True

    for name in sorted(files):
        if len(best) > 1:
            still({other: data for other, data in best.items() if other != name})
    for name in sorted(best):
        size = len(best[name]) // 2
        while size and time.monotonic() < stop:
            at = 0
            while at < len(best[name]) and time.monotonic() < stop:
                data = best[name]
                if not still({**best, name: data[:at] + data[at + size :]}):
                    at += size
            size //= 2
    return found


def run(seconds: float, seed: int, names: list[str]) -> Outcome:
    """Fuzz within this process, which is watched from now on."""
    from tests.fuzz.guards import Guard
    from tests.fuzz.targets import TARGETS

    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        guard = Guard(Path(scratch))
        fuzzer = Fuzzer(Path(scratch), guard)
        names = names or list(TARGETS)
        fuzzer.warm(names)
        fuzzer.outcome.accepted.clear()
        guard.watch()
        rngs = {name: Random(f"{seed} {name}") for name in names}
        begin = time.monotonic()
        while time.monotonic() - begin < seconds:
            for name in names:
                for _ in range(8):
                    fuzzer.count(name, TARGETS[name].made(rngs[name]))
            gc.collect(0)
        fuzzer.outcome.seconds = time.monotonic() - begin
        return fuzzer.outcome


def main() -> None:
    sys.modules["torch"] = sys.modules["numpy"] = None  # type: ignore[assignment]  # whoever wants them gets ImportError
    warnings.simplefilter("error")
    outcome = run(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
    print(json.dumps(asdict(outcome)))


if __name__ == "__main__":
    main()
