"""One point at which all ranks of a group arrive, or that none of them goes past.

A counter decides. Each rank that arrives leaves its posting and adds 1. A rank that gives up adds `_CLOSED`; as one
addition is one step of the store, either all had arrived before it, and nobody gives up, or nobody goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from .postings import Board

__all__ = ["Exchange", "Farewell"]

_CLOSED: Final = 1 << 32

_AUTHOR_SECONDS: Final = 10.0
"""How long the rank that closes an exchange may take to say why."""


@dataclass(frozen=True, slots=True)
class Farewell:
    """Why a rank closed an exchange: who, when (its own clock, seconds since 1970), in which call and at which stage.

    `absent` are the ranks that had not arrived after `seconds`, empty where the rank itself failed; `cause` then says
    of what, as it is posted.
    """

    rank: int
    when: float
    call: str
    stage: str
    seconds: float
    absent: tuple[int, ...] = ()
    cause: str = ""

    @property
    def clock(self) -> str:
        """The hour at which it was said."""
        return time.strftime("%H:%M:%S", time.localtime(self.when))

    def to_bytes(self) -> bytes:
        """As it is posted."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> Farewell:
        """As it was posted."""
        fields = json.loads(value)
        return cls(**{**fields, "absent": tuple(fields["absent"])})


class Exchange:
    """One exchange, at `place` of the board, of the ranks 0 to `size` - 1, seen by `rank`."""

    def __init__(self, board: Board, place: str, *, rank: int, size: int) -> None:
        self._board = board
        self._place = place
        self._rank = rank
        self._size = size

    def join(self, value: bytes, *, odd: bool) -> bool:
        """Leave a posting and arrive; `odd` if it holds what all must read. False: it had been closed before."""
        self._board.post(self._key(f"r{self._rank}"), value)
        if odd:
            self._board.add(self._key("odd"), 1)
        if self._board.add(self._key("count"), 1) < _CLOSED:
            return True
        self.withdraw()
        return False

    def equal(self, value: bytes) -> bool:
        """Whether `value` is what the first rank that asked had, as far as is known before all have arrived."""
        return self._board.first(self._key("first"), value) == value

    def complete(self) -> bool:
        """Whether all have arrived."""
        return self._board.add(self._key("count"), 0) == self._size

    def closed(self) -> bool:
        """Whether a rank has given up, or is about to say whether it does."""
        return self._board.add(self._key("count"), 0) >= _CLOSED

    def odd(self) -> int:
        """How many postings are to be read by all."""
        return self._board.add(self._key("odd"), 0)

    def read(self, ranks: Sequence[int]) -> list[bytes]:
        """The postings of some ranks, once all have arrived."""
        return self._board.read([self._key(f"r{rank}") for rank in ranks])

    def absent(self) -> tuple[int, ...]:
        """The ranks that have left no posting."""
        return tuple(rank for rank in range(self._size) if not self._board.has(self._key(f"r{rank}")))

    def close(self, why: Farewell) -> bool:
        """Give up, saying why. False if that came too late: all had arrived, or another rank is closing it."""
        total = self._board.add(self._key("count"), _CLOSED)
        if total >= 2 * _CLOSED or total - _CLOSED == self._size:
            self._board.add(self._key("count"), -_CLOSED)
            return False
        self._board.post(self._key("why"), why.to_bytes())
        return True

    def why(self) -> Farewell | None:
        """What the rank said that closed it; None if it was not closed after all, or nothing is heard in time."""
        deadline, pause = time.monotonic() + _AUTHOR_SECONDS, 0.001
        while self.closed() and time.monotonic() < deadline:
            if self._board.has(self._key("why")):
                return Farewell.from_bytes(self._board.read([self._key("why")])[0])
            time.sleep(pause)
            pause = min(pause * 2, 0.1)
        return None

    def withdraw(self) -> None:
        """Take this rank's posting away."""
        self._board.drop(self._key(f"r{self._rank}"))

    def scrub(self) -> None:
        """Take away what nobody reads of an exchange that was closed before all had come; that it was, and why, stays.

        A rank that comes later must find it closed, and so must one of a group that is made anew over the same store.
        """
        self.withdraw()
        for name in ("odd", "first"):
            self._board.forget(self._key(name))

    def clear(self) -> None:
        """Take everything away, once all ranks are done with it."""
        for rank in range(self._size):
            self._board.drop(self._key(f"r{rank}"))
        self._board.drop(self._key("why"))
        for name in ("count", "odd", "first"):
            self._board.forget(self._key(name))

    def _key(self, name: str) -> str:
        return f"{self._place}/{name}"
