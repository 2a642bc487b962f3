"""One call of all ranks of a group as a row of exchanges: arriving, waiting, giving up, going, leaving nothing behind.

Each process counts its own rounds; the count names the keys on the store, so that calls follow each other in the same
order everywhere. A round that a rank gave up before all had come is passed over by those who come later, which is why
two small keys of it stay; of any other round nothing does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

from . import said
from .exchange import Exchange, Farewell
from .postings import Board
from .said import Call, Cause

__all__ = ["Round"]

_LONGEST_PAUSE: Final = 0.1


class Round:
    """The round of one call, seen by `member` of the `size` of a group.

    numbers: gives this process's next round; taken when the first exchange begins. timeout: seconds to wait at an
    exchange for ranks that give no sign of life.
    """

    def __init__(
        self, call: Call, board: Board, member: int, *, size: int, numbers: Iterator[int], timeout: float
    ) -> None:
        self.call = call
        self.over = False
        self.past: list[Farewell] = []
        self._board = board
        self._member = member
        self._size = size
        self._numbers = numbers
        self._timeout = timeout
        self._number: int | None = None
        self._step = 0
        self._left = False
        self._missed = False
        self._beat = 0.0
        self._beats: dict[int, int] = {}

    def arrive(self, stage: str, value: bytes, *, compare: bytes | None = None, odd: bool = False) -> Exchange:
        """Post, and wait for all; the exchange then holds what every rank posted.

        `odd` says that all must read it; a `compare` that differs among the ranks says so too. `stage` is "" for the
        first exchange of a round. Raises RankError, on all ranks that came, if one did not.
        """
        while not self._join(value, compare=compare, odd=odd):
            why = self._exchange().why()
            if self._step:
                self._fall(why)
            self.past += [why] if why is not None else []
            self._exchange().scrub()
            self._number = None
        exchange = self._exchange()
        self._wait(exchange, stage)
        if self._step:  # all have come here, so all have read what was posted before
            self._exchange(self._step - 1).withdraw()
        self._step += 1
        return exchange

    def alive(self) -> None:
        """Say that this rank still works, at most twenty times in a timeout."""
        now = time.monotonic()
        if self._number is not None and now - self._beat >= self._timeout / 20:
            self._beat = now
            self._board.add(self._life(self._member), 1)

    def abandon(self, error: BaseException) -> bool:
        """Tell those who wait, now or at the next exchange, that this rank leaves by an error of its own.

        False if there is nobody to tell: no exchange has begun, or the call has ended for all.
        """
        if self._number is None or self.over:
            return False
        why = self._farewell("", cause=Cause.of(error))
        if not self._exchange().close(why) and self._exchange().why() is None:  # all had come: they wait at the next
            self._step += 1
            self._exchange().close(why)
        self._missed = not self._step
        return True

    def leave(self) -> None:
        """Go; the last of all ranks takes away what the round left on the store."""
        if self._number is None or self._left:
            return
        self._left = True
        if self._missed:
            self._exchange().scrub()
            return
        gone = [f"{self._number}/left/{member}" for member in range(self._size)]
        self._board.post(gone[self._member], b"")
        if not self._board.has(*gone) or self._board.add(f"{self._number}/clearing", 1) > 1:
            return
        for step in range(self._step + 2):  # another rank may have been one exchange ahead
            self._exchange(step).clear()
        for key in (*map(self._life, range(self._size)), *gone, f"{self._number}/clearing"):
            self._board.forget(key)

    def _join(self, value: bytes, *, compare: bytes | None, odd: bool) -> bool:
        if self._number is None:
            self._number = next(self._numbers)
        exchange = self._exchange()
        different = compare is not None and not exchange.equal(compare)
        return exchange.join(value, odd=odd or different)

    def _wait(self, exchange: Exchange, stage: str) -> None:
        deadline, pause = time.monotonic() + self._timeout, 0.001
        while not exchange.complete():
            if exchange.closed():
                why = exchange.why()
                if why is not None or exchange.closed():
                    self._fall(why)
            elif time.monotonic() > deadline:
                absent = exchange.absent() or [m for m in range(self._size) if m != self._member]
                why = self._farewell(stage, absent=absent)
                if not self._still_working(absent) and exchange.close(why):
                    self._fall(why)
                deadline = time.monotonic() + self._timeout
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)

    def _still_working(self, absent: Sequence[int]) -> bool:
        """Whether all ranks that are waited for have said so since they were last asked."""
        if not self._step:
            return False
        counts = {member: self._board.add(self._life(member), 0) for member in absent}
        before, self._beats = self._beats, {**self._beats, **counts}
        return all(number > before.get(member, 0) for member, number in counts.items())

    def _fall(self, why: Farewell | None) -> None:
        """Raise for an exchange that was closed."""
        self.over = True
        self._missed = not self._step
        self._exchange().withdraw()
        raise said.ended(self.call, why, self._member, self.past)

    def _farewell(self, stage: str, absent: Sequence[int] = (), cause: Cause | None = None) -> Farewell:
        return Farewell(
            rank=self._member,
            when=time.time(),
            call=str(self.call),
            stage=stage,
            seconds=self._timeout,
            absent=tuple(absent),
            cause="" if cause is None else cause.to_bytes().decode(),
        )

    def _exchange(self, step: int | None = None) -> Exchange:
        place = f"{self._number}/{self._step if step is None else step}"
        return Exchange(self._board, place, rank=self._member, size=self._size)

    def _life(self, member: int) -> str:
        return f"{self._number}/alive/{member}"
