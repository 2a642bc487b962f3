"""The keywords that could let a restore through that does not fit: those that its error names, then those there are.

Pure. An offer is only tried: whether it helps, and what it leaves out, the plan made with it says.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from unmoor.errors import UnmoorError

from .policy import CHOICES

__all__ = ["Offer", "faults_of", "offers"]


@dataclass(frozen=True, slots=True)
class Offer:
    """A keyword of restore with its value, and how the value is written in Python."""

    keyword: str
    value: Any
    text: str


_KEYWORDS: Final = ("rename", "at", "skip", "model_device", *CHOICES)
_WORD: Final = re.compile(rf"\b({'|'.join(_KEYWORDS)})=")
_ORDER: Final = (
    ("unexpected", "ignore"),
    ("missing", "fresh"),
    ("mismatched", "fresh"),
    ("hyperparameters", "live"),
    ("cast", "any"),
    ("position", "epoch"),
    ("position", "saved"),
    ("order", "file"),
    ("order", "live"),
)
"""Modes from the one that gives up least to the one that gives up most: what is proved goes last."""


def faults_of(error: UnmoorError) -> tuple[str, ...]:
    """The faults that an error tells, one text each."""
    several = " fault" in error.headline and bool(error.details)
    return error.details if several else (error.headline, *error.details)


def offers(error: UnmoorError, labels: Sequence[str]) -> list[Offer]:
    """What to try, best first. `labels` are the objects of the run that could be left out."""
    named = list(_named(" ".join((*error.details, error.remedy))))
    modes = [Offer(mode, value, repr(value)) for mode, value in _ORDER]
    device = [Offer("model_device", "auto", "'auto'")]
    left_out = [Offer(label, None, "None") for label in labels]
    found: dict[tuple[str, str], Offer] = {}
    for offer in (*named, *device, *modes, *left_out):
        found.setdefault((offer.keyword, offer.text), offer)
    return list(found.values())


def _named(text: str) -> Iterator[Offer]:
    """The keywords with a whole value in a text: `rename={'net.': ''}`."""
    for match in _WORD.finditer(text):
        found = _value(text[match.end() :])
        if found is not None and match.group(1) != "verify":
            yield Offer(match.group(1), *found)


def _value(text: str) -> tuple[Any, str] | None:
    """The Python value at the beginning of a text, and its source; None where none stands there, or one left open."""
    for end in _ends(text):
        source = text[:end]
        try:
            tree = ast.parse(source, mode="eval").body
        except (SyntaxError, ValueError):
            continue
        value = _literal(tree)
        return None if value is None or _is_open(value) else (value, source.strip())
    return None


def _ends(text: str) -> Iterator[int]:
    """Where a value may end: after its closing bracket or quote; of a lambda after its last word."""
    if text.startswith("lambda"):
        match = re.match(r"lambda name: ('[^']*'|\"[^\"]*\") \+ name", text)
        yield from ([match.end()] if match else [])
        return
    opening = text[:1]
    closing = {"{": "}", "[": "]", '"': '"', "'": "'"}.get(opening)
    if closing is not None:
        yield from (i + 1 for i, character in enumerate(text) if i and character == closing)


def _literal(tree: ast.expr) -> Any:
    if isinstance(tree, ast.Lambda) and isinstance(tree.body, ast.BinOp) and isinstance(tree.body.left, ast.Constant):
        return _adding(str(tree.body.left.value))
    try:
        return ast.literal_eval(tree)
    except (ValueError, TypeError):
        return None


def _adding(prefix: str) -> Callable[[str], str]:
    return lambda name: prefix + name


def _is_open(value: Any) -> bool:
    """Whether a value holds an ellipsis: it shows a form and is no value."""
    if isinstance(value, dict):
        return any(_is_open(item) for pair in value.items() for item in pair) or not value
    return any(map(_is_open, value)) if isinstance(value, list | set | tuple) else value in (..., "...")
