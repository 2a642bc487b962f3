"""JSON with a lie, and headers of safetensors with one."""

from __future__ import annotations

import json
from random import Random
from typing import Any

__all__ = ["lying_json", "safetensors"]

_ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 1.5, 1e308, float("nan"), float("inf"), 1 << 63, (1 << 64) - 1, -(1 << 63), "", "a",
    "cpu", "cuda:7",
    "\ud800", "\x1b[31m", "\u202e", "</script>", "\0", "a/../b", [], {}, [[]], [0], ["a"], {"a": 1}, {"keys": []},
    {"keys": ["model"]},
    [["a", 0]], "x" * 3000, [0] * 300, 10**400,
)  # fmt: skip
_RAW = (
    b"-0",
    b"1E400",
    b"[" * 2000,
    b'{"a":' * 1200,
    b"1" * 5000,
    b"NaN",
    b"01",
    b"1.",
    b'"\\ud800\\udc00"',
    b'"\\ud800"',
    b"'a'",
    b"1_0",
    b"nul",
    b"\xff",
    b'{"a":1,"a":2}',
)

_MANIFEST: dict[str, Any] = {
    "manifest": 1, "roles": {"model": {"keys": ["model"], "names": ["w", "v"], "wrappers": [], "devices": ["cpu"]}},
    "numpy": [["x"]], "unordered": [["model"]], "world_size": 1, "writer": {"torch": "2.13.0", "unmoor": "0.1"},
    "labels": "structure",
    "rng": {"torch": {"cpu": 1}}, "storages": {"0": [64, 16, 123456], "1": [128, 16, None]},
}  # fmt: skip
_RELOCATED: dict[str, Any] = {"relocated": 1, "size": 900, "devices": {"cuda:7": {"cpu": 3}}}
_INDEX: dict[str, Any] = {"metadata": {"total_size": 32}, "weight_map": {"w": "a.safetensors", "v": "b.safetensors"}}
_FORMS = {"manifest": _MANIFEST, "relocated": _RELOCATED, "index": _INDEX}


def lying_json(rng: Random, form: str, data: bytes = b"") -> bytes:
    """The text of a form, or of given JSON, with up to three values or keys that are others."""
    try:
        value = json.loads(data) if data else json.loads(json.dumps(_FORMS[form]))
    except (ValueError, RecursionError):
        return data
    for _ in range(rng.randrange(4)):
        value = _bent(rng, value)
    raw = json.dumps(value, separators=(",", ":") if rng.randrange(2) else None).encode()
    if rng.randrange(8) == 0:
        at = rng.randrange(len(raw))
        raw = raw[:at] + rng.choice(_RAW) + raw[at + rng.randrange(6) :]
    return raw


def _bent(rng: Random, value: Any) -> Any:
    if isinstance(value, dict) and value and rng.randrange(5):
        key = rng.choice(list(value))
        if rng.randrange(6) == 0:
            return {
                (rng.choice(("", "\ud800", "a.b", "\x1b", "storages", "roles")) if k == key else k): v
                for k, v in value.items()
            }
        return {**value, key: _bent(rng, value[key])}
    if isinstance(value, list) and value and rng.randrange(5):
        at = rng.randrange(len(value))
        return [*value[:at], _bent(rng, value[at]), *value[at + 1 :]]
    return rng.choice(_ODD)


_ROWS = (
    ("w", "F32", [2, 2], 16),
    ("v", "BF16", [3], 6),
    ("e", "I64", [0, 4], 0),
    ("s", "U8", [], 1),
    ("f", "F8_E4M3", [2], 2),
)
_FIELDS: tuple[Any, ...] = (
    [1 << 62, 1 << 62], [0, 1 << 62, 1 << 62], [0] + [1 << 40] * 3000, [1] * 200, [-1], [2.0], ["a"], [True], [1, 1],
    [0, 0],
    [0, 1 << 63], [9, 0], [0, 28], "F4", "F6_E2M3", "C64", "BOOL", "\x1b", None, {"a": 1},
)  # fmt: skip
_NAMES = ("\ud800", "", "\x1b[31m", "a" * 3000, "w.v", "__metadata__")
_ENTRIES: tuple[Any, ...] = (
    {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}, {"dtype": "U8", "shape": [0], "data_offsets": [0, 0],
    "more": 1}, None, {},
)  # fmt: skip


def safetensors(rng: Random) -> bytes:
    """A file of safetensors; two times in three with one lie."""
    header, at = {}, 0
    for name, dtype, shape, nbytes in _ROWS:
        if rng.randrange(4):
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + nbytes]}
            at += nbytes
    if rng.randrange(2):
        header["__metadata__"] = {"format": "pt", "a": rng.choice(("b", "\x1b[2J"))}
    lie = rng.randrange(9)
    raw = json.dumps(_lying_header(rng, header, lie)).encode()
    length, data = len(raw), bytes(range(at))
    if lie == 4:
        data = data[:-1] if rng.randrange(2) else data + b"x"
    elif lie == 5:
        place = rng.randrange(len(raw))
        raw = raw[:place] + rng.choice(_RAW) + raw[place + rng.randrange(3) :]
    elif lie == 6:
        length = rng.choice((len(raw) - 1, len(raw) + 1, 0, 1, 1 << 31, 100_000_001, (1 << 64) - 1))
    return length.to_bytes(8, "little") + raw + data


def _lying_header(rng: Random, header: dict[str, Any], lie: int) -> Any:
    if lie == 1 and header:
        return _bent(rng, header)
    if lie == 2 and header:
        name = rng.choice(list(header))
        return {**header, name: {**header[name], rng.choice(("shape", "data_offsets", "dtype")): rng.choice(_FIELDS)}}
    if lie == 3:
        return {**header, rng.choice(_NAMES): rng.choice(_ENTRIES)}
    return header
