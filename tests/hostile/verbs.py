"""Every verb and command, done to a path that may be hostile; the result is an exit code or an error of the package."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import unmoor
from tests.hostile.limits import answer
from tests.hostile.make_hostile import W, checkpoint
from unmoor.cli import main

__all__ = ["COMMANDS", "VERBS", "build", "model", "sound"]


def model() -> dict[str, Any]:
    """A small run, in the keywords of restore."""
    made = torch.nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(made.parameters())
    return {"model": made, "optimizer": optimizer, "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2)}


def build() -> dict[str, Any]:
    """What `unmoor explain` builds."""
    return model()


def sound(folder: Path) -> Path:
    """A file that nothing is wrong with."""
    path = folder / "sound.pt"
    path.write_bytes(checkpoint({"w": W}))
    return path


def _described(path: Path, out: Path) -> None:
    catalog = unmoor.describe(path)
    json.dumps(catalog.to_json())
    str(catalog)
    repr(catalog)


def _copied(path: Path, out: Path) -> Path:
    if not path.is_dir() and not stat.S_ISREG(path.stat().st_mode):
        return path
    target = out / f"copy{path.suffix}"
    shutil.copytree(path, target, symlinks=True) if path.is_dir() else shutil.copyfile(path, target)
    return target


def _relocated(path: Path, out: Path) -> None:
    target = _copied(path, out)
    unmoor.relocate(target, to="cuda:1")
    unmoor.undo_relocate(target)


VERBS: dict[str, Callable[[Path, Path], Any]] = {
    "describe": _described,
    "verify": lambda path, out: str(unmoor.verify(path)),
    "page": lambda path, out: unmoor.page(path, out / "page.html"),
    "load": lambda path, out: unmoor.load(path),
    "load on meta": lambda path, out: unmoor.load(path, model_device="meta"),
    "load everything": lambda path, out: unmoor.load(path, trust="everything in this file"),
    "restore": lambda path, out: unmoor.restore(path, **model(), rng=False),
    "plan": lambda path, out: str(unmoor.plan(path, **model(), rng=False)),
    "diff": lambda path, out: str(unmoor.diff(path, sound(out))),
    "diff the other way": lambda path, out: str(unmoor.diff(sound(out), path)),
    "diff with itself": lambda path, out: str(unmoor.diff(path, path)),
    "convert": lambda path, out: str(unmoor.convert(path, out / "made.pt", opaque="drop")),
    "convert plain": lambda path, out: str(unmoor.convert(path, out / "plain.pt", layout="plain", opaque="drop")),
    "convert to safetensors": lambda path, out: str(unmoor.convert(path, out / "made.safetensors")),
    "convert to shards": lambda path, out: str(unmoor.convert(path, out / "shards", max_shard_size=8)),
    "convert to dcp": lambda path, out: str(unmoor.convert(path, out / "dcp", format="dcp", opaque="drop")),
    "convert to legacy": lambda path, out: str(unmoor.convert(path, out / "old.pt", format="legacy")),
    "relocate": _relocated,
    "relocate a copy": lambda path, out: str(unmoor.relocate(path, to="cuda:1", output=out / "moved.pt")),
    "repartition": lambda path, out: str(unmoor.repartition(path, out / "cut", ranks=3)),
    "explain": lambda path, out: str(unmoor.explain(path, build)),
    "doctor": lambda path, out: str(unmoor.doctor(path)),
}
"""Verb -> what does it to a path; whatever it writes goes into a folder of its own."""

COMMANDS: dict[str, list[str]] = {
    "inspect": ["inspect", "{path}"],
    "inspect --all": ["inspect", "{path}", "--all"],
    "inspect --json": ["inspect", "{path}", "--json"],
    "inspect --html": ["inspect", "{path}", "--html", "{out}/page.html"],
    "verify": ["verify", "{path}"],
    "verify --json": ["verify", "{path}", "--json"],
    "diff": ["diff", "{path}", "{sound}", "--all"],
    "diff --json": ["diff", "{sound}", "{path}", "--json"],
    "convert": ["convert", "{path}", "{out}/made.pt"],
    "convert --json": ["convert", "{path}", "{out}/made2.pt", "--json"],
    "relocate": ["relocate", "{path}", "--to", "cuda:1", "--output", "{out}/moved.pt"],
    "explain": ["explain", "{path}", "--build", "tests.hostile.verbs:build"],
    "explain --json": ["explain", "{path}", "--build", "tests.hostile.verbs:build", "--json"],
    "repartition": ["repartition", "{path}", "{out}/cut", "--ranks", "3"],
    "doctor": ["doctor", "{path}"],
}
"""Command -> its arguments."""


def run(name: str, path: Path, out: Path) -> int:
    """The exit code of one command."""
    places = {"path": str(path), "out": str(out), "sound": str(sound(out))}
    return int(main([word.format(**places) if "{" in word else word for word in COMMANDS[name]]))


def done(name: str, path: Path, out: Path) -> Any:
    """What one verb gives, or the error of the package that it raises."""
    return answer(lambda: VERBS[name](path, out))
