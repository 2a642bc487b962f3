"""One process of a proof: builds the run, resumes it where it is told to, takes its steps, saves, and records.

Run as a program it is that process: `python -m unmoor.wiring.proving_leg LEG.json RANK`.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from unmoor.distributed.small_world import group_of
from unmoor.errors import FileError, FitError, MachineError, UnmoorError, UsageError
from unmoor.live import exactness
from unmoor.live.batches import watch
from unmoor.live.built import Built, build_run, parameters_of, sorted_run
from unmoor.live.content import collect
from unmoor.live.proving_loop import Loop, facts_of, has_position, is_batches, put_back, seed_everything
from unmoor.live.survey import members
from unmoor.live.wrapping import NEED_GROUP, WORDS, wrapper_of
from unmoor.plan.policy import CHOICES
from unmoor.values.recording import Failure, Recording

from .building import function_of, lines_to
from .ending import end_with
from .restoring import Asked, restore_path
from .saving_call import save_path

__all__ = ["ENVIRONMENT", "Leg", "main", "objects_to_save", "run_leg", "with_state"]

ENVIRONMENT: Final = "UNMOOR_PROVING"
"""Set in the processes of a proof to who waits for them; a script that they import does not begin another one."""

_BUFFER: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class Leg:
    """What one launch does: steps `begin` + 1 to `end` of a run, from the checkpoint `resume_from` where there is one.

    `build`, `save`, `resume` are names of functions, "" for unmoor's own. `save_to` is written after the last step.
    """

    build: str
    end: int
    begin: int = 0
    title: str = ""
    device: str = ""
    wrap: str = ""
    world: int = 1
    seed: int = 0
    save_to: str = ""
    resume_from: str = ""
    save: str = ""
    resume: str = ""
    omit: tuple[str, ...] = ()
    sketches: bool = False
    deterministic: bool = True
    timeout: float = 600.0
    imports: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The leg as plain JSON values."""
        return asdict(self)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Leg:
        """A leg out of what `to_json` gave."""
        return cls(**{**row, "omit": tuple(row["omit"]), "imports": tuple(row["imports"])})


@dataclass(slots=True)
class _Run:
    """A leg under way: where it is, for the error that may end it, and what it has seen."""

    leg: Leg
    rank: int
    told: Callable[[int], None]
    where: str = "build"
    recording: Recording = field(default_factory=lambda: Recording(0, ""))


def run_leg(leg: Leg, rank: int = 0, told: Callable[[int], None] = lambda _: None) -> Recording:
    """Carry a leg out in this process. An error that ends it is the recording's `failure`. `told` gets each step."""
    run = _Run(leg, rank, told)
    try:
        with exactness.deterministic(wanted=leg.deterministic), watch() as seen:
            _carry_out(run, seen)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the user's functions raise is what the proof tells
        return replace(run.recording, rank=rank, failure=_failure(run.where, error))
    return run.recording


def _carry_out(run: _Run, seen: Any) -> None:
    leg = run.leg
    seed_everything(leg.seed)
    loop = Loop(_build(leg), seen, leg.sketches, {"step": leg.begin, "epoch": 0})
    unsaved = objects_to_save(loop.built.objects, leg.omit)[1]
    device = exactness.device_of(loop.built.objects)
    run.recording = Recording(run.rank, device, unsaved=unsaved, facts=facts_of(loop.built))
    if leg.resume_from:
        run.where = "resume"
        loop.built = _resume(leg, loop)
        loop.progress["step"] = leg.begin
        device = exactness.device_of(loop.built.objects)
        run.recording = replace(run.recording, device=device, restored=loop.state(), facts=facts_of(loop.built))
    run.where = "step"
    for step in range(leg.begin + 1, leg.end + 1):
        run.where = f"step {step}"
        moment = loop.step()
        run.recording = replace(run.recording, moments=(*run.recording.moments, moment))
        run.told(step)
    if leg.save_to:
        run.where = "save"
        _save(leg, loop)
        run.recording = replace(run.recording, saved=loop.state())


def _build(leg: Leg) -> Built:
    function = function_of(leg.build)
    wrap = _wrapper(leg.wrap) if leg.wrap else None
    parameters = parameters_of(function)
    if leg.device and "device" not in parameters and not leg.resume_from:
        raise UsageError(
            f"{leg.build} takes no device, and the run is to be on {leg.device}",
            remedy="Give it a parameter: def build(device=None). It puts the model there, then makes the optimizer.",
        )
    built = build_run(function, device=leg.device or None, wrap=wrap, name=leg.build.rpartition(":")[2])
    if wrap is None or "wrap" in parameters:
        return built
    if built.train_step is not None or leg.wrap == "fsdp2":
        raise UsageError(
            f"{leg.build} does not take what wraps its model ({leg.wrap}), and its train_step and optimizer know the "
            "model as it is",
            remedy="Give it a parameter: def build(wrap=lambda model: model); it wraps, then makes the optimizer.",
        )
    objects = {**built.objects, "model": wrap(built["model"])}
    return replace(built, objects=objects, made={**built.made, "model": objects["model"]})


def _wrapper(word: str) -> Callable[[Any], Any]:
    known = word.partition(":")[0] in WORDS
    return wrapper_of(word) if known or ":" not in word else function_of(word)


def objects_to_save(objects: Mapping[str, Any], omit: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, str]]:
    """What of a run is handed to save, and what is not, with the reason, by label."""
    kept: dict[str, Any] = {}
    left: dict[str, str] = {}
    for role, value in objects.items():
        if role in omit:
            left[role] = "left out by omit"
            continue
        if role == "rng" or (role != "loader" and not isinstance(value, Mapping | list | tuple)):
            kept[role] = value
            continue
        whole = role == "loader" and is_batches(value)
        found = [(role, None, value)] if whole else list(members(role, value))
        for label, _, item in found:
            if label in omit:
                left[label] = "left out by omit"
            elif role == "loader" and not has_position(item):
                left[label] = "a loader without a position"
        good = [(key, item) for label, key, item in found if label not in left]
        if not good and (found or role in _ROLES):
            continue
        if len(good) == len(found):  # an empty container of the run's own is filled by the restore
            kept[role] = value
        else:
            kept[role] = dict(good) if isinstance(value, Mapping) else [item for _, item in good]
    if "rng" in omit:
        left["rng"] = "left out by omit"
    return kept, left


def _save(leg: Leg, loop: Loop) -> None:
    if leg.save:
        function_of(leg.save)(leg.save_to, {**loop.built.made, "progress": loop.progress})
        if not os.path.exists(leg.save_to):
            raise UsageError(
                f"{leg.save} has written nothing to the path that it was given",
                remedy="save(path, run) writes the checkpoint to path, which resume(path, run) reads.",
            )
        return
    kept, left = objects_to_save(loop.built.objects, leg.omit)
    rng = kept.pop("rng", {})
    objects, plain = with_state(kept)
    values = {**plain, "progress": dict(loop.progress)}
    save_path(
        leg.save_to,
        objects,
        lambda: collect(objects, values, rng="rng" not in left, generators=rng),
        group="world",
        timeout=leg.timeout,
        background=False,
        buffer_bytes=_BUFFER,
        threads=2,
        progress=None,
    )


def _resume(leg: Leg, loop: Loop) -> Built:
    if leg.resume:
        given = {**loop.built.made, "progress": loop.progress}
        made = function_of(leg.resume)(leg.resume_from, given)
        return loop.built if made is None else sorted_run(_without(made, "progress"), loop.built.name)
    kept, left = objects_to_save(loop.built.objects, leg.omit)
    rng = False if "rng" in left else kept.pop("rng", None) or True
    objects, plain = with_state(kept)
    takes_device = "device" in parameters_of(function_of(leg.build))
    asked = Asked(
        roles=objects,
        rng=rng,
        model_device=leg.device if leg.device and not takes_device else None,
        map_location=None,
        modes={mode: choices[0] for mode, choices in CHOICES.items() if mode != "verify"},
        rename=None,
        only=None,
        skip=None,
        at={},
    )
    report = restore_path(
        leg.resume_from,
        asked,
        group="world",
        timeout=leg.timeout,
        verify="stream",
        buffer_bytes=_BUFFER,
        threads=2,
        progress=None,
    )
    loop.progress.update(report.extra.get("progress", {}))
    for name, value in plain.items():
        put_back(value, report.extra.get(name))
    return loop.built


def _without(made: Any, key: str) -> Any:
    return {name: value for name, value in made.items() if name != key} if isinstance(made, Mapping) else made


_ROLES: Final = ("model", "optimizer", "scheduler", "scaler", "loss", "metrics", "ema", "loader")


def with_state(kept: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Objects with a state, and plain values. A loss that is a plain function has no state to save."""
    objects, plain = {}, {}
    for key, value in kept.items():
        if callable(getattr(value, "state_dict", None)) or (key in _ROLES and not _is_function(value)):
            objects[key] = value
        elif not _is_function(value):
            plain[key] = value
    return objects, plain


def _is_function(value: Any) -> bool:
    return callable(value) and not hasattr(value, "state_dict")


def _failure(where: str, error: BaseException) -> Failure:
    """An error as what the proof tells of it; one of the user's own with the lines of code that led to it."""
    if isinstance(error, UnmoorError):
        kinds = ((UsageError, "usage"), (FileError, "file"), (FitError, "fit"), (MachineError, "machine"))
        fault = next((word for kind, word in kinds if isinstance(error, kind)), "machine")
        kind = type(error).__name__
        return Failure(where, kind, error.headline, error.details, error.remedy, error.path, fault)
    text = str(error).strip() or "no message"
    return Failure(where, type(error).__name__, text, lines_to(error), fault="program")


@contextmanager
def _joined(leg: Leg, rank: int, folder: Path) -> Iterator[None]:
    """In the process group of the leg, where it is one of several processes or its wrapper wants a group."""
    if leg.world == 1 and leg.wrap not in NEED_GROUP:
        yield
        return
    local = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": leg.world, "LOCAL_WORLD_SIZE": leg.world}
    os.environ.update({name: str(value) for name, value in local.items()})
    with group_of(str(folder), rank, leg.world, seconds=leg.timeout):
        yield


def main(leg_file: str, rank: str) -> None:
    """Be one process of a leg: read it, carry it out, leave the recording beside it."""
    end_with(int(os.environ[ENVIRONMENT]))
    warnings.simplefilter("ignore")
    folder, number = Path(leg_file).parent, int(rank)
    leg = Leg.of(json.loads(Path(leg_file).read_text()))
    sys.path[:0] = [place for place in leg.imports if place not in sys.path]
    sys.argv[1:] = []  # a build function that parses a command line finds none, as in a script without arguments
    steps = folder / f"step-{number}"
    made = Recording(number, "")
    try:
        with _joined(leg, number, folder):
            made = run_leg(leg, number, lambda step: _publish(steps, str(step)))
            _publish(folder / f"recording-{number}.json", json.dumps(made.to_json()))
            if made.failure is not None:
                os._exit(1)  # the other ranks wait for this one in vain; who started them sees the recording
    except Exception as error:  # noqa: BLE001 - no process group, no disk: the proof tells it
        failed = replace(made, failure=made.failure or _failure("process group", error))
        _publish(folder / f"recording-{number}.json", json.dumps(failed.to_json()))
        os._exit(1)


def _publish(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
