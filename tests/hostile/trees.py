"""Trees that are sound pickles and still hostile: names for terminals, numbers for formatters, claims for roles.

Each is a value to be pickled, or the bytes of a pickle where no pickler writes it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import torch

from tests.hostile.make_hostile import Call, Key, W, tensor

__all__ = ["BAD_NAMES", "MARKER", "TREES"]

MARKER = "hostile_marker"
"""A module whose import is seen, since it writes a file."""

BAD_NAMES = {
    "a colour": "\x1b[31mred",
    "a title": "\x1b]0;owned\x07",
    "a cleared screen": "\x1b[2J\x1b[H",
    "a link": "\x1b]8;;http://example.com\x1b\\here\x1b]8;;\x1b\\",
    "a C1 escape": "\x9b31mred",
    "a line of its own": "w\nno dangers found\n",
    "a carriage return": "dangerous\rharmless",
    "backspaces": "evil\b\b\b\bgood",
    "right to left": "\u202egnp.exe",
    "an isolate": "\u2066\u2069",
    "no width": "w\u200bw",
    "a line separator": "w\u2028x\u2029y",
    "a zero byte": "w\0x",
    "half a surrogate": "w\ud800",
    "a tag": "<script>alert(1)</script>",
    "an attribute": '" onmouseover="alert(1)',
    "an entity": "&lt;b&gt;",
    "the end of a script": "</script><script>alert(1)</script>",
    "a comment": "<!--<script>",
    "a path up": "../../../../tmp/evil",
    "an absolute path": "/tmp/evil",
    "a drive": "C:\\evil",
    "a format": "{0.__class__}%s%n{path}",
    "a very long name": "n" * 70_000,
    "nothing": "",
    "dots": "...",
}
"""What is bad about a name -> the name."""

_HUGE = 1 << 8000
_NUMBERS: dict[str, Any] = {
    "huge": _HUGE, "hugely negative": -_HUGE, "large": 1 << 200, "nan": math.nan, "inf": math.inf, "negative": -5,
    "text": "x", "bytes": b"\xff", "none": None, "list": [1], "dict": {}, "tensor": W, "true": True, "zero": 0,
    "complex": 1j, "set": {1}, "range": range(1 << 100), "size": torch.Size([1 << 40]),
    "device": torch.device("cuda", 3), "dtype": torch.float8_e5m2, "class": OrderedDict,
}  # fmt: skip


def _optimizer(value: Any) -> dict[str, Any]:
    state = {"step": value, "exp_avg": W, "exp_avg_sq": W}
    group = {"lr": value, "betas": (value, value), "eps": value, "weight_decay": value, "params": [0, 1]}
    return {"state": {0: state, 1: state}, "param_groups": [group]}


def _run(value: Any) -> dict[str, Any]:
    """The number everywhere that a run has numbers."""
    return {
        "model": OrderedDict(weight=tensor(Key("0", 3), (1, 3), (3, 1)), bias=tensor(Key("0", 3), (1,), (1,))),
        "optimizer": _optimizer(value),
        "scheduler": {"step_size": value, "gamma": value, "base_lrs": [value], "last_epoch": value,
                      "_step_count": value, "_last_lr": [value]},
        "scaler": {"scale": value, "growth_factor": value, "_growth_tracker": value},
        "epoch": value, "step": value, "global_step": value, "pytorch-lightning_version": value, "loss": value,
        "rng": {"python": (3, (value,) * 625, value), "torch": value, "numpy": value},
        "loops": value, "callbacks": value, "hyper_parameters": value, "_metadata": value, "world_size": value,
    }  # fmt: skip


def _named(name: str) -> dict[str, Any]:
    """The name everywhere that a name can stand."""
    return {
        name: W,
        "model": {name: W, f"{name}.{name}": W},
        "optimizer": {"state": {name: {name: W}}, "param_groups": [{"params": [name], name: 1, "lr": 0.1}]},
        "epoch": name,
        name + "_": {name: {name: name}},
    }


def _opaque(name: str) -> Call:
    return Call(eval, name)


TREES: dict[str, Any] = {
    **{f"name: {what}": _named(name) for what, name in BAD_NAMES.items()},
    **{f"number: {what}": _run(value) for what, value in _NUMBERS.items()},
    **{f"argument: {what}": {"w": W, "x": _opaque(name)} for what, name in BAD_NAMES.items()},
    "keys of many kinds": {1: W, None: W, 1.5: W, (1, "a"): W, b"b": W, frozenset({1}): W, "a": {(): W}},
    "a tensor alone": W,
    "nothing": None,
    "a number alone": _HUGE,
    "an object alone": Call(eval, "1"),
    "an empty dict": {},
    "optimizer without groups": {"state": {}, "param_groups": []},
    "optimizer with a group that is none": {"state": {0: {"step": 1}}, "param_groups": [5, None]},
    "optimizer with params that are none": {"state": {}, "param_groups": [{"params": 5}]},
    "optimizer with very many params": {"state": {}, "param_groups": [{"params": list(range(20000)), "lr": 1.0}]},
    "a module that writes when it is imported": {"w": W, "x": b"\x80\x02"},
    "a device that is none": {"w": Call(torch.device, "cuda", _HUGE)},
    "a size of text": {"w": Call(torch.Size, ["a"])},
    "a range that is long to print": {"w": range(-_HUGE, _HUGE)},
    "a slice that is long to print": {"w": slice(_HUGE, _HUGE)},
    "an enormous view": {"w": tensor(Key("0", 3), (1 << 40,), (0,))},
    "very many windows": {str(i): tensor(Key("0", 3), (1 << 20, 1 << 20), (0, 0)) for i in range(200)},
    "overlapping windows": {"w": tensor(Key("0", 3), (2, 2), (1, 1))},
    "an enormous empty tensor": {"w": tensor(Key("0", 3), (0, 1 << 62, 1 << 62), (1 << 62, 1, 1))},
    "a tensor of 65 dimensions": {"w": tensor(Key("0", 3), (1,) * 65, (1,) * 65)},
}
"""Name -> tree."""
