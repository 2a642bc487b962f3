"""The few words and layouts that values share when they are printed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

__all__ = ["columns", "count", "format_bytes", "format_shape", "is_text", "key_text", "listing", "plain"]

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def format_bytes(nbytes: int) -> str:
    """Bytes in powers of 1024 as a person reads them.

    >>> format_bytes(4823449), format_bytes(312)
    ('4.6 MiB', '312 B')
    """
    size, unit = float(nbytes), 0
    while size >= 1023.95 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{nbytes} B" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def format_shape(shape: Sequence[int]) -> str:
    """`(94, 64)` as `94x64`; a tensor without dimensions as `scalar`."""
    return "x".join(map(str, shape)) if shape else "scalar"


def is_text(name: str) -> bool:
    """Whether UTF-8 has bytes for a name: half of a surrogate pair has none."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def key_text(keys: Iterable[Any]) -> str:
    """A key path as text: its keys joined by dots."""
    return ".".join(map(str, keys))


def count(number: int, noun: str) -> str:
    """`1 tensor`, `2 tensors`, `1,200 entries`."""
    if number == 1:
        return f"1 {noun}"
    plural = noun[:-1] + "ies" if noun.endswith("y") and noun[-2:-1] not in "aeiou" else noun + "s"
    return f"{number:,} {plural}"


def listing(names: Sequence[str], shown: int = 4) -> str:
    """The first `shown` names and how many more there are."""
    head = ", ".join(names[:shown])
    return head if len(names) <= shown else f"{head} and {len(names) - shown} more"


def plain(text: str) -> str:
    r"""`text` with everything that does not print (controls, bidirectional marks, lone surrogates) as an escape.

    >>> plain("a\x1b[31mb"), plain("größe")
    ('a\\x1b[31mb', 'größe')
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def columns(rows: Sequence[Sequence[str]], indent: int = 2, gap: int = 2) -> list[str]:
    """Rows of cells as lines whose columns stand under each other; the last column is left as it is."""
    if not rows:
        return []
    last = max(len(row) for row in rows) - 1
    widths = [max((len(row[i]) for row in rows if i < len(row)), default=0) for i in range(last)]
    lines = []
    for row in rows:
        cells = [cell.ljust(widths[i]) if i < last else cell for i, cell in enumerate(row)]
        lines.append((" " * indent + (" " * gap).join(cells)).rstrip())
    return lines
