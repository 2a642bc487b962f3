"""Damage tried at the real doors: what verify says of it, what a restore gives, what torch.load gives.

`table` gives the figures of a page. `python -m tests.rot.flips [STEP] [FORM...]` prints them: with STEP 1 every flip of
every form, which takes a quarter of an hour; `python -m tests.rot.flips large NUMBER` for a file of 50 MB.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch

import unmoor
from tests.rot.damage import Damage, Harm, every_flip, random_flips, random_harm
from tests.rot.regions import Regions
from tests.rot.subjects import SUBJECTS, Live, Subject, content, parts

SHARED_MEMORY = "/dev/shm"


@dataclass
class Tally:
    """What became of the damage to one form.

    At each door the outcomes by number: `found` and `raised` are finds, `passed` a sound verification, `same` a restore
    of the very state that was saved, `SILENT` one of another. `missed` is what verify passed, `silent` what a restore
    passed and should not have; `harmless` counts, by what the byte is, the flips that a restore had no need to find.
    """

    tried: int = 0
    seconds: float = 0.0
    verify: Counter[str] = field(default_factory=Counter)
    restore: Counter[str] = field(default_factory=Counter)
    torch: Counter[str] = field(default_factory=Counter)
    harmless: Counter[str] = field(default_factory=Counter)
    missed: list[Damage] = field(default_factory=list)
    silent: list[Damage] = field(default_factory=list)
    crashed: list[str] = field(default_factory=list)


def tried(subject: Subject, path: Path, damages: Iterable[Damage], *, doors: str = "verify restore torch") -> Tally:
    """Do each damage, knock at the doors, undo it. What changes no byte is left out."""
    made, live = Tally(), Live(subject)
    regions = Regions(path) if path.suffix == ".pt" and zipfile.is_zipfile(path) else None
    whole = live.restore(path)
    loaded = content(torch.load(path)) if path.is_file() and path.suffix == ".pt" else None
    begin = time.perf_counter()
    for damage in damages:
        with Harm(damage) as changed:
            if not changed:
                continue
            made.tried += 1
            if "verify" in doors:
                found, checked = _door(partial(unmoor.verify, path), made, damage)
                word = found if checked is None else "passed" if checked.ok else "found"
                made.verify[word] += 1
                made.missed += [damage] if word == "passed" else []
            if "restore" in doors:
                found, state = _door(partial(live.restore, path), made, damage)
                word = found if state is None else "same" if state == whole else "SILENT"
                made.restore[word] += 1
                if word == "same" and regions is not None:
                    made.harmless[regions.at(damage.at)] += 1
                if word == "SILENT":
                    made.silent.append(damage)
                    live = Live(subject)  # what came in so may stay there
            if "torch" in doors and loaded is not None:
                made.torch[_torch(path, loaded)] += 1
    made.seconds = time.perf_counter() - begin
    return made


def _door(call: Callable[[], Any], made: Tally, damage: Damage) -> tuple[str, Any]:
    try:
        return "", call()
    except unmoor.UnmoorError:
        return "raised", None
    except Exception as error:  # noqa: BLE001 - what is no error of ours is what is looked for
        made.crashed.append(f"{damage}: {error!r}"[:300])
        return "CRASHED", None


def _torch(path: Path, whole: tuple[Any, ...]) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return "same" if content(torch.load(path)) == whole else "SILENT"
        except Exception:  # noqa: BLE001 - whatever torch raises
            return "raised"


def table(step: int = 1, names: Iterable[str] = SUBJECTS) -> dict[str, Tally]:
    """Form -> what became of every flip of it, or of each `step`-th."""
    made = {}
    for name in names:
        with _folder() as folder:
            path = SUBJECTS[name].make(Path(folder))
            made[name] = tried(SUBJECTS[name], path, every_flip(path, step))
    return made


def large(number: int, width: int = 720_000) -> dict[str, Tally]:
    """What became of so many random flips, and a tenth as many other harms, of a file of 50 MB."""
    with _folder() as folder:
        path = Path(folder) / "large.pt"
        model, optimizer = parts(width=width)
        unmoor.save(path, model=model, optimizer=optimizer, step=3, rng=False)
        subject = Subject(lambda _: path, summed=True, width=width)
        return {
            "flips": tried(subject, path, random_flips(path, number)),
            "other harm": tried(subject, path, random_harm(path, -(-number // 10))),
        }


def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(dir=SHARED_MEMORY if os.path.isdir(SHARED_MEMORY) else None)


def lines(made: dict[str, Tally]) -> Iterable[str]:
    """The table as text, with what was missed."""
    for name, tally in made.items():
        yield f"{name}: {tally.tried:,} tried, {tally.tried / max(tally.seconds, 1e-9):.0f}/s"
        yield from (f"    harmless: {number:,} in {what}" for what, number in tally.harmless.most_common())
        yield f"  verify {dict(tally.verify)}  restore {dict(tally.restore)}  torch.load {dict(tally.torch)}"
        for what in chain(tally.missed[:20], tally.silent[:20]):
            yield f"  {'SILENT ' if what in tally.silent else 'missed '}{what}"
        yield from (f"  CRASHED {what}" for what in tally.crashed[:20])


if __name__ == "__main__":
    asked = sys.argv[1:] or ["1"]
    if asked[0] == "large":
        sys.stdout.write("\n".join(lines(large(int(asked[1])))) + "\n")
    else:
        for form in asked[1:] or SUBJECTS:
            sys.stdout.write("\n".join(lines(table(int(asked[0]), [form]))) + "\n")
            sys.stdout.flush()
