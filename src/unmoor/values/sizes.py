"""Sizes as people write them: 5GB, 500 MiB."""

from __future__ import annotations

import re
from typing import Any, Final

from unmoor.errors import UsageError

__all__ = ["size_of"]

_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)


def size_of(name: str, given: Any) -> int:
    """Bytes of a number or a text. GB are powers of 1000, GiB of 1024, as the hub of Hugging Face counts them.

    >>> size_of("x", "5GB"), size_of("x", "1.5 MiB"), size_of("x", 7)
    (5000000000, 1572864, 7)
    """
    match = _SIZE.fullmatch(given) if isinstance(given, str) else None
    nbytes = given if isinstance(given, int) and not isinstance(given, bool) else 0
    if match is not None:
        base = 1024 if match[3] else 1000
        nbytes = int(float(match[1]) * base ** " kmgt".index(match[2].lower() or " "))
    if nbytes < 1:
        raise UsageError(f"{name}={given!r} is no size in bytes", remedy=f'{name}="5GB", or a whole number of bytes.')
    return nbytes
