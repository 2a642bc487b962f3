"""The sentences of errors that reach all ranks: who is absent, who failed and why, who said what. Pure.

A rank that is told of another's failure raises the class of that failure, so that code which catches it and goes on (to
an older checkpoint, say) goes the same way on every rank.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from unmoor import errors
from unmoor.errors import RankError, RanksDiffer, UnmoorError
from unmoor.values.text import columns

from .exchange import Farewell

__all__ = ["Call", "Cause", "different", "ended", "failed", "mark", "names", "not_one"]

_LINE: Final = 400
"""Characters of a cause that is one line among others."""


@dataclass(frozen=True, slots=True)
class Call:
    """What is called: the verb, the path as given ("" where none), and the ranks of the group by their number in it."""

    verb: str
    path: str
    ranks: Sequence[int]

    def __str__(self) -> str:
        return f"{self.verb} of {self.path}" if self.path else self.verb

    @property
    def of(self) -> str:
        """`` of 4`` where the group is ranks 0 to 3, nothing where it is some of a world."""
        return f" of {len(self.ranks)}" if list(self.ranks) == list(range(len(self.ranks))) else ""

    def names(self, members: Sequence[int]) -> str:
        """Members of the group in the numbers of the world."""
        return names([self.ranks[member] for member in members])


@dataclass(frozen=True, slots=True)
class Cause:
    """What failed on a rank: the classes of its error, nearest first, and the error's own parts."""

    kinds: tuple[str, ...]
    headline: str
    details: tuple[str, ...] = ()
    remedy: str = ""
    path: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Cause:
        """The cause that `error` is."""
        kinds = tuple(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
        if isinstance(error, UnmoorError):
            return cls(kinds, error.headline, error.details[:40], error.remedy, error.path)
        return cls((), f"{type(error).__name__}: {' '.join(str(error).split())[:_LINE]}")

    def line(self) -> str:
        """The cause as one line."""
        text = "; ".join([self.headline, *(" ".join(detail.split()) for detail in self.details)])
        shown = text if len(text) <= _LINE else text[: _LINE - 3] + "..."
        return f"{self.kinds[0]}: {shown}" if self.kinds else shown

    def to_bytes(self) -> bytes:
        """As it is posted."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> Cause:
        """As it was posted."""
        fields = json.loads(value)
        return cls(**{**fields, "kinds": tuple(fields["kinds"]), "details": tuple(fields["details"])})


def names(ranks: Sequence[int]) -> str:
    """`rank 1`, `ranks 0 and 2`, `ranks 0-7 and 9`."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [word for run in runs for word in ([f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run))]
    text = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"


def ended(call: Call, why: Farewell | None, member: int, past: Sequence[Farewell]) -> UnmoorError:
    """The error for a call that a rank gave up, on each rank that is in it. `past` are calls given up before."""
    if why is None:
        return RankError(
            f"{call}: a rank gave up and did not say why",
            remedy="The output of the other ranks says more.",
            path=call.path,
        )
    if why.cause:
        return failed(call, {why.rank: Cause.from_bytes(why.cause.encode())}, ())
    if member in why.absent:
        return RankError(
            f"{call}: this rank came too late; {_gave_up(call, why)}",
            remedy="A rank that is only slow has longer with timeout=, in seconds.",
            path=call.path,
        )
    return _absent(call, why, past)


def _absent(call: Call, why: Farewell, past: Sequence[Farewell]) -> RankError:
    """The error for ranks that did not come, on every rank that did."""
    here = [member for member in range(len(call.ranks)) if member not in why.absent]
    missing, present = call.names(why.absent), call.names(here)
    if why.stage:
        verb = "was" if len(why.absent) == 1 else "were"
        headline = f"{call}: {missing}{call.of} {verb} lost at '{why.stage}'"
        seen = f"was there when the call began, and has not been heard of for {why.seconds:g} s"
        remedy = (
            "Its process was killed, hangs, or left the call by an error of its own: its output says which. "
            "A rank that is only slow has longer with timeout=, in seconds."
        )
    else:
        few = len(here) <= len(why.absent)
        headline = f"{call.verb} was called on {present} only" if few else f"{call}"
        headline += f": {missing}{call.of} did not come within {why.seconds:g} s"
        seen = f"did not call {call.verb}, or ended before, or passed another group"
        remedy = (
            f"Every rank of the group calls {call.verb}, with the same arguments: take it out of `if rank == 0`. "
            f"Or pass group=None, and this process meets nobody."
        )
    lines = columns([(present, f"waited in {call}"), (missing, seen)], indent=0)
    made = RankError(headline, details=[*lines, *_earlier(call, past)], remedy=remedy, path=call.path)
    made.ranks = tuple(call.ranks[member] for member in why.absent)
    return made


def _earlier(call: Call, past: Sequence[Farewell]) -> list[str]:
    """What was given up before this call, one line each."""
    return [f"earlier: {_gave_up(call, farewell)}" for farewell in past]


def _gave_up(call: Call, why: Farewell) -> str:
    """Who gave up what, when and why."""
    cause = f"{call.names(why.absent)} did not come within {why.seconds:g} s" if why.absent else ""
    cause = Cause.from_bytes(why.cause.encode()).line() if why.cause else cause
    return f"{call.names([why.rank])} gave up its {why.call} at {why.clock}: {cause}"


def _together(groups: Mapping[str, Sequence[int]], call: Call) -> list[str]:
    """One line for each thing that was said, with the ranks that said it."""
    return columns([(call.names(members), text) for text, members in groups.items()], indent=0)


def failed(call: Call, causes: Mapping[int, Cause], told: Sequence[str]) -> UnmoorError:
    """The error on a rank that could go on itself, for the causes of those that could not. `told` are more lines."""
    groups: dict[Cause, list[int]] = {}
    for member, cause in causes.items():
        groups.setdefault(cause, []).append(member)
    only = next(iter(groups)) if len(groups) == 1 else None
    lines = _together({cause.line(): members for cause, members in groups.items()}, call)
    if only is not None:
        head = f"{only.kinds[0]}: {only.headline}" if only.kinds else only.headline
        lines = [f"{call.names(list(causes))}  {head}", *(f"  {detail}" for detail in only.details)]
    lines += _on_one_node(call, causes)
    made: UnmoorError = _common(list(groups))(
        f"{call} failed on {call.names(list(causes))}{call.of}, so it stopped on every rank",
        details=[*lines, *told],
        remedy=only.remedy if only is not None and only.remedy else "Mend that, then call it again on every rank.",
        path=call.path,
    )
    made.ranks = tuple(call.ranks[member] for member in causes)
    return made


def mark(error: BaseException, call: Call, causes: Mapping[int, Cause], member: int, told: Sequence[str]) -> None:
    """Add to a rank's own error where it was, and what the other ranks say."""
    if not isinstance(error, UnmoorError):
        return
    own = causes[member]
    same = [other for other, cause in causes.items() if cause == own]
    rest: dict[str, list[int]] = {}
    for other, cause in causes.items():
        if cause != own:
            rest.setdefault(cause.line(), []).append(other)
    well = [other for other in range(len(call.ranks)) if other not in causes]
    if len(same) == len(call.ranks):
        lines = [f"on every rank: {call.names(same)}"]
    else:
        lines = [f"on {call.names(same)}{call.of}", *_together(rest, call)]
        lines += [f"{call.names(well)} had no error, and stopped too"] if well else []
        lines += _on_one_node(call, causes)
    error.ranks = tuple(call.ranks[other] for other in causes)
    error.add_details(*lines, *told)


def _on_one_node(call: Call, causes: Mapping[int, Cause]) -> list[str]:
    """What it means that only some ranks find a checkpoint."""
    found = [member for member in range(len(call.ranks)) if member not in causes]
    if not found or any(cause.kinds[:1] != ("NotACheckpoint",) for cause in causes.values()):
        return []
    verb = "finds" if len(found) == 1 else "find"
    return [f"{call.names(found)} {verb} it: every node must see it, on a shared disk or as a copy of all its files"]


def not_one(call: Call, seen: Sequence[Mapping[str, str]]) -> RankError:
    """The error for ranks that found different checkpoints under one path. `seen` is by member of the group."""
    return RankError(
        f"{call.path} is not one checkpoint: the ranks see different files under this path",
        details=_differences(call, seen, list(seen[0])),
        remedy="Put the checkpoint where every node sees it, or copy it to each of them whole.",
        path=call.path,
    )


def different(call: Call, said: Sequence[Mapping[str, str]], past: Sequence[Farewell]) -> RanksDiffer:
    """The error for ranks of one call that say different things, on every rank. `said` is by member of the group."""
    verbs = {facts.get("verb", "") for facts in said}
    keys = dict.fromkeys(key for facts in said for key in facts)
    shown = [key for key in keys if len({facts.get(key) for facts in said}) > 1]
    if len(verbs) > 1:
        shown = [key for key in ("verb", "path") if key in shown]
    lines = _differences(call, said, shown)
    what = "different verbs" if len(verbs) > 1 else f"{call.verb} with different {_words(shown)}"
    return RanksDiffer(
        f"the ranks of one group called {what}; nothing was changed",
        details=[*lines, *_earlier(call, past)],
        remedy="Ranks that save or restore together make the same call: " + _REMEDIES.get(shown[0], _SAME),
        path=call.path,
    )


def _differences(call: Call, said: Sequence[Mapping[str, str]], keys: Sequence[str]) -> list[str]:
    """One line for each thing on which ranks differ: who said what."""
    rows = []
    for key in keys:
        groups: dict[str, list[int]] = {}
        for member, facts in enumerate(said):
            groups.setdefault(facts.get(key, "nothing"), []).append(member)
        if len(groups) > 1:
            rows.append((key, "; ".join(f"{call.names(members)}: {text}" for text, members in groups.items())))
    return columns(rows, indent=0)


def _words(keys: Sequence[str]) -> str:
    words = [_PLURALS.get(key, f"{key}=") for key in keys]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


_PLURALS: Final = {
    "path": "paths",
    "objects": "objects",
    "torch": "versions of torch",
    "unmoor": "versions of unmoor",
    "group size": "sizes of the group",
}
_SAME: Final = "the same arguments on every rank. What differs on purpose goes with group=None, each rank alone."
_REMEDIES: Final = {
    "verb": "take it out of `if rank == 0`, or pass group=None where one process acts alone.",
    "path": "one path for all. A call inside `if rank == 0` makes the other ranks meet it with their next one: take it "
    "out. For a file of its own on each rank pass group=None.",
    "objects": "the same keywords, each with the same kind of object, on every rank.",
    "torch": "install the same version everywhere.",
    "unmoor": "install the same version everywhere.",
}


def _common(causes: Sequence[Cause]) -> type[UnmoorError]:
    """The nearest class of errors.py that all causes have; RankError where they have none but the root."""
    first = causes[0].kinds
    shared = [kind for kind in first if all(kind in cause.kinds for cause in causes)]
    found = getattr(errors, shared[0]) if shared else UnmoorError
    return RankError if found is UnmoorError else found
