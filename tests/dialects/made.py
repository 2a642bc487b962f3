"""The checkpoints that other programs wrote: each writer is run once, by its own interpreter, and its files are kept.

`made(program, variant)` gives the folder of one: the program's own files beside `expected.pt`, which says what the same
run came to without interruption. The cache is keyed by the writer's text and by what it runs on, so an edit makes it
anew.

    python -m tests.dialects.made               makes all and prints where they are
"""

import hashlib
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.kept import kept

from . import environment

CACHE = environment.ROOT / ".cache" / "dialects"
WRITERS = Path(__file__).with_name("writers")
SHARED = (Path(__file__).with_name("training.py"), WRITERS / "gathering.py")


@dataclass(frozen=True)
class Way:
    """How a writer is started: on how many ranks, and with which side's packages first."""

    ranks: int = 1
    side: str = ""


ALONE = Way()
TWO_RANKS = Way(ranks=2)
VERSION_4 = Way(side="transformers4")
TIMM = Way(side="timm")
DIFFUSION = Way(side="diffusion")

VARIANTS: dict[str, dict[str, Way]] = {
    "accelerate": {"safetensors": ALONE, "bin": ALONE, "two_models": ALONE, "ranks": TWO_RANKS},
    "transformers": {
        "safetensors": ALONE,
        "tied": ALONE,
        "sharded": ALONE,
        "bin": VERSION_4,
        "bin_sharded": VERSION_4,
    },
    "lightning": {"fit": ALONE, "bf16": ALONE, "fp16": ALONE, "manual": ALONE, "fabric": ALONE},
    "deepspeed": {
        **{f"zero{stage}": TWO_RANKS for stage in range(4)},
        **{f"zero{stage}_{kind}": TWO_RANKS for stage in range(1, 4) for kind in ("bf16", "groups")},
    },
    "deepspeed_layouts": {"all": TWO_RANKS},
    "dcp": {"alone": ALONE, "ranks": TWO_RANKS},
    "torchtitan": {"alone": ALONE, "ranks": TWO_RANKS},
    "timm": {"ema": TIMM},
    "diffusion": {"triple": DIFFUSION},
    "hippynn": {"pair": ALONE},
}
"""Program -> what its writer can be asked for -> how it is started."""


class WriterFailed(RuntimeError):
    """A writer ended with an error: its last words are the message."""


_failed: dict[tuple[str, str], WriterFailed] = {}
"""What failed in this process, which is not tried again for each test that asks."""


def made(program: str, variant: str) -> Path:
    """The folder of one checkpoint and of what it must become."""
    if (program, variant) in _failed:
        raise _failed[program, variant]

    def make(scratch: Path) -> Path:
        folder = scratch / variant
        folder.mkdir()
        _write(program, variant, folder)
        return folder

    return kept(CACHE / f"{program}-{key(program)}" / variant, make)


def key(program: str) -> str:
    """What a writer's files depend on, as a folder name."""
    parts = [(WRITERS / f"{program}.py").read_bytes(), *(path.read_bytes() for path in SHARED)]
    return hashlib.sha256(b"\0".join([environment.key().encode(), *parts])).hexdigest()[:16]


def _write(program: str, variant: str, folder: Path) -> None:
    way = VARIANTS[program][variant]
    module = ["-m", f"{__package__}.writers.{program}", str(folder), variant]
    if way.ranks > 1:
        module = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(way.ranks), *module]
    command = [str(environment.python()), *module]
    settings = environment.settings(way.side)
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=environment.ROOT, env=settings)
    if done.returncode or not (folder / "expected.pt").is_file():
        message = f"the writer of {program} {variant} failed:\n{done.stdout[-1000:]}\n{done.stderr[-4000:]}"
        _failed[program, variant] = WriterFailed(message)
        raise _failed[program, variant]


if __name__ == "__main__":
    for one, variants in VARIANTS.items():
        for each in variants:
            print(made(one, each))
