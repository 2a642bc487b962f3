"""Patterns over names: text in which each `*` stands for any run of characters, dots among them, and nothing else does.

A name of a list or dict member holds brackets, so brackets are brackets here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Final

from unmoor.errors import UsageError

__all__ = ["captures", "fill", "nearest"]


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile("(.*)".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def captures(pattern: str, name: str) -> tuple[str, ...] | None:
    """What each `*` of the pattern stands for in the name, the first one longest; None where the name does not match.

    >>> captures("*.attn.*", "layers.0.attn.weight")
    ('layers.0', 'weight')
    """
    found = _compiled(pattern).fullmatch(name)
    return None if found is None else found.groups()


def fill(replacement: str, found: Sequence[str], pattern: str) -> str:
    """The replacement with its stars filled in order.

    >>> fill("*.attention.*", ("layers.0", "weight"), "*.attn.*")
    'layers.0.attention.weight'
    """
    texts = replacement.split("*")
    if len(texts) - 1 > len(found):
        raise UsageError(
            f"rename= cannot turn {pattern!r} into {replacement!r}: it has more * to the right than to the left",
            remedy="Each * on the right stands for what the * at its place on the left stood for.",
        )
    stars = [*found[: len(texts) - 1], ""]
    return "".join(text + star for text, star in zip(texts, stars, strict=True))


def nearest(pattern: str, names: Collection[str], shown: int = 3) -> list[str]:
    """The names that look most like a pattern that matches none of them."""
    stem = pattern.replace("*", "")
    heads = {name[: len(stem) + 2]: name for name in reversed(list(names)[:_COMPARED])}
    found = get_close_matches(stem, heads, n=shown, cutoff=0.3)
    return [heads[head] for head in found] or list(names)[:shown]


_COMPARED: Final = 2_000
"""How many names are compared: an error need not look at a hundred thousand."""
