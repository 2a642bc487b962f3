"""Why a resumed run differs, and what to do: the first difference, what the checkpoint holds, and clues. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from unmoor.values.proof import Difference
from unmoor.values.recording import CLUES, RNG, Batch, Failure, Mark, Recording
from unmoor.values.text import count, listing

__all__ = ["Case", "Holdings", "cause_of", "cause_of_failure"]


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a checkpoint was found to hold: keywords of save, random streams by name, names of tensors below a key."""

    roles: frozenset[str]
    streams: frozenset[str]
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class Case:
    """How the run was saved: by the functions of the user (`own`) or by unmoor, and what `holdings` were found."""

    build: str
    cut: int
    own: bool
    holdings: Holdings | None
    exact: bool


_KEYWORDS: Final = {
    "parameters": "model",
    "buffers": "model",
    "options": "optimizer",
    "loss function": "loss",
}
"""Component -> keyword of save, where they are not the same."""

_STREAMS: Final = {"torch": "torch RNG", "numpy": "numpy RNG", "python": "python RNG"}

_BY_HAND: Final = {
    "torch": "torch.get_rng_state() and torch.set_rng_state(...)",
    "numpy": "numpy.random.get_state() and numpy.random.set_state(...)",
    "python": "random.getstate() and random.setstate(...)",
}

_BY_GRADIENTS: Final = ("gradients", "parameters", "optimizer")
_ACCUMULATED: Final = (
    "Pass them: unmoor.save(..., gradients=unmoor.gradients(model)), and the same to restore; or save after a step of "
    "the optimizer."
)

_WITHOUT: Final = (
    "Everything that is known to decide is equal right after the restore. Look for state that no object of the run "
    "holds: a variable of train_step, a file, the time."
)


def cause_of_failure(failure: Failure, *, own: bool) -> tuple[str, str]:
    """Why a run could not be resumed at all, as its error says it."""
    who = "the resume function" if own else "unmoor.restore"
    lines = [" ".join(line.split()) for line in failure.details[:4]]
    what = who if failure.where == "resume" else f"the resumed run, at {failure.where},"
    return f"{what} raised {failure.kind}: {failure.headline}" + "".join(f"\n{line}" for line in lines), failure.remedy


def cause_of(
    case: Case,
    first: Difference,
    whole: Sequence[Recording],
    cut: Sequence[Recording],
    resumed: Sequence[Recording],
) -> tuple[str, str]:
    """Why, and what to do: of a state that was not restored, of data in another order, or of what clues tell."""
    rank = max(first.rank, 0)
    unsaved = resumed[rank].unsaved if not case.own else {}
    clues = _clues(cut[rank], resumed[rank], case.cut)
    if first.step == case.cut:
        return _of_state(case, first, unsaved)
    if first.component == "data order":
        return _of_data(case, first, whole[rank], resumed[rank], unsaved, clues)
    if clues:
        return _of_clues(clues)
    if first.step == case.cut + 1 and first.component in _BY_GRADIENTS and _had_gradients(cut[rank], case.cut):
        return "gradients that were accumulated before the cut are not in the checkpoint", _ACCUMULATED
    return _of_arithmetic(case, whole, resumed)


def _of_state(case: Case, first: Difference, unsaved: Mapping[str, str]) -> tuple[str, str]:
    """A component that is not right after the restore what it was at the cut."""
    if first.component.startswith(RNG):
        return _of_stream(case, first, unsaved)
    keyword = _KEYWORDS.get(first.component, first.component)
    what = f"{'the ' if keyword in _NOUNS else ''}{_NOUNS.get(keyword, keyword)}"
    left = next((reason for label, reason in unsaved.items() if label.partition("[")[0] == keyword), "")
    if left or (case.holdings is not None and keyword not in case.holdings.roles):
        told = f"{what} is not in the checkpoint" + (f" ({left})" if left else "")
        return told, _pass_it(case, keyword)
    own = first.name.rpartition(": ")[2].removesuffix(" (not persistent)")
    if case.holdings is not None and first.component in ("parameters", "buffers") and not _held(case.holdings, own):
        return f"{own} is not in the checkpoint, which holds others of the model", _pass_it(case, keyword)
    name = f"{first.component} {first.name}" if first.component == "options" else first.name
    if case.holdings is None:
        return f"{name} is not as it was: what the checkpoint holds of {what} cannot be told", _pass_it(case, keyword)
    if not case.own:
        return f"the checkpoint holds {what}, and what restore made of it differs in {name}", _pass_it(case, keyword)
    told = f"the checkpoint holds {what}, and after the resume function {name} is not as it was"
    return told, f"Load it after everything else that sets it: {keyword}.load_state_dict(...)."


_NOUNS: Final = {
    "model": "model",
    "optimizer": "optimizer",
    "scheduler": "scheduler",
    "scaler": "scaler",
    "loss": "loss function's state",
    "metrics": "metrics' state",
    "ema": "EMA",
}


def _held(holdings: Holdings, name: str) -> bool:
    parts = name.split(".")
    return any(".".join(parts[i:]) in holdings.names for i in range(len(parts)))


def _pass_it(case: Case, keyword: str) -> str:
    if case.own:
        by_hand = (
            f"Save {keyword}.state_dict() and load it again" if keyword in _NOUNS else f"Save and restore {keyword}"
        )
        return f"{by_hand}; unmoor.save(path, {keyword}={keyword}, ...) carries all of it."
    return f"Pass it: unmoor.save(..., {keyword}={keyword}), and the same to restore."


def _of_stream(case: Case, first: Difference, unsaved: Mapping[str, str]) -> tuple[str, str]:
    name = first.component.removeprefix(RNG)
    what = _STREAMS.get(name, f"generator {name!r}" if ":" not in first.name else f"the RNG of {first.name}")
    gone = "rng" in unsaved or (case.holdings is not None and name not in case.holdings.streams)
    told = f"{what}: not in the checkpoint" if gone else f"{what}: in the checkpoint, and not put back"
    if not case.own:
        many = f'unmoor.save(..., rng={{"{name}": generator}})'
        given = name not in _STREAMS and ":" not in first.name
        return told, f"Pass it: {many}, and the same to restore." if given else "Leave rng= at True, in both calls."
    by_hand = _BY_HAND.get(name, f"{name}.get_state() and {name}.set_state(...)")
    return told, f"Keep {by_hand}; unmoor.save and unmoor.restore carry every stream."


def _clues(cut: Recording, resumed: Recording, step: int) -> list[tuple[str, str, Mark | None, Mark]]:
    """Hidden state that is not after the restore what it was at the cut: its kind, its place, both sides."""
    at_cut = cut.at(step)
    if at_cut is None or resumed.restored is None:
        return []
    found = []
    for component, rows in at_cut.state.items():
        if component.startswith(CLUES):
            theirs = resumed.restored.get(component, {})
            found += [
                (component.removeprefix(CLUES), place, theirs.get(place), mark)
                for place, mark in rows.items()
                if place not in theirs or theirs[place].digest != mark.digest
            ]
    order = ("generator", "object", "optimizer", "value", "mode")
    return sorted(found, key=lambda clue: order.index(clue[0]) if clue[0] in order else len(order))


def _of_clues(clues: Sequence[tuple[str, str, Mark | None, Mark]]) -> tuple[str, str]:
    kind, place, here, there = clues[0]
    others = [other for _, other, _, _ in clues[1:] if other != place]
    more = f"; so are {listing(others, 3)}" if others else ""
    if kind == "generator":
        return f"the generator {place} is not in the checkpoint{more}", _pass_generator(place)
    if kind == "object":
        word = _word(place.rpartition(" (")[0].rpartition(" ")[2].rpartition(".")[2])
        told = f"{place} has a state, and is none of the objects that are saved{more}"
        return told, f"Build the run with it, {{..., {word!r}: {word}}}, and pass it to save and to restore."
    if kind == "optimizer":
        outer, _, inner = place.rpartition(".")
        told = f"{place} has state of its own, which the state dict of {outer} leaves out{more}"
        return told, f'Pass both, in save and restore: optimizer={{"outer": {outer}, "{inner}": {place}}}.'
    mine = here.shown if here is not None else "not there"
    if kind == "mode":
        return f"{place} is {mine} after the restore and was {there.shown}", f"Call {place}.train() after the restore."
    name = place.rpartition(" ")[2].rpartition(".")[2]
    word = _word(name)
    told = f"{place} is {mine} after the restore and was {there.shown}: no object that is saved holds it{more}"
    fix = (
        f'Save it and set it: unmoor.save(..., {word}=...), report.extra["{word}"]; or give what holds it a state_dict.'
    )
    return told, fix


def _word(name: str) -> str:
    text = "".join(c if c.isalnum() or c == "_" else "_" for c in name).strip("_")
    return text if text.isidentifier() else "value"


def _pass_generator(place: str) -> str:
    name = "sampler" if "sampler" in place or place.startswith("loader") else "generator"
    value = place if place.replace(".", "").replace("_", "").isalnum() else place.rpartition(" ")[2]
    if not value.replace(".", "").replace("_", "").isalnum():
        value = "..."
    return f'Pass it: unmoor.save(..., rng={{"{name}": {value}}}), and the same to restore.'


_OTHER_VALUES: Final = (
    "the same samples have other values: the dataset draws random numbers, or the build function made other data",
    "Seed the data inside of the build function, or pass its generator: unmoor.save(..., rng={...}).",
)


_IN_WORKERS: Final = (
    "the same samples have other values: it draws in the workers of its loader, whose random streams begin anew",
    "Draw what belongs to a sample from its index: numpy.random.default_rng((seed, epoch, index)); or num_workers=0.",
)


def _of_data(
    case: Case,
    first: Difference,
    whole: Recording,
    resumed: Recording,
    unsaved: Mapping[str, str],
    clues: Sequence[tuple[str, str, Mark | None, Mark]],
) -> tuple[str, str]:
    """Batches that are others: of the same samples, of an epoch that begins again, or in another order."""
    here, there = resumed.at(first.step), whole.at(first.step)
    mine, other = (moment.batches[0] if moment and moment.batches else None for moment in (here, there))
    generators = [clue for clue in clues if clue[0] == "generator"]
    if mine and other and mine.known and mine.samples == other.samples:
        if generators:
            return _of_clues(generators)
        return _IN_WORKERS if "workers" in whole.facts else _OTHER_VALUES
    again = _again(whole, first.step, mine)
    if there is not None and there.first and generators:
        return _of_order(generators)
    if "loader" in unsaved or _no_position(unsaved) or case.own:
        begun = f": the batch of step {first.step} is that of step {again} again" if again else ""
        also = f"; nor is the generator {generators[0][1]}" if generators else ""
        fix = "Give it one: loader = unmoor.resumable(loader), and unmoor.save(..., loader=loader)."
        return f"the loader's position is not in the checkpoint{begun}{also}", fix
    if generators:
        return _of_order(generators)
    if clues:
        return _of_clues(clues)
    return (
        "the order of the samples is drawn from something that is not in the checkpoint",
        "Draw it from a generator, and pass that: unmoor.save(..., rng={...}); or unmoor.resumable(loader).",
    )


def _of_order(generators: Sequence[tuple[str, str, Mark | None, Mark]]) -> tuple[str, str]:
    place = next((place for _, place, _, _ in generators if "sampler" in place or "loader" in place), generators[0][1])
    known = {place for _, place, _, _ in generators}
    if "loader.generator" in known:
        place = "loader.generator"
    return f"the sampler's generator ({place}) is not in the checkpoint", _pass_generator(place)


def _no_position(unsaved: Mapping[str, str]) -> bool:
    return any(label.startswith("loader") for label in unsaved)


def _again(whole: Recording, step: int, batch: Batch | None) -> int:
    """The earlier step whose batch this is, 0 where it is none of them."""
    if batch is None:
        return 0
    found = [m.step for m in whole.moments if m.step < step and any(b.digest == batch.digest for b in m.batches)]
    return found[0] if found else 0


def _had_gradients(cut: Recording, step: int) -> bool:
    at_cut = cut.at(step)
    return at_cut is not None and bool(at_cut.state.get("gradients"))


def _of_arithmetic(case: Case, whole: Sequence[Recording], resumed: Sequence[Recording]) -> tuple[str, str]:
    """What differs although all that was restored is equal, and nothing else is known to."""
    facts, ranks = whole[0].facts, (len(whole), len(resumed))
    if ranks[0] != ranks[1] and "batchnorm" in facts:
        told = f"BatchNorm takes the statistics of each rank's own batch: of {ranks[1]} now, and of {ranks[0]} before"
        fix = "Convert it: torch.nn.SyncBatchNorm.convert_sync_batchnorm(model); or prove with as many ranks."
        return told, fix
    moved = whole[0].device.partition(":")[0] != resumed[0].device.partition(":")[0]
    if "dropout" in facts and (moved or ranks[0] != ranks[1]):
        where = f"on {resumed[0].device}" if moved else f"on each of {count(ranks[1], 'rank')}"
        return (
            f"dropout draws {where} from other random numbers than on {whole[0].device}",
            "That is so for any run that changes where it draws; prove with dropout off, or on the same devices.",
        )
    if not case.exact:
        return (
            "nothing that was restored differs; the steps go apart by more than the tolerance",
            "Where the arithmetic of both is known to differ so much, pass a larger tolerance=.",
        )
    return "not known: all that was restored is equal", _WITHOUT
