"""What of a manifest that a file brings can be used: its claims in the form that unmoor.save gives them. Pure.

Anyone may have edited it. A claim of another form counts for nothing, so that no reader of one has to ask.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["BY_STRUCTURE", "MANIFEST", "UNORDERED", "sound"]

MANIFEST: Final = "unmoor/manifest.json"
"""The record below the top folder of an archive that holds it."""

BY_STRUCTURE: Final = "structure"
"""What a manifest says under `labels` where no run gave its labels: a conversion told roles by structure."""

UNORDERED: Final = "unordered"
"""Where a manifest keeps the key paths of models whose names stand in no order that a model had."""

_TEXTS: Final = ("names", "wrappers", "devices")


def sound(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest, its `roles`, `numpy` and `unordered` without what is malformed in them.

    >>> sound({"roles": {"model": {"keys": ["model"], "names": 5}, "ema": 7}, "numpy": [["a", 0], "b", [[]]]})
    {'roles': {'model': {'keys': ['model']}}, 'numpy': [['a', 0]]}
    """
    made = dict(manifest)
    for key, kept in (("roles", _roles), ("numpy", _places), (UNORDERED, _places)):
        if key in made:
            made[key] = kept(made[key])
    return made


def _roles(roles: Any) -> dict[str, dict[str, Any]]:
    rows = roles.items() if isinstance(roles, Mapping) else ()
    return {label: _row(row) for label, row in rows if isinstance(row, Mapping) and _is_path(row.get("keys"))}


def _places(arrays: Any) -> list[list[str | int]]:
    return [keys for keys in arrays if _is_path(keys)] if isinstance(arrays, list) else []


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in _TEXTS or _is_texts(value)}


def _is_path(keys: Any) -> bool:
    return isinstance(keys, list) and all(isinstance(key, str | int) for key in keys)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
