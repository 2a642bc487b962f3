"""Fuzzing that coverage guides, by atheris: its bytes are the input itself, or the choices of a target's generator.

python -m tests.fuzz.guided TARGET SECONDS SEED    ends at the first crash, with its input on stderr
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import warnings
from importlib.util import find_spec
from pathlib import Path

from tests.fuzz.campaign import ROOT, Crash, Outcome
from tests.fuzz.choices import Choices, Files

__all__ = ["guided", "is_here"]

_MARK = "crashed: "


def is_here() -> bool:
    """Whether atheris is installed."""
    return find_spec("atheris") is not None


def guided(target: str, seconds: int, *, seed: int, corpus: Path | None = None) -> Outcome:
    """Fuzz one target in a process of its own, until it crashes or the time is over; `corpus` keeps what it learns."""
    import json
    import os

    command = [
        sys.executable,
        "-m",
        "tests.fuzz.guided",
        target,
        str(seconds),
        str(seed),
        *([str(corpus)] if corpus else []),
    ]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=120 + 2 * seconds, check=False
    )
    rows = [line.removeprefix(_MARK) for line in done.stderr.splitlines() if line.startswith(_MARK)]
    crashes = [Crash(**json.loads(row)) for row in rows]
    stats = [line for line in done.stderr.splitlines() if line.startswith("stat::number_of_executed_units:")]
    if not stats and not crashes:
        crashes = [Crash(target, f"the process ended with {done.returncode}: {done.stderr[-2000:]}", "", "")]
    return Outcome(seconds, {target: int(stats[0].split()[-1]) if stats else 0}, {}, crashes)


def _input(name: str, data: bytes) -> Files:
    """The first byte tells whether the rest is a file or choices; targets of folders know only choices."""
    from tests.fuzz.targets import TARGETS, seeds_of

    target = TARGETS[name]
    alone = all(set(files) == {""} for files in seeds_of(name))
    if alone and data[:1] != b"\xff":
        return {"": data}
    return target.made(Choices(data[1:]))


def main() -> None:
    import atheris

    name, seconds, seed, *kept = sys.argv[1:]
    sys.modules["torch"] = sys.modules["numpy"] = None  # type: ignore[assignment]
    with atheris.instrument_imports(include=["unmoor"]):
        from tests.fuzz.campaign import Fuzzer
        from tests.fuzz.targets import seeds_of
    warnings.simplefilter("error")
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        folder = Path(scratch)
        (folder / "look").mkdir()
        fuzzer = Fuzzer(folder / "look", None)
        fuzzer.warm([name])
        corpus = Path(kept[0]) if kept else folder / "corpus"
        corpus.mkdir(parents=True, exist_ok=True)
        for number, files in enumerate(seeds_of(name)):
            (corpus / f"seed{number}").write_bytes(
                files[""] if set(files) == {""} else b"\xff" + number.to_bytes(8, "big") * 8
            )

        def once(data: bytes) -> None:
            import json
            from dataclasses import asdict

            crash = fuzzer.tried(name, _input(name, data))
            if crash is not None:
                print(_MARK + json.dumps(asdict(crash)), file=sys.stderr, flush=True)
                raise RuntimeError(crash.what)

        arguments = [f"-max_total_time={seconds}", f"-seed={int(seed) + 1}", "-max_len=65536", "-print_final_stats=1",
        "-timeout=30", "-rss_limit_mb=2048",
                     f"-artifact_prefix={scratch}/", "-verbosity=0"]  # fmt: skip
        atheris.Setup([sys.argv[0], *arguments, str(corpus)], once)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
