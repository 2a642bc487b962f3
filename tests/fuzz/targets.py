"""What is fuzzed: for each reader the seeds that mutation starts from, a grammar of its own, how it is looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz import havoc, jsons, looks, pickling, zipping
from tests.fuzz.choices import Files, unpacked

__all__ = ["SEEDS", "TARGETS", "Target", "seeds_of"]

SEEDS = Path(__file__).parent / "seeds"
Look = Callable[[Files, Path, Any, "Path | None"], Any]


_FILES = {
    "zip": (
        "golden/values-*",
        "golden/layouts-*",
        "golden/quantized-*",
        "golden/dtypes-*",
        "golden/object-*",
        "golden/zip-*",
        "hostile/*.pt",
    ),
    "legacy": ("golden/*_legacy-*", "golden/python2-*", "hostile/legacy_*"),
    "tar": ("golden/tar-*", "hostile/tar_*"),
    "safetensors": ("golden/*.safetensors", "hostile/*.safetensors"),
    "script": ("golden/script-*.pt",),
}
"""Files of other tests that are seeds too."""


@dataclass(frozen=True)
class Target:
    """A reader. `grown` makes an input by a grammar, None where mutation of seeds is all there is."""

    name: str
    look: Look
    grown: Callable[[Random], Files] | None = None

    def made(self, rng: Random) -> Files:
        """One input: by the grammar, or a seed that was bent in its pickles and texts, or in its bytes."""
        seeds = seeds_of(self.name)
        way = rng.randrange(8)
        if self.grown is not None and (way < 4 or not seeds):
            files = self.grown(rng)
            return havoc.mutated_files(rng, files) if way == 0 else files
        files = rng.choice(seeds)
        if way < 6:
            return zipping.rebent(rng, files)
        return havoc.mutated_files(rng, files, tuple(files.values()))


@lru_cache(maxsize=64)
def seeds_of(name: str) -> tuple[Files, ...]:
    """The seeds of a target: its own, and golden and hostile files, in the order of their names."""
    own = [unpacked(path.read_bytes()) for path in sorted((SEEDS / name).glob("*.seed"))]
    others = [path for pattern in _FILES.get(name, ()) for path in sorted(SEEDS.parents[1].glob(pattern))]
    return (*own, *({"": path.read_bytes()} for path in others if path.suffix != ".json"))


def _one(make: Callable[[Random], bytes]) -> Callable[[Random], Files]:
    return lambda rng: {"": make(rng)}


def _manifest(rng: Random) -> bytes:
    return jsons.lying_json(rng, rng.choice(("manifest", "manifest", "relocated")))


def _bytes(rng: Random) -> bytes:
    import zlib

    raw = bytes(rng.randrange(4) for _ in range(rng.randrange(300))) * (1 << rng.randrange(9))
    engine = zlib.compressobj(rng.randrange(10), zlib.DEFLATED, -15)
    return engine.compress(raw) + engine.flush()


def _indexed(rng: Random) -> Files:
    return {
        "model.safetensors.index.json": jsons.lying_json(rng, "index"),
        "a.safetensors": jsons.safetensors(rng),
        "b.safetensors": jsons.safetensors(rng),
    }


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("pickle", looks.at_pickle, _one(pickling.program)),
        Target("zip", looks.at_checkpoint, _one(zipping.lying)),
        Target("legacy", looks.at_checkpoint),
        Target("tar", looks.at_checkpoint),
        Target("safetensors", looks.at_checkpoint, _one(jsons.safetensors)),
        Target("script", looks.at_checkpoint),
        Target("relocated", looks.at_checkpoint),
        Target("manifest", looks.at_json, _one(_manifest)),
        Target("bytes", looks.at_bytes, _one(_bytes)),
        Target("dcp", looks.at_checkpoint),
        Target("deepspeed", looks.at_checkpoint),
        Target("fsdp", looks.at_checkpoint),
        Target("index", looks.at_checkpoint, _indexed),
        Target("folder", looks.at_checkpoint),
    )
}
"""Every reader by name."""
