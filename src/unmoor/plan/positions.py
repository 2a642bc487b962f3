"""Where a loader goes on: at the global sample position of the saved epoch, or not at all and said so.

Samples are counted over all ranks. The first samples of an epoch's order are done once every rank has handed out as
many batches as the others; what is left of that order is dealt out to the ranks of the live world, each sample once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from unmoor.values.finding import Finding
from unmoor.values.positions import ORDERS, POSITION, Position
from unmoor.values.ranks import ranks_text
from unmoor.values.target import TargetObject
from unmoor.values.text import count

from .policy import Fault
from .position_states import moved_state, own_data

__all__ = ["PositionPlan", "plan_position"]

_KEPT: Final = "torchdata.stateful_dataloader.sampler.RandomSampler"
_EPOCH: Final = 'position="epoch"'


@dataclass(slots=True)
class PositionPlan:
    """The state to hand over, None for none, and what there is to tell about it."""

    state: Any = None
    note: str = ""
    faults: list[Fault] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    fresh: str = ""


@dataclass(frozen=True, slots=True)
class _Case:
    """One loader to be restored. `everyone` are the positions of all ranks that saved, `rank` is this process."""

    label: str
    node: Any
    own: Position
    live: Position
    everyone: Sequence[Position]
    rank: int

    @property
    def ranks(self) -> int:
        return len(self.everyone)

    @property
    def new_rank(self) -> int:
        return self.rank if self.rank >= self.ranks else 0

    @property
    def same_world(self) -> bool:
        return self.own.world == self.live.world and self.new_rank == 0

    def moved(self, first: int | None) -> Any:
        return moved_state(self.node, self.own, self.live, first, new_rank=self.new_rank)


def plan_position(
    target: TargetObject, node: Any, nodes: Sequence[Any], mode: str, *, rank: int, world: int
) -> PositionPlan:
    """What to hand a loader. `node` is the state as this rank sees it, `nodes` those of all ranks that saved.

    `mode` is exact, epoch or saved; `rank` of `world` is this process.
    """
    if mode == "saved":
        return PositionPlan(node)
    own, live = _facts(node), target.position
    if own is None or live is None:
        return _unknown(target, node, len(nodes), mode, world)
    everyone = [position for position in map(_facts, nodes) if position is not None]
    case = _Case(target.label, node, own, live, everyone or [own], rank)
    if mode == "epoch":
        return _from_beginning(case)
    return _within(case) if any(position.under_way for position in case.everyone) else _between(case)


def _facts(node: Any) -> Position | None:
    return Position.from_plain(node.get(POSITION)) if isinstance(node, Mapping) else None


def _unknown(target: TargetObject, node: Any, saved: int, mode: str, world: int) -> PositionPlan:
    """A loader of a class whose positions are not known, or a file that does not tell them."""
    live = target.position
    if live is None and mode == "epoch":
        return PositionPlan(fresh=f"{_EPOCH}: it begins as it was built, the epoch is its own to set")
    if live is None and saved != world:
        message = f"saved by {count(saved, 'rank')}, now {world:,}, and what a {target.class_name} counts is not known"
        remedy = f'position="saved" hands each rank its own state, and new ranks that of rank 0; {_EPOCH} leaves it'
        return PositionPlan(faults=[Fault("mismatch", target.label, message, remedy)])
    plan = PositionPlan(node)
    if live is not None and mode == "epoch":
        message, remedy = "the file does not tell its position", f"{target.label}=None leaves it as it was built"
        return PositionPlan(faults=[Fault("mismatch", target.label, message, remedy)])
    if live is not None and live.dealt != "whole":
        message = f"the file does not say of which rank this position is, of how many; {_who(live)} takes it"
        plan.findings.append(Finding("position-not-told", "warning", target.label, message, f"{target.label}=None"))
    return plan


def _between(case: _Case) -> PositionPlan:
    """Between two epochs there is nothing to share out."""
    own, live = case.own, case.live
    alike = (own.kind, own.sampler, own.unit) == (live.kind, live.sampler, live.unit)
    if live.kind != "resumable" and not (case.same_world and own.setting() == live.setting()):
        alike = alike and own.order == "drawn" and own.length == live.length  # else its state counts to another end
    if alike and (case.new_rank == 0 or _one_order(case.everyone)):
        return PositionPlan(case.node)
    return PositionPlan(_beginning(case, same_order=False), note=f"between epochs{_after(own)}")


def _after(own: Position) -> str:
    return "" if own.epoch is None else f", the last was epoch {own.epoch:,}"


def _within(case: _Case) -> PositionPlan:
    own, live = case.own, case.live
    if _lost(case):
        message = f"torchdata's StatefulDataLoader does not keep the random state that {_short(own)} drew from"
        remedy = f"shuffle=True or unmoor.resumable(DataLoader(...)) where it is made; {_again(own)} in another order"
        return PositionPlan(faults=[Fault("mismatch", case.label, message, remedy)])
    if _fits_as_it_is(case):
        return PositionPlan(case.node, note=_progress(own) if own.under_way else "")
    uneven = _uneven(case)
    if not uneven and own.ended and _can_hold(own, live):
        return PositionPlan(case.moved(None), note=f"{_progress(own)}: nothing of it is left")
    reasons = [*uneven, *_differences(case)] or list(_between_batches(own, live))
    if reasons:
        return PositionPlan(faults=[Fault("mismatch", case.label, message, remedy) for message, remedy in reasons])
    plan = PositionPlan(_unchanged(case) or case.moved(own.consumed), note=_goes_on(own, live))
    if case.ranks < own.replicas:
        message = f"the file holds the position of {_who(own)} alone; the others are taken to have stood there too"
        plan.findings.append(Finding("position-of-one-rank", "warning", case.label, message, _again(own)))
    return plan


def _lost(case: _Case) -> bool:
    """Whether torchdata saved how far it came in an order, and not what that order was drawn from."""
    own = case.own
    return own.kind == "stateful" and own.order == "drawn" and own.sampler != _KEPT and not own.ended


def _fits_as_it_is(case: _Case) -> bool:
    """Whether the state that this rank sees is its own: the same share of the same order in the same batches."""
    if case.own.setting() != case.live.setting():
        return False
    return case.same_world or (case.own.dealt != "whole" and case.new_rank == 0 and not _uneven(case))


def _unchanged(case: _Case) -> Any:
    """The state as it is, where every rank was given the same samples and goes on doing so."""
    own, live = case.own, case.live
    whole = own.dealt == live.dealt == "whole" and own.setting() == live.setting()
    return case.node if whole and own.order in ("own", "drawn") else None


def _can_hold(own: Position, live: Position) -> bool:
    return live.kind == "resumable" or own.kind == live.kind


def _one_order(everyone: Sequence[Position]) -> bool:
    return len({position.drawn for position in everyone}) == 1


def _uneven(case: _Case) -> list[tuple[str, str]]:
    """Ranks that did not stand at one position."""
    places: dict[tuple[Any, ...], list[int]] = {}
    for rank, position in enumerate(case.everyone):
        places.setdefault((position.epoch, position.consumed, position.under_way), []).append(rank)
    if len(places) == 1:
        return []
    words = [f"{_progress(case.everyone[ranks[0]])} ({ranks_text(ranks)})" for ranks in places.values()]
    message = f"the ranks did not stand at one position: {'; '.join(words[:4])}"
    return [(message, f"{count(case.own.world, 'rank')} restore it exactly; {_again(case.own)}")]


def _differences(case: _Case) -> Iterator[tuple[str, str]]:
    """Why what is left of the saved epoch is not known to be what the live loader would give."""
    own, live, again = case.own, case.live, _again(case.own)
    other = [*_another_order(case)]
    if other or own.order == "own":
        yield from other
        return
    if own.length != live.length:
        yield f"saved over {own.length:,} samples, now {live.length:,}", f"use the same dataset; {again}"
    if own.seed != live.seed:
        yield f"saved with seed={own.seed}, now seed={live.seed}", f"seed={own.seed}; {again}"
    if own.even and live.even and own.even != live.even:
        saved = own.even == "cut"
        yield f"saved with drop_last={saved}, now drop_last={not saved}", f"drop_last={saved}; {again}"
    if not _can_hold(own, live):
        yield f"saved by {_KINDS[own.kind]}, now {_KINDS[live.kind]}", f"use unmoor.resumable(DataLoader(...)); {again}"
    elif live.kind == "stateful" and own_data(case.node):
        yield "the dataset keeps a state of its own on each rank", again


def _another_order(case: _Case) -> Iterator[tuple[str, str]]:
    """Where the saved epoch's order is not the live loader's, or not one that all ranks had."""
    own, live, again = case.own, case.live, _again(case.own)
    if "stream" in (own.order, live.order):
        own_way = 'a loader class of your own whose state counts the samples of all ranks, position="saved"'
        yield f"an iterable dataset does not say which samples {_ranks(own)} took", f"{again}; {own_way}"
    elif "own" in (own.order, live.order):
        yield from _own_order(case)
    elif own.order != live.order or (own.order == "drawn" and own.sampler != live.sampler):
        yield f"another order: saved {_order(own)}, now {_order(live)}", again
    elif own.order == "drawn" and own.kind != live.kind:
        yield f"saved by {_KINDS[own.kind]}, now {_KINDS[live.kind]}: the order was drawn otherwise", again
    elif own.order == "drawn" and not _one_order(case.everyone):
        yield "each rank shuffled for itself, and what the others took is not known", again


_KINDS: Final = {
    "resumable": "unmoor.resumable",
    "stateful": "torchdata's StatefulDataLoader",
    "sampler": "torchdata's StatefulDistributedSampler",
}


def _own_order(case: _Case) -> Iterator[tuple[str, str]]:
    own, live = case.own, case.live
    if own.setting() != live.setting():
        yield f"another order: saved {_order(own)}, now {_order(live)}", _again(own)
    elif case.ranks == 1 or not own.consumed or not _one_order(case.everyone):
        yield f"how a {_short(own)} shares an epoch among ranks is not known", _again(own)


def _between_batches(own: Position, live: Position) -> Iterator[tuple[str, str]]:
    """A position that the state of torchdata's loader cannot hold, and those that it can."""
    if live.kind == "resumable":
        return
    step = live.step if live.unit == "batch" else 1 if live.dealt == "whole" else live.replicas
    if not step or own.consumed % step:
        fit = [str(ranks) for ranks in range(1, 65) if own.consumed % (step // live.replicas * ranks or 1) == 0]
        worlds = f"{', '.join(fit[:6])} ranks can take it" if len(fit) > 1 and live.dealt == "samples" else ""
        message = f"{own.consumed:,} samples were done, no multiple of the {step:,} that {_ranks(live)} take together"
        ways = (worlds, "unmoor.resumable(DataLoader(...)) goes on from any sample", _again(own))
        yield message, "; ".join(way for way in ways if way)


def _from_beginning(case: _Case) -> PositionPlan:
    own = case.own
    if not any(position.under_way for position in case.everyone):
        return _between(case)
    done = f": {own.consumed:,} of {own.length:,} samples had been done" if own.length >= 0 else ""
    same = own.kind == case.live.kind and own.sampler == case.live.sampler
    same_order = same and (case.new_rank == 0 or _one_order(case.everyone))
    return PositionPlan(_beginning(case, same_order=same_order), note=f"begins {_epoch(own)} again, by {_EPOCH}{done}")


def _beginning(case: _Case, *, same_order: bool) -> Any:
    """The state at the beginning of the saved epoch. With `same_order` it is drawn as it was."""
    own, live = case.own, case.live
    if live.kind == "resumable":
        kept = {**case.node, "batches": 0, "digest": 0, "first": 0, "anew": True} if same_order else {}
        if kept and own.order == "seeded" and not case.same_world:
            kept["start"] = {**kept["start"], "host": {}}
        bare = {"batches": 0, "digest": 0, "first": 0, "start": {}, "generators": None}
        return {**(kept or bare), "epoch": own.epoch, POSITION: own.to_plain()}
    if live.kind == "stateful" and same_order and own.order == "drawn":
        return case.moved(0)
    return {POSITION: own.to_plain(), **({"yielded": 0} if live.kind == "sampler" else {})}


def _goes_on(own: Position, live: Position) -> str:
    """One sentence of a report: how far the epoch was, and where each rank goes on."""
    if live.length < 0 or own.consumed > live.length:
        return _progress(own)
    text = _progress(own)
    if own.replicas != live.replicas:
        text += f", saved by {_ranks(own)}, now {live.replicas:,}"
    each = own.consumed // live.replicas if live.dealt != "whole" else own.consumed
    whose = "it goes on" if live.replicas == 1 else "each goes on"
    text += f": {whose} at sample {each:,}" if own.consumed % live.replicas == 0 else f": {whose} from there"
    step = live.step
    if step and own.consumed % step:
        text += f"; batches are cut from there, not at multiples of {live.batch:,}"
    return text + _evened(own, live)


def _evened(own: Position, live: Position) -> str:
    """How the end of the epoch differs by what is repeated or left out to give each rank as many samples."""
    before, now = own.uneven(own.consumed), live.uneven(own.consumed)
    if before == now:
        return ""
    what = "left out" if "cut" in (own.even, live.even) else "repeated"
    return f"; {count(now, 'sample')} {what} at its end to make ranks even, {before:,} when saved"


def _progress(own: Position) -> str:
    if not own.under_way:
        return f"between epochs{_after(own)}"
    if own.length < 0:
        return f"{_epoch(own)}, after {count(own.consumed, 'batch')}".replace("batchs", "batches")
    return f"{_epoch(own)}, {own.consumed:,} of {own.length:,} samples"


def _epoch(own: Position) -> str:
    return "the epoch" if own.epoch is None else f"epoch {own.epoch:,}"


def _again(own: Position) -> str:
    return f"{_EPOCH} begins {_epoch(own)} again"


def _ranks(position: Position) -> str:
    return "1 process" if position.replicas == 1 else f"{position.replicas:,} ranks"


def _who(position: Position) -> str:
    return f"rank {position.rank} of {position.replicas:,}"


def _short(position: Position) -> str:
    return position.sampler.rpartition(".")[2]


def _order(position: Position) -> str:
    return f"{ORDERS[position.order]} ({_short(position)}, {_ranks(position)})"
