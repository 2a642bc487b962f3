"""The stacks of a pickle that broke off, as the value that it had begun to make.

What stands above a mark was meant for the container below it. A call whose arguments are not complete is left out, with
the key that it was to stand under. Pure.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any, Final

from unmoor.values.nodes import Opaque

__all__ = ["closed"]

_MAPPINGS: Final = (dict, OrderedDict, Counter)


def closed(stacks: Sequence[list[Any]]) -> Any:
    """The value of the lowest stack once all above are put where they belong; None where there is none.

    >>> closed([[{}], ["a", 1, "b", {}], ["c", 2, "d"]])
    {'a': 1, 'b': {'c': 2}}
    """
    levels = [list(level) for level in stacks]
    while len(levels) > 1:
        items, below = levels.pop(), levels[-1]
        if below and not _taken(below[-1], items):
            below.pop()
    return _settled(levels[0]) if levels else None


def _taken(target: Any, items: list[Any]) -> bool:
    """Whether a container took what was meant for it: pairs that are whole, or the items of a list."""
    if type(target) in _MAPPINGS:
        for key, value in zip(items[::2], items[1::2], strict=False):
            if _is_key(key) and not _is_function(value):
                target[key] = value
        return True
    if type(target) is list:
        target.extend(item for item in items if not _is_function(item))
        return True
    return False


def _settled(level: list[Any]) -> Any:
    """The value at the bottom: what follows it is the one key and value that it was to get, or one element."""
    root, *rest = level or [None]
    if rest:
        _taken(root, rest if type(root) is list else rest[:2])
    return None if _is_function(root) else root


def _is_key(value: Any) -> bool:
    return isinstance(value, str | bytes | int | float | bool) or value is None


def _is_function(value: Any) -> bool:
    return type(value) is Opaque and value.how == "global"
