"""What of a manifest that a file brings can be used: its claims in the form that unmoor.save gives them. Pure.

Anyone may have edited it. A claim of another form counts for nothing, so that no reader of one has to ask.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

__all__ = ["BY_STRUCTURE", "MANIFEST", "UNORDERED", "Rows", "leading", "parsed", "sound"]

MANIFEST: Final = "unmoor/manifest.json"
"""The record below the top folder of an archive that holds it."""

BY_STRUCTURE: Final = "structure"
"""What a manifest says under `labels` where no run gave its labels: a conversion told roles by structure."""

UNORDERED: Final = "unordered"
"""Where a manifest keeps the key paths of models whose names stand in no order that a model had."""

_STORAGES: Final = "storages"
_MARK: Final = b',"storages":{'
_NUMBER: Final = rb"(?:0|[1-9][0-9]{0,18})"
_ROW: Final = rb'"[\w./@-]{1,99}":\[' + _NUMBER + b"," + _NUMBER + b",(?:" + _NUMBER + rb"|null)\]"
_SOME_ROWS: Final = re.compile(b"(?:" + _ROW + b",){0,999}" + _ROW)
_FEW: Final = 1 << 16
_TEXTS: Final = ("names", "wrappers", "devices")


class Rows(Mapping[str, Any]):
    """What a manifest says of each storage: nearly all of its text, parsed when it is asked for."""

    __slots__ = ("_parsed", "_text")

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._parsed: dict[str, Any] | None = None

    def _rows(self) -> dict[str, Any]:
        if self._parsed is None:
            self._parsed = json.loads(self._text)
        return self._parsed

    def __getitem__(self, key: str) -> Any:
        return self._rows()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows())

    def __len__(self) -> int:
        return len(self._rows())

    def __repr__(self) -> str:
        return repr(self._rows())


def parsed(text: bytes) -> Any:
    """The JSON of a manifest; of a large one in the form of unmoor.save, the storages are `Rows`.

    >>> parsed(b'{"manifest":1,"storages":{"0":[64,8,123]}}')
    {'manifest': 1, 'storages': {'0': [64, 8, 123]}}
    """
    start = text.rfind(_MARK)
    if start < 0 or len(text) - start < _FEW or not _are_rows(text, start + len(_MARK)):
        return json.loads(text)
    try:
        head = json.loads(text[:start] + b"}")  # an object of its own only where the storages are its last value
    except ValueError:
        return json.loads(text)
    return {**head, _STORAGES: Rows(text[start + len(_MARK) - 1 : -1])}


def leading(text: bytes, wanted: Collection[str]) -> dict[str, Any]:
    """Those of the `wanted` objects, lists and texts that stand at the head of a manifest, which may be cut anywhere.

    >>> leading(b'{"manifest":1,"values":{"step":5},"roles":{"mod', {"values", "roles"})
    {'values': {'step': 5}}
    """
    found: dict[str, Any] = {}
    words, at = text.decode("utf-8", "ignore"), 1
    decode = json.JSONDecoder().raw_decode
    try:
        while text[:1] == b"{" and len(found) < len(wanted):
            key, at = decode(words, at)
            if words[at] != ":":
                break
            value, at = decode(words, at + 1)
            if key in wanted and type(value) in (dict, list, str):
                found[key] = value
            if words[at] != ",":
                break
            at += 1
    except (ValueError, IndexError, RecursionError, TypeError):
        return found
    return found


def _are_rows(text: bytes, at: int) -> bool:
    """Whether the text ends with rows of storages, from `at` on, and what closes them and the manifest."""
    while (found := _SOME_ROWS.match(text, at)) is not None:
        at = found.end()
        if text[at : at + 1] != b",":
            return text[at:] == b"}}"
        at += 1
    return False


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
