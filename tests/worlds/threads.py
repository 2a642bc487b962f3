"""Ranks as threads over a store of torch, for what needs no process: each counts its own meetings, as processes do."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torch import distributed as dist

from unmoor.distributed.meeting import Meeting
from unmoor.distributed.postings import Board
from unmoor.distributed.rounds import Round
from unmoor.distributed.said import Call

__all__ = ["Ranks"]


class Ranks:
    """Some ranks of one group over one store."""

    def __init__(self, size: int, store: Any = None, ranks: tuple[int, ...] = ()) -> None:
        self.store = store if store is not None else dist.HashStore()
        self.ranks = ranks or tuple(range(size))
        self._numbers: list[Iterator[int]] = [itertools.count() for _ in self.ranks]

    def meet(self, rank: int, verb: str = "restore", timeout: float = 20.0) -> Meeting:
        """The next meeting of `rank`."""
        call = Call(verb, "", self.ranks)
        board = Board(self.store, "unmoor/0/main")
        way = Round(call, board, rank, size=len(self.ranks), numbers=self._numbers[rank], timeout=timeout)
        return Meeting(call, rank=rank, way=way)

    def run(self, *bodies: Callable[[int], Any] | None) -> list[Any]:
        """Run a body for each rank at once (None: it is absent; one body is for all); what each gave or raised."""
        each = bodies * len(self.ranks) if len(bodies) == 1 else bodies
        with ThreadPoolExecutor(len(each)) as pool:
            jobs = [None if body is None else pool.submit(body, rank) for rank, body in enumerate(each)]
            return [None if job is None else job.exception(60) or job.result(60) for job in jobs]
