"""How the ranks of one call meet: through the store of their process group, never through its collectives."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import distributed as dist

from unmoor.errors import RankError, UnmoorError, UsageError
from unmoor.version import __version__

from . import said
from .exchange import Exchange
from .postings import Board
from .rounds import Round
from .said import Call, Cause

__all__ = ["Meeting", "meet"]

T = TypeVar("T")
_UNTOUCHED: Final = ("nothing was changed on any rank",)


class Meeting:
    """One call, a save or a restore, of all ranks of a group.

    rank: this process's number in the group. size: how many there are; of size 1 every method is a no-op.
    group: the process group, None for this process alone.

    Every method is called by all ranks, in the same order; each returns once all ranks have called it. A rank that does
    not come within the timeout is an error on all that did. Leave it by `with`: an error that leaves the block is told
    to the ranks that still wait.
    """

    def __init__(self, call: Call, *, rank: int = 0, way: Round | None = None, group: Any = None) -> None:
        self.rank = rank
        self.size = len(call.ranks)
        self.group = group
        self._call = call
        self._way = way

    def agree(self, what: Mapping[str, str], error: BaseException | None = None) -> None:
        """Say this rank's facts, or the error that kept it from having any; every rank has said the same afterwards.

        The fact "path" names the call in later errors. Raises RanksDiffer on every rank, with who said what, where
        facts differ; RankError for absent ranks; where a rank brought an error, it raises that, and the others an error
        of the same class.
        """
        if self._way is None:
            return _raise(error)
        facts = {"verb": self._call.verb, "group size": str(self.size), "torch": torch.__version__}
        facts |= {"unmoor": __version__, **what}
        self._call = self._way.call = replace(self._call, path=what.get("path", ""))
        compare = json.dumps(facts, sort_keys=True).encode()
        exchange = self._way.arrive("", _posting(facts, error), compare=compare, odd=error is not None)
        if exchange.odd():
            raise said.different(self._call, self._hear(exchange, error, _UNTOUCHED), self._way.past)
        return None

    def settle(
        self,
        error: BaseException | None,
        stage: str,
        told: Sequence[str] = (),
        seen: Mapping[str, str] | None = None,
    ) -> None:
        """Exchange outcomes: returns if every rank brought None.

        Otherwise a rank raises the error it brought; those that brought none raise one of the same class, with one line
        for each cause and its ranks. `told` is what else is to be said on this rank, if it comes to that. `seen` is
        what the rank found under the path of the call: a difference is a RankError on every rank.
        """
        if self._way is None:
            return _raise(error)
        mine = _posting(seen or {}, error)
        compare = None if error is not None else json.dumps(seen or {}, sort_keys=True).encode()
        exchange = self._way.arrive(stage, mine, compare=compare, odd=error is not None)
        if exchange.odd():
            seen_by = self._hear(exchange, error, told)
            raise said.not_one(self._call, seen_by)
        return None

    @contextmanager
    def step(self, stage: str, told: Callable[[], Sequence[str]] = tuple) -> Iterator[dict[str, str]]:
        """A part of the call that each rank does for itself; it ends when all are done, as `settle` says.

        Gives a dict for what the rank found under the path of the call.
        """
        seen: dict[str, str] = {}
        try:
            yield seen
        except Exception as error:
            self.settle(error, stage)
            raise
        try:
            self.settle(None, stage, seen=seen)
        except UnmoorError as error:
            error.add_details(*(told() if self._way is not None else ()))
            raise

    def begin(self, work: Callable[[], tuple[Mapping[str, str], T]]) -> T:
        """Agree on the facts that `work` gives, or on the error that it raises; what it gives besides."""
        try:
            facts, value = work()
        except Exception as error:
            self.agree({}, error)
            raise
        self.agree(facts)
        return value

    def gather(self, value: bytes) -> list[bytes]:
        """Every rank's value, by rank, on every rank."""
        found = self.to_first(value)
        packed = None if found is None else json.dumps([len(one) for one in found]).encode() + b"\n" + b"".join(found)
        header, _, body = self.from_first(packed).partition(b"\n")
        ends = itertools.accumulate(json.loads(header), initial=0)
        return [body[start:end] for start, end in itertools.pairwise(ends)]

    def to_first(self, value: bytes) -> list[bytes] | None:
        """Every rank's value, by rank, on rank 0 of the group; None on the others."""
        if self._way is None:
            return [value]
        exchange = self._way.arrive("to rank 0", value)
        return exchange.read(range(self.size)) if self.rank == 0 else None

    def from_first(self, value: bytes | None) -> bytes:
        """Rank 0's value, on every rank; the others pass None."""
        if self._way is None:
            return value or b""
        exchange = self._way.arrive("from rank 0", value or b"")
        return (value or b"") if self.rank == 0 else exchange.read([0])[0]

    def alive(self) -> None:
        """Say that this rank still works; cheap enough to be called for every piece of data.

        Ranks that wait for it wait on for as long as it does.
        """
        if self._way is not None:
            self._way.alive()

    def __enter__(self) -> Meeting:  # noqa: PYI034 - typing.Self came with Python 3.11
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._way is None:
            return
        try:
            if error is not None and self._way.abandon(error):
                said.mark(error, self._call, {self.rank: Cause.of(error)}, self.rank, ())
            self._way.leave()
        except RankError:
            if error is None:
                raise

    def _hear(self, exchange: Exchange, error: BaseException | None, told: Sequence[str]) -> list[Mapping[str, str]]:
        """What each rank said, where it is not the same; raises if an error is among it."""
        if self._way is not None:
            self._way.over = True
        found = [json.loads(value) for value in exchange.read(range(self.size))]
        causes = {r: Cause.from_bytes(one["cause"].encode()) for r, one in enumerate(found) if one["cause"]}
        if causes and error is None:
            raise said.failed(self._call, causes, told)
        if causes and error is not None:
            said.mark(error, self._call, causes, self.rank, told)
            raise error
        return [one["facts"] for one in found]


def _posting(facts: Mapping[str, str], error: BaseException | None) -> bytes:
    cause = None if error is None else Cause.of(error).to_bytes().decode()
    return json.dumps({"facts": dict(facts), "cause": cause}).encode()


def _raise(error: BaseException | None) -> None:
    if error is not None:
        raise error


_counters: WeakKeyDictionary[Any, dict[str, Iterator[int]]] = WeakKeyDictionary()
"""Group -> channel -> the numbers of its meetings in this process."""
_lock: Final = threading.Lock()


def meet(verb: str, group: Any, timeout: float, *, channel: str = "main") -> Meeting:
    """The meeting of one call of `verb` by all ranks of `group`; nothing is exchanged before its first method.

    group: "world", which is the default group where torch.distributed is initialised with more than one rank and this
        process alone otherwise; None, this process alone; or a ProcessGroup that this process is a member of.
    timeout: seconds that ranks wait for each other.
    channel: meetings of one channel follow each other in the same order on every rank; a thread of its own takes one.

    Raises UsageError for anything else, and for a group without this process.
    """
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise UsageError(f"timeout={timeout!r} is no number of seconds", remedy="Pass a number above 0.")
    found = _group(group)
    if found is None:
        return Meeting(Call(verb, "", (0,)))
    with _lock:
        counter = _counters.setdefault(found, {}).setdefault(channel, itertools.count())
    call = Call(verb, "", dist.get_process_group_ranks(found))
    rank = dist.get_rank(found)
    board = Board(_store(found), f"unmoor/{found.group_name}/{channel}")
    way = Round(call, board, rank, size=len(call.ranks), numbers=counter, timeout=float(timeout))
    return Meeting(call, rank=rank, way=way, group=found)


def _group(group: Any) -> Any:
    """The process group that is meant, None for this process alone."""
    if group is None or (isinstance(group, str) and group == "world" and not _initialised()):
        return None
    found = dist.group.WORLD if isinstance(group, str) and group == "world" else group
    if not dist.is_available():
        raise UsageError(f"group={group!r}: this torch was built without torch.distributed", remedy="Leave group out.")
    if found is dist.GroupMember.NON_GROUP_MEMBER:
        raise UsageError(
            "group= was given a group that this process is no member of",
            remedy="Call it on the members alone: new_group gives the others a group that cannot be used.",
        )
    if not isinstance(found, dist.ProcessGroup):
        raise UsageError(
            f"group={group!r} is no process group",
            remedy='Pass "world", None for this process alone, or what torch.distributed.new_group or '
            "DeviceMesh.get_group gives.",
        )
    return found if dist.get_world_size(found) > 1 else None


def _initialised() -> bool:
    return dist.is_available() and dist.is_initialized()


def _store(group: Any) -> Any:
    """The store that the default group was made with."""
    from torch.distributed import distributed_c10d

    for name, arguments in (("_get_default_store", ()), ("_get_process_group_store", (group,))):
        try:
            store = getattr(distributed_c10d, name)(*arguments)
        except (AttributeError, KeyError, ValueError):
            continue
        if store is not None:
            return store
    raise RankError(
        "torch.distributed has no store here through which ranks could meet",
        remedy="Initialise it by a rendezvous (torchrun does), or pass group=None: this process alone.",
    )
