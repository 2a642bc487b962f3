"""What became of a rescue: which tensors of a damaged checkpoint are lost, and what vouches for the others. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Lost", "Salvage"]


@dataclass(frozen=True, slots=True)
class Lost:
    """A tensor whose data is not what was saved, or is not there: its path, its role, and why.

    `kept` tells that it was written all the same, as it is, on request. Not a `tensor` is a plain value that a folder
    kept in an item of its own.
    """

    path: str
    role: str
    why: str
    kept: bool = False
    tensor: bool = True

    def to_json(self) -> dict[str, Any]:
        """The loss as plain JSON values."""
        return {"path": self.path, "role": self.role, "why": self.why, "kept": self.kept, "tensor": self.tensor}


@dataclass(frozen=True, slots=True, eq=False)
class Salvage:
    """What was rescued of a damaged checkpoint and what was not.

    `lost` names every tensor that is known and cannot be had. Of those that were rescued, `summed` have a checksum that
    held and `bare` lie where no checksum is. `notes` say how the file was read where its own lists could not be
    believed. `incomplete` are the roles that lack something, with what they lack.
    """

    lost: tuple[Lost, ...]
    summed: int
    bare: int
    notes: tuple[str, ...] = ()
    incomplete: tuple[tuple[str, str], ...] = ()

    @property
    def whole(self) -> bool:
        """Whether nothing is lost that is known of."""
        return not self.lost and not self.incomplete

    def to_json(self) -> dict[str, Any]:
        """The rescue as plain JSON values."""
        return {
            "lost": [lost.to_json() for lost in self.lost],
            "summed": self.summed,
            "bare": self.bare,
            "notes": list(self.notes),
            "incomplete": [list(row) for row in self.incomplete],
        }
