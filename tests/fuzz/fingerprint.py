"""What an outcome is, as a list of words: two outcomes are the same where their words are.

Iterative and bounded, because what is compared came out of hostile files. Lists, dicts and nodes that stand in several
places count as the same one; tuples are values.
"""

from __future__ import annotations

import struct
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from unmoor.values.nodes import CompositeTensor, NumpyArray, Opaque, TensorNode

__all__ = ["difference", "fingerprint"]

_MOST = 10_000
_SHARED = (list, dict, OrderedDict, Counter, set, bytearray, Opaque, TensorNode, CompositeTensor, NumpyArray)
_LEFT_OUT = {"Verification": ("seconds", "text"), "Difference": ("seconds", "text")}


def fingerprint(value: Any) -> list[str]:
    """The words of a value; of a long one its first."""
    words: list[str] = []
    seen: dict[int, int] = {}
    kept: list[Any] = []
    pending = [value]
    while pending and len(words) < _MOST:
        one = pending.pop()
        if type(one) in _SHARED:
            if id(one) in seen:
                words.append(f"again {seen[id(one)]}")
                continue
            seen[id(one)] = len(seen)
        word, inner = _parts(one)
        words.append(word)
        kept.append(inner)
        pending += reversed(inner)
    return words


def _parts(one: Any) -> tuple[str, list[Any]]:
    kind = type(one)
    if kind is float:
        return struct.pack(">d", one).hex(), []
    if kind is complex:
        return struct.pack(">dd", one.real, one.imag).hex(), []
    if kind is int:
        return hex(one), []
    if kind in (str, bytes, bytearray, bool, type(None)):
        return repr(one), []
    if isinstance(one, Mapping):
        flat = [part for pair in one.items() for part in pair]
        name = "dict" if not isinstance(one, dict) else kind.__name__
        extra = [one._metadata] if kind is OrderedDict and hasattr(one, "_metadata") else []
        return f"{name} {len(flat) // 2}", [*flat, *extra]
    if isinstance(one, list | tuple):
        return f"{kind.__name__} {len(one)}", list(one)
    if isinstance(one, set | frozenset):
        return f"{kind.__name__} {sorted(' '.join(fingerprint(part)) for part in one)}", []
    if isinstance(one, BaseException):
        return f"{kind.__name__}: {one}", []
    if is_dataclass(one):
        names = [f.name for f in fields(one) if f.name not in _LEFT_OUT.get(kind.__name__, ())]
        return f"{kind.__name__} {one.how if kind is Opaque else ''}", [getattr(one, name) for name in names]
    return f"{kind.__name__} {one!r}"[:300], []


def difference(a: list[str], b: list[str]) -> str:
    """The first words that differ, with what stands before them; "" where none do."""
    if a == b:
        return ""
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    before, one, other = (
        [w[:200] for w in words] for words in (a[max(0, at - 4) : at], a[at : at + 2], b[at : at + 2])
    )
    return f"after {before}: {one} and {other}"
