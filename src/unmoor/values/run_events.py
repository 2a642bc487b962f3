"""What a run did beside training: one frozen value for each thing that happened. Must not know torch, nor files."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

__all__ = ["KINDS", "Event"]

KINDS: Final = {
    "fresh": "no checkpoint was restored: the run starts at step 0",
    "passed": "a newer checkpoint was passed over, because it is broken or cannot be read",
    "resumed": "a checkpoint was restored",
    "foreign": "files that no run of unmoor wrote lie in the folder, and were left alone",
    "swept": "what killed processes left behind was removed",
    "unlocked": "the folder cannot be locked here: nothing keeps a second run out",
    "unheard": "signals are not heard: the loop does not run in the main thread",
    "saving": "a save was begun",
    "saved": "a checkpoint is complete and on the disk",
    "verified": "every byte of a checkpoint was read back and held against its checksums",
    "unverified": "a checkpoint that was just written does not hold",
    "skipped": "a save was due, and an earlier one was still being written",
    "failed": "a save did not succeed; what was there before still is",
    "removed": "an older checkpoint was deleted, as keep_last and keep_best say",
    "kept": "an older checkpoint could not be deleted",
    "signal": "a signal asked the run to end",
    "left": "the loop was left within a step, by an exception or by break",
    "interrupted": "the state within a step was saved under a name that resume() never takes by itself",
    "finished": "the run reached its end",
    "stopped": "the run ended early, as it was asked to",
}
"""Kind of an event -> what it says."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened: its `kind` (a word of a fixed table), the number of steps done, and a sentence.

    `path` is the file concerned, "" where there is none. `warned` tells that the user was warned of it.
    """

    kind: str
    step: int
    message: str
    path: str = ""
    warned: bool = False

    def __str__(self) -> str:
        return f"step {self.step}: {self.message}"

    def to_json(self) -> dict[str, Any]:
        """The event as plain JSON values."""
        return asdict(self)
