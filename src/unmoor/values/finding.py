"""One thing worth telling about a file or a run: a code that never changes, a place, a sentence, a remedy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from .text import plain

__all__ = ["PAGE", "SEVERITIES", "Finding"]

PAGE: Final = "docs/findings.md"
"""The page of the manual that has a heading for every code."""

SEVERITIES: Final = ("info", "warning", "error", "danger")


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact that a reader should act on or know.

    `code` is stable and in lower-case-with-dashes. `severity` is info (know it), warning (look at it), error (it will
    fail) or danger (the file would run code that no checkpoint needs).
    """

    code: str
    severity: str
    place: str
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        place = f"{self.place}: " if self.place else ""
        return plain(f"{self.severity}: {place}{self.message}" + (f"; {self.remedy}" if self.remedy else ""))

    @property
    def page(self) -> str:
        """Where the manual explains this code."""
        return f"{PAGE}#{self.code}"

    def to_json(self) -> dict[str, Any]:
        """The finding as plain JSON values."""
        return asdict(self)
