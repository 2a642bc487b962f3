"""explain: the plan of a restore against the run that a function builds; where none holds, which call would.

What does not fit is tried with the keywords that its error names, then with all there are; each is a plan like that of
restore, and none is carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from unmoor.describe import describe_path
from unmoor.errors import FileError, UnmoorError, UsageError
from unmoor.live.built import parameters_of
from unmoor.live.kept_streams import streams_kept
from unmoor.live.survey import members
from unmoor.plan.offers import Offer, faults_of, offers
from unmoor.plan.policy import CHOICES
from unmoor.report.explanation import call_text, explanation_text
from unmoor.values.catalog import Catalog
from unmoor.values.explanation import Explanation, Trial
from unmoor.values.plan import Change, Plan
from unmoor.values.text import listing

from .building import build_name, called, function_of
from .proving_leg import objects_to_save, with_state
from .restoring import Asked, prepare

__all__ = ["explain_path"]

_ROUNDS: Final = 6
"""The most keywords that are put together."""


@dataclass(frozen=True, slots=True)
class _Run:
    """What a restore is planned for: the file, the run's objects, and what else the caller asked."""

    catalog: Catalog
    roles: Mapping[str, Any]
    rng: Any
    device: Any
    only: Any

    def asked(self, added: Sequence[Offer]) -> Asked:
        """The arguments of restore with the offers."""
        given = {offer.keyword: offer.value for offer in added}
        modes = {mode: given.get(mode, choices[0]) for mode, choices in CHOICES.items()}
        return Asked(
            roles=_without(self.roles, [label for label, value in given.items() if value is None]),
            rng=self.rng,
            model_device=given.get("model_device", self.device),
            map_location=None,
            modes=modes,
            rename=given.get("rename"),
            only=self.only,
            skip=given.get("skip"),
            at=given.get("at") or {},
        )

    def plan(self, added: Sequence[Offer]) -> Plan | UnmoorError:
        """The plan, or the error that says why there is none."""
        try:
            return prepare(self.catalog.path, self.asked(added), self.catalog)[0]
        except FileError:
            raise
        except UnmoorError as error:
            return error


def explain_path(path: str, build: str | Callable[..., Any], *, model_device: Any, only: Any) -> Explanation:
    """Explain a checkpoint to the run that `build` makes. Random streams of the process stay where they are."""
    function, name = function_of(build), build_name(build)
    catalog = describe_path(path)
    with streams_kept():
        takes = "device" in parameters_of(function)
        built = called(function, device=model_device if takes else None, name=name.rpartition(":")[2])
        kept, left = objects_to_save(built.objects, ())
        rng = kept.pop("rng", None)
        roles, _ = with_state(kept)
        run = _Run(catalog, roles, rng or True, None if takes else model_device, only)
        made = _explained(run, name, left)
    return replace(made, text=explanation_text(made))


def _explained(run: _Run, name: str, left: Mapping[str, str]) -> Explanation:
    plain = run.plan(())
    live_only = tuple(Change(label, "", reason, "not restored") for label, reason in left.items())
    words = {"model_device": run.device, "only": run.only}
    base = {key: repr(value) for key, value in words.items() if value is not None}
    base |= {"rng": "rng"} if run.rng is not True else {}
    made = Explanation(run.catalog.path, name, fits=not isinstance(plain, UnmoorError), call="", live_only=live_only)
    nothing = _no_model(run, plain) if not isinstance(plain, UnmoorError) else ()
    if nothing:
        remedy = "Build the run with the models that the file has, under the same names."
        return replace(made, fits=False, error="MismatchError", faults=nothing, remedy=remedy)
    if not isinstance(plain, UnmoorError):
        return _with_plan(replace(made, call=call_text(run.catalog.path, list(run.roles), base)), run, plain)
    made = replace(made, error=type(plain).__name__, faults=faults_of(plain), remedy=plain.remedy)
    found = _searched(run, plain)
    if found is None:
        return made
    added, plan = found
    told = {**base, **{offer.keyword: offer.text for offer in added if offer.value is not None}}
    dropped = [offer.keyword for offer in added if offer.value is None]
    roles = [role for role in run.roles if role not in dropped]
    trial = Trial(tuple((offer.keyword, offer.text) for offer in added), tuple(_cost(plan, added)))
    return _with_plan(replace(made, call=call_text(run.catalog.path, roles, told), trial=trial), run, plan)


def _no_model(run: _Run, plan: Plan) -> tuple[str, ...]:
    """The fault of a plan that leaves every model of the run as it is, although the file has models."""
    labels = [label for label, _, _ in members("model", run.roles.get("model"))]
    left = {change.label for change in plan.not_restored if not change.name}
    saved = [".".join(map(str, part.keys)) or part.path for part in run.catalog.parts if part.role == "model"]
    if run.only is not None or not labels or not saved or not left.issuperset(labels):
        return ()
    return (f"model      the file has {listing(saved)}, the run {listing(labels)}: none of them would be restored",)


def _with_plan(made: Explanation, run: _Run, plan: Plan) -> Explanation:
    """The explanation with a plan, and what of file and run has no counterpart."""
    labels = {label for role, value in run.roles.items() for label, _, _ in members(role, value)}
    live = [c for c in plan.not_restored if c.label in labels]
    saved = [c for c in plan.not_restored if c.label not in labels]
    return replace(made, plan=plan, saved_only=tuple(saved), live_only=(*made.live_only, *live))


def _searched(run: _Run, error: UnmoorError) -> tuple[list[Offer], Plan] | None:
    """The first keywords with which there is a plan; each that is kept has left fewer faults than there were."""
    added: list[Offer] = []
    for _ in range(_ROUNDS):
        better: tuple[int, Offer, UnmoorError] | None = None
        for offer in offers(error, _droppable(run.roles)):
            if any(offer.keyword == other.keyword for other in added):
                continue
            found = run.plan([*added, offer])
            if not isinstance(found, UnmoorError):
                return [*added, offer], found
            number = len(faults_of(found))
            fewer = number < len(faults_of(error)) and not isinstance(found, UsageError)
            if fewer and (better is None or number < better[0]):
                better = (number, offer, found)
        if better is None:
            return None
        added, error = [*added, better[1]], better[2]
    return None


def _droppable(roles: Mapping[str, Any]) -> list[str]:
    """What of a run may start fresh, least first: never its models."""
    order = ("loader", "metrics", "scaler", "scheduler", "loss", "ema", "optimizer")
    known = [role for role in order if role in roles]
    return [*(role for role in roles if role not in order and role != "model"), *known]


def _without(roles: Mapping[str, Any], labels: Sequence[str]) -> dict[str, Any]:
    return {role: value for role, value in roles.items() if role not in labels}


def _cost(plan: Plan, added: Sequence[Offer]) -> Iterator[str]:
    """What the call leaves out, or takes otherwise than it was saved."""
    for offer in added:
        if offer.value is None:
            yield f"{offer.keyword} starts fresh: its saved state is not restored"
        elif isinstance(offer.value, str) and (offer.keyword, offer.value) in _COSTS:
            yield _COSTS[offer.keyword, offer.value]
    let_through = {offer.keyword for offer in added} & {"missing", "mismatched"}
    kept = (*plan.missing, *(plan.fresh if let_through else ()))
    for changes, what in ((kept, "as in the live run"), (plan.unexpected, "dropped")):
        names = list(dict.fromkeys(f"{change.label} {change.name}".strip() for change in changes))
        if names:
            yield f"{what}: {listing(names, 3)}"


_COSTS: Final[dict[tuple[str, Any], str]] = {
    ("hyperparameters", "live"): "learning rate and other options are those of the live run",
    ("cast", "any"): "values are rounded to the dtypes of the live run",
    ("position", "epoch"): "the loader begins its epoch again",
    ("position", "saved"): "each rank takes the loader state that was saved for it, whatever it counts",
    ("order", "file"): "nothing proves that optimizer state finds its own parameters: the file's order is believed",
    ("order", "live"): "nothing proves that optimizer state finds its own parameters: the live order is believed",
}
