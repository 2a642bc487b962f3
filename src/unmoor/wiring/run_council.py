"""How the ranks of a run come to do the same: one of them decides, and all hear of it.

In one process every method is the thing itself. Ranks meet as calls of save do, never by a collective; between meetings
they say nothing, so that a step costs nothing. How far apart meetings are is decided at each for the next.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from unmoor.distributed.meeting import Meeting, meet
from unmoor.plan.run_due import Decision, Wish

__all__ = ["Council"]


class Council:
    """The ranks of a run. `rank` and `size` are this process's number and how many there are, once `begin` was called.

    All methods are called by all ranks in the same order.
    """

    def __init__(self, group: Any, timeout: float) -> None:
        self.rank, self.size = 0, 1
        self._group, self._timeout = group, timeout
        self._next = 0
        self._meeting: Meeting | None = None

    def begin(self) -> None:
        """See who there is. torch.distributed may have been initialised since."""
        with self._meet("begin") as meeting:
            self.rank, self.size = meeting.rank, meeting.size
        self._next = 0

    def first(self, what: str, work: Callable[[], Any]) -> Any:
        """What `work` gives on the first rank, as JSON has it, on all; what it raises there, on all."""
        if self.size == 1:
            return work()
        with self._meet(what) as meeting:
            found = None
            with meeting.step(what):
                found = json.dumps(work()).encode() if meeting.rank == 0 else None
            return json.loads(meeting.from_first(found))

    def each(self, what: str, work: Callable[[], None]) -> None:
        """Do something on each rank; what it raises on one, it raises on all."""
        if self.size == 1:
            return work()
        with self._meet(what) as meeting, meeting.step(what):
            return work()

    def all(self, what: str, value: str) -> Sequence[str]:
        """What each rank brings, by rank."""
        if self.size == 1:
            return [value]
        with self._meet(what) as meeting:
            meeting.agree({"what": what})
            return [found.decode() for found in meeting.gather(value.encode())]

    def boundary(
        self, step: int, wish: Wish, lead: Callable[[Sequence[Wish]], Decision], *, last: bool
    ) -> Decision | None:
        """What the first rank decides at the end of a step, of what all wish; None where ranks do not meet at it.

        What a caller asks for is asked for on all ranks, and has them meet now; signals wait until they do.
        """
        if self.size == 1:
            return lead([wish])
        if not (last or wish.save or wish.stop) and step < self._next:
            return None
        with self._meet("the end of a step") as meeting:
            meeting.agree({"step": str(step)})
            self._meeting = meeting
            found = meeting.to_first(json.dumps(asdict(wish)).encode())
            made = None
            if found is not None:
                made = json.dumps(lead([Wish(**json.loads(one)) for one in found]).to_json()).encode()
            decision = Decision.from_json(json.loads(meeting.from_first(made)))
        self._next = decision.next
        return decision

    def alive(self) -> None:
        """Say to those who wait that this rank still works."""
        if self._meeting is not None:
            self._meeting.alive()

    def _meet(self, what: str) -> Meeting:
        return meet(f"run ({what})", self._group, self._timeout, channel="run")
