"""prove: a run that never stops, one that stops and saves, a fresh process that resumes it, and what they differ in."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from unmoor.describe import describe_path
from unmoor.diagnose.resumed import Runs, judge
from unmoor.diagnose.resumed_causes import Holdings
from unmoor.errors import FileError, FitError, MachineError, UnmoorError, UsageError
from unmoor.report.proof import proof_text
from unmoor.values.proof import Proof
from unmoor.values.recording import Failure, Recording
from unmoor.values.text import count

from .building import build_name, name_elsewhere
from .proving_launch import Launch, launched
from .proving_leg import ENVIRONMENT, Leg
from .proving_pictures import check_pictures, write_pictures
from .termination import ended_in_order

__all__ = ["Wanted", "prove_run"]

_CHECKPOINT: Final = "checkpoint.pt"
_OTHER_SEED: Final = 1

Told = Callable[[str, int, int], None]
"""What is being done, how many of its steps are done, and how many there are."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a caller asked of prove, with its defaults filled in."""

    build: Any
    steps: int
    cut: int
    save_on: Any = None
    resume_on: Any = None
    world: int = 1
    resume_world: int | None = None
    wrap: str | Callable[..., Any] | None = None
    resume_wrap: str | Callable[..., Any] | None = None
    omit: tuple[str, ...] = ()
    save: Any = None
    resume: Any = None
    tolerance: float = 1e-3
    repeat: bool = True
    deterministic: bool = True
    seed: int = 0
    timeout: float = 600.0


def prove_run(
    wanted: Wanted, *, folder: Any, picture: Any, told: Told | None = None, launch: Launch = launched
) -> Proof:
    """Carry the legs out and judge them."""
    if os.environ.get(ENVIRONMENT):
        raise UsageError(
            "prove was called by the module of the build function itself, in a process that proves it",
            remedy='Call it under `if __name__ == "__main__":`.',
        )
    begin = time.perf_counter()
    check_pictures(picture)
    leg = _leg(wanted)
    with ended_in_order(), _folder(folder) as place:
        tell = told or (lambda *_: None)
        proof = judge(_runs(wanted, leg, place, tell, launch))
    proof = replace(proof, seconds=time.perf_counter() - begin)
    proof = write_pictures(proof, picture)
    return replace(proof, text=proof_text(proof))


def _leg(wanted: Wanted) -> Leg:
    """What all legs have in common. Raises UsageError for what cannot be meant, before a process is started."""
    for name, value in (("steps", wanted.steps), ("cut", wanted.cut), ("world", wanted.world)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UsageError(f"{name}={value!r} is no number from 1 on")
    if wanted.cut >= wanted.steps:
        raise UsageError(
            f"cut={wanted.cut} leaves nothing of {count(wanted.steps, 'step')} to take after the resume",
            remedy="Cut before the last step: steps=20, cut=10.",
        )
    if (wanted.save is None) != (wanted.resume is None):
        raise UsageError(
            f"{'save' if wanted.resume is None else 'resume'}= was given alone",
            remedy="Pass both: save(path, run) writes a checkpoint of the run, resume(path, run) fills a fresh run.",
        )
    if not (isinstance(wanted.tolerance, int | float) and wanted.tolerance >= 0):
        raise UsageError(f"tolerance={wanted.tolerance!r} is no number from 0 on")
    if isinstance(wanted.timeout, bool) or not isinstance(wanted.timeout, int | float) or not wanted.timeout > 0:
        raise UsageError(f"timeout={wanted.timeout!r} is no number of seconds", remedy="Pass a number above 0.")
    if wanted.save is not None and wanted.omit:
        raise UsageError("omit= says what unmoor leaves out, and save= saves in a way of its own", remedy="Pass one.")
    return Leg(
        build=name_elsewhere(wanted.build),
        end=wanted.steps,
        device=_tag(wanted.save_on),
        wrap=_wrap(wanted.wrap),
        world=wanted.world,
        seed=wanted.seed,
        save=name_elsewhere(wanted.save, "the save function") if wanted.save is not None else "",
        resume=name_elsewhere(wanted.resume, "the resume function") if wanted.resume is not None else "",
        omit=tuple(wanted.omit),
        sketches=not _exact(wanted),
        deterministic=wanted.deterministic,
        timeout=float(wanted.timeout),
        imports=tuple(place or os.getcwd() for place in sys.path),
    )


def _tag(device: Any) -> str:
    return "" if device is None else str(device)


def _wrap(wrap: Any) -> str:
    if wrap is None or (isinstance(wrap, str) and ":" not in wrap):
        return wrap or ""
    return wrap if isinstance(wrap, str) and wrap.startswith("compile:") else name_elsewhere(wrap, "the wrapper")


def _elsewhere(wanted: Wanted) -> dict[str, Any]:
    """Where the resumed run is not what the saved one was; what is not said stays."""
    resumed = wanted.wrap if wanted.resume_wrap is None else wanted.resume_wrap
    return {
        "device": _tag(wanted.save_on if wanted.resume_on is None else wanted.resume_on),
        "wrap": _wrap(None if resumed == "none" else resumed),
        "world": wanted.world if wanted.resume_world is None else wanted.resume_world,
    }


def _exact(wanted: Wanted) -> bool:
    """Whether both runs take the same arithmetic: one kind of device, one wrapper, one number of ranks."""
    there = _elsewhere(wanted)
    kind = (_tag(wanted.save_on) or "cpu").partition(":")[0]
    return (kind, _wrap(wanted.wrap), wanted.world) == (
        (there["device"] or "cpu").partition(":")[0],
        there["wrap"],
        there["world"],
    )


def _runs(wanted: Wanted, leg: Leg, place: Path, tell: Told, launch: Launch) -> Runs:
    """The legs one after the other; and a further one without a break where steps differ on the same data."""

    def take(name: str, made: Leg) -> list[Recording]:
        title = {"whole": "the uninterrupted run", "first": "the run to the cut", "resumed": "the resumed run"}
        made = replace(made, title=title.get(name, "the uninterrupted run, again"))
        (place / name).mkdir()
        return launch(made, place / name, lambda step: tell(made.title, step - made.begin, made.end - made.begin))

    checkpoint = str(place / _CHECKPOINT)
    whole = _sound(take("whole", leg), wanted)
    first = _sound(take("first", replace(leg, end=wanted.cut, save_to=checkpoint)), wanted)
    there = replace(leg, begin=wanted.cut, resume_from=checkpoint, seed=leg.seed + _OTHER_SEED, **_elsewhere(wanted))
    resumed = _usable(take("resumed", there), wanted)
    runs = Runs(
        build=build_name(wanted.build),
        steps=wanted.steps,
        cut=wanted.cut,
        whole=whole,
        first=first,
        resumed=resumed,
        exact=_exact(wanted),
        tolerance=wanted.tolerance,
        own=wanted.save is not None,
        holdings=_holdings(checkpoint),
        setting=_setting(wanted, leg, there),
    )
    found = judge(runs).difference
    if wanted.repeat and found is not None and found.step > wanted.cut and found.component != "data order":
        return replace(runs, again=_sound(take("again", leg), wanted))
    return runs


def _sound(recordings: list[Recording], wanted: Wanted) -> list[Recording]:
    """Recordings of runs that were not resumed: a failure there is none of a checkpoint."""
    failed = next((r.failure for r in recordings if r.failure is not None), None)
    if failed is not None:
        raise _error(failed, wanted)
    return recordings


def _usable(recordings: list[Recording], wanted: Wanted) -> list[Recording]:
    """Recordings of a resumed run: a call that was wrong is no fault of the checkpoint either."""
    failed = next((r.failure for r in recordings if r.failure is not None), None)
    if failed is not None and (failed.where in ("build", "process group") or failed.fault == "usage"):
        raise _error(failed, wanted)
    return recordings


def _error(failed: Failure, wanted: Wanted) -> UnmoorError:
    kinds: dict[str, type[UnmoorError]] = {"file": FileError, "fit": FitError, "machine": MachineError}
    if failed.fault == "program":
        place = {"build": "build the run", "save": "save it"}.get(failed.where, f"take {failed.where}")
        return UsageError(
            f"{build_name(wanted.build)} could not {place} in a fresh process: {failed.kind}: {failed.headline}",
            details=failed.details,
        )
    kind = kinds.get(failed.fault, UsageError)
    return kind(failed.headline, details=failed.details, remedy=failed.remedy, path=failed.path)


def _holdings(checkpoint: str) -> Holdings | None:
    """What the checkpoint holds, as far as it can be told without running anything of it."""
    try:
        catalog = describe_path(checkpoint)
    except UnmoorError:
        return None
    roles = {part.role for part in catalog.parts}
    names = {entry.path.partition(".")[2] or entry.path for entry in catalog.tensors}
    tree = catalog.tree if isinstance(catalog.tree, dict) else {}
    streams = _streams(tree.get("rng")) | _other_streams(tree)
    return Holdings(frozenset(roles) | frozenset(map(str, tree)), frozenset(streams), frozenset(names))


def _streams(rng: Any) -> set[str]:
    if not isinstance(rng, dict):
        return set()
    return {*map(str, rng), *map(str, rng.get("devices") or ()), *map(str, rng.get("generators") or ())}


def _other_streams(tree: dict[Any, Any]) -> set[str]:
    """Streams in files of others, by the words that their keys have."""
    text = " ".join(map(str, tree)).lower()
    return {name for name in ("torch", "numpy", "python") if "rng" in text and name in text}


def _setting(wanted: Wanted, leg: Leg, there: Leg) -> tuple[tuple[str, str], ...]:
    """How the run was saved and resumed, where something was asked for."""
    rows = []
    if leg.device or there.device:
        rows.append(("device", f"saved on {leg.device or 'cpu'}, resumed on {there.device or 'cpu'}"))
    if leg.world > 1 or there.world > 1:
        rows.append(("ranks", f"saved by {leg.world}, resumed by {there.world}"))
    if leg.wrap or there.wrap:
        rows.append(("wrapper", f"saved in {leg.wrap or 'none'}, resumed in {there.wrap or 'none'}"))
    if leg.save:
        rows.append(("by", f"{build_name(wanted.save)}, {build_name(wanted.resume)}"))
    if leg.omit:
        rows.append(("left out", ", ".join(leg.omit)))
    return tuple(rows)


@contextmanager
def _folder(folder: Any) -> Iterator[Path]:
    """The folder for checkpoint and recordings: one that goes when the proof is done, or the caller's own, empty."""
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="unmoor-prove-") as made:
            yield Path(made)
        return
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    if any(place.iterdir()):
        raise UsageError(f"folder {place} is not empty", remedy="Name a new one: nothing in it is overwritten.")
    yield place
