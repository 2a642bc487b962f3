"""restore and plan: describe -> survey -> plan -> execute -> report.

Ranks that restore together describe, plan and fill each on its own, and meet between the steps: what stops one of them
stops all, before anything changes wherever it can be known by then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from unmoor.describe import describe_path
from unmoor.distributed.meeting import Meeting, meet
from unmoor.errors import ArgumentConflict, KindError, UsageError
from unmoor.execute.streaming import Verify
from unmoor.live import devices
from unmoor.live.labels import objects_text
from unmoor.live.loading import refuse_other_order
from unmoor.live.survey import Handles, survey
from unmoor.plan.likeness import likeness
from unmoor.plan.policy import CHOICES, Policy
from unmoor.plan.restore import plan_restore
from unmoor.report.restore import plan_text
from unmoor.steady import one_reading
from unmoor.values.catalog import Catalog
from unmoor.values.pausing import collector_paused
from unmoor.values.plan import Plan
from unmoor.values.report import Report

from .carrying import Carrying
from .checking import check_all, check_buffer, needed_storages, share_of
from .identity import identity
from .neighbours import with_neighbours
from .pending import finish_earlier
from .proving import prove_parts
from .spans import open_spans

__all__ = ["Asked", "check_devices", "prepare", "restore_path"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a caller asked of restore, with its defaults filled in."""

    roles: Mapping[str, Any]
    rng: Any
    model_device: Any
    map_location: Any
    modes: Mapping[str, str]
    rename: Any
    only: Any
    skip: Any
    at: Mapping[str, Any]


def check_devices(model_device: Any, map_location: Any) -> None:
    """Refuse both placements together, before a byte is read."""
    if model_device is not None and map_location is not None:
        raise ArgumentConflict(
            "Passing map_location explicitly and the model device are incompatible: "
            f"map_location={map_location!r}, model_device={model_device!r}",
            remedy="Pass model_device alone: it places every part by its role. map_location has torch's meaning.",
        )


def _check(asked: Asked) -> None:
    """Refuse arguments that cannot be meant, before a byte is read."""
    check_devices(asked.model_device, asked.map_location)
    for mode, value in asked.modes.items():
        if value not in CHOICES[mode]:
            choices = ", ".join(map(repr, CHOICES[mode]))
            raise UsageError(f"{mode}={value!r} is none of {choices}")
    if not isinstance(asked.rng, Mapping) and asked.rng not in (True, False, "exact"):
        raise UsageError(f"rng={asked.rng!r} is none of True, False, 'exact' and a dict of generators")
    _patterns("only", asked.only)
    _patterns("skip", asked.skip)
    at: Any = asked.at
    if not isinstance(at, Mapping) or not all(isinstance(place, str | tuple) for place in at.values()):
        raise UsageError(
            f"at={at!r} is no dict of places", remedy='at={"model": "ema.model"} says where a role stands.'
        )


@one_reading()
@collector_paused()
def prepare(path: str, asked: Asked, catalog: Catalog | None = None) -> tuple[Plan, Handles]:
    """The plan for what was asked, and the live objects behind it. Changes nothing.

    `catalog` is that of the path, where it is known already.
    """
    _check(asked)
    return _plan(catalog or describe_path(path), asked)


def _plan(catalog: Catalog, asked: Asked, place: tuple[int, int] | None = None) -> tuple[Plan, Handles]:
    only, skip = _patterns("only", asked.only), _patterns("skip", asked.skip) or ()
    generators = asked.rng if isinstance(asked.rng, Mapping) else {}
    device = devices.resolve(asked.model_device)
    mapping, _ = devices.read_map_location(asked.map_location)
    refuse_other_order(catalog)
    target, handles = survey(asked.roles, generators, device, place)
    policy = Policy(
        **{mode: value for mode, value in asked.modes.items() if mode != "verify"},
        rename=asked.rename,
        only=only,
        skip=skip,
        at=asked.at,
        device=None if device is None else devices.tag(device),
        rng="none" if asked.rng is False else "exact" if asked.rng == "exact" else "all",
        extras=mapping,
    )
    try:
        made = plan_restore(catalog, target, policy)
    except KindError as error:
        error.add_details(*likeness(catalog, target, error.wanted))
        raise with_neighbours(error, catalog.path) from None
    return replace(made, text=plan_text(made)), handles


def _patterns(word: str, value: Any) -> tuple[str, ...] | None:
    """One pattern or a list of them; None where none was given."""
    if value is None:
        return None
    found = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list | tuple) else (None,)
    if not all(isinstance(pattern, str) and pattern for pattern in found):
        raise UsageError(f"{word}={value!r} is no pattern and no list of patterns", remedy=f'{word}=["encoder.*"]')
    if not found and word == "only":
        raise UsageError("only=[] names nothing to restore", remedy="Leave only= out to restore everything.")
    return found


@one_reading()
@collector_paused()
def restore_path(
    path: str,
    asked: Asked,
    *,
    group: Any,
    timeout: Any,
    verify: Verify,
    buffer_bytes: int,
    threads: int,
    progress: Callable[[int], None] | None,
) -> Report:
    """Restore what was asked, together with the other ranks of `group`."""
    begin = time.perf_counter()
    with meet("restore", group, timeout) as meeting:

        def begin_facts() -> tuple[dict[str, str], None]:
            facts = _facts(path, asked, buffer_bytes)
            finish_earlier("wait", f"the restore of {path}")
            return facts, None

        meeting.begin(begin_facts)
        with meeting.step("plan", _untouched) as seen:
            catalog = describe_path(path)
            with _broadcasts_told(meeting):
                plan, handles = _plan(catalog, asked, (meeting.rank, meeting.size))
            seen.update(identity(catalog) if meeting.size > 1 else {})
        with open_spans(plan.path) as open_span:
            how: dict[str, Any] = {
                "open_span": open_span,
                "buffer_bytes": buffer_bytes,
                "threads": threads,
                "progress": _living(meeting, progress),
            }
            carrying = Carrying(plan, handles, verify=verify, **how)
            if verify == "first":
                _check_first(meeting, catalog, carrying, how)
            with meeting.step("prepare", _untouched):
                carrying.prepare()
            with meeting.step("restore", carrying.undo):
                carrying.change()
            if meeting.size > 1 and verify == "stream":
                damage = prove_parts(meeting, carrying, plan.path)
                with meeting.step("checksums", carrying.undo):
                    if damage is not None:
                        raise damage
        return carrying.finish(lambda: time.perf_counter() - begin)


@contextmanager
def _broadcasts_told(meeting: Meeting) -> Iterator[None]:
    """Say, where a file is none of an optimizer's, what else makes ranks meet a model in its place."""
    try:
        yield
    except KindError as error:
        if meeting.size > 1 and error.wanted == "optimizer":
            error.add_details(_BROADCASTS)
        raise


_BROADCASTS: Final = (
    "typically  the wrong path. Ranks above 0 that get a model from the right one (KeyError: 'param_groups') have a "
    "loader that broadcasts, called inside `if rank == 0`; restore broadcasts nothing"
)


def _check_first(meeting: Meeting, catalog: Catalog, carrying: Carrying, how: Mapping[str, Any]) -> None:
    """Read all data and hold it against its checksums; of several ranks each reads its share."""
    with meeting.step("open", _untouched):
        carrying.open_files()
        needed = needed_storages(carrying.plan)
    share = share_of(meeting, catalog, needed)
    with meeting.step("verify", _untouched):
        check_all(share, carrying.plan.path, **how)


def _facts(path: str, asked: Asked, buffer_bytes: Any) -> dict[str, str]:
    """What the ranks must have in common, once the arguments are seen to be sound."""
    _check(asked)
    check_buffer(buffer_bytes)
    rng = asked.rng if not isinstance(asked.rng, Mapping) else sorted(map(str, asked.rng))
    told = {"rename": asked.rename, "only": asked.only, "skip": asked.skip, "at": dict(asked.at) or None}
    return {
        "path": path,
        "objects": objects_text(asked.roles),
        "rng": repr(rng),
        **{mode: repr(value) for mode, value in asked.modes.items()},
        **{word: "a function" if callable(value) else repr(value) for word, value in told.items()},
    }


def _untouched() -> tuple[str, ...]:
    return ("nothing was changed on any rank",)


def _living(meeting: Meeting, progress: Callable[[int], None] | None) -> Callable[[int], None] | None:
    """A progress that also tells the ranks which wait that this one still works."""
    if meeting.size == 1:
        return progress

    def advance(nbytes: int) -> None:
        meeting.alive()
        if progress is not None:
            progress(nbytes)

    return advance
