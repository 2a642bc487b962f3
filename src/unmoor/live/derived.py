"""The state of a random stream for a rank that did not exist when it was saved, made from that of rank 0.

The method is numpy's own for streams of parallel processes, SeedSequence(entropy, spawn_key=key), which numpy keeps
stable from version to version. The entropy is the SHA-256 of rank 0's state, whose numbers are taken as they are,
whatever holds them. Every word of a Mersenne Twister is drawn from the sequence: a seed alone would leave 32 bits.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Mapping
from typing import Any, Final

import torch

__all__ = ["can_derive", "derived", "entropy"]

_WORDS: Final = 624
_TOP_BIT: Final = 0x80000000
_PYTHON_VERSION: Final = 3
_TORCH_TWISTER: Final = 24
"""Where the words of torch's own Mersenne Twister stand in the bytes of its state, each in 8 bytes."""


def can_derive() -> bool:
    """Whether states can be derived here: that takes numpy."""
    return importlib.util.find_spec("numpy") is not None


def entropy(state: Any) -> int:
    """A saved state as one number: the SHA-256 of the numbers and words in it, in their order."""
    sink = hashlib.sha256()
    _feed(sink, state)
    return int.from_bytes(sink.digest(), "big")


def derived(state: Any, key: tuple[int, ...], *, kind: str, device: torch.device, like: Any = None) -> Any:
    """The state under `key`, of the form that `state` has for a stream of `kind`.

    kind: torch-cpu, torch-device, numpy, python or generator, as of a stream. device: where a torch stream draws.
    like: the live object for which the state of a generator is meant.
    """
    import numpy as np

    sequence = np.random.SeedSequence(entropy(state), spawn_key=key)
    if kind in ("torch-cpu", "torch-device"):
        return _torch(sequence, device)
    if kind == "numpy":
        return _legacy(sequence)
    if kind == "python":
        return _python(sequence)
    flavour = state["flavour"]
    if flavour == "torch":
        made: Any = _torch(sequence, like.device)
    elif flavour == "python":
        made = _python(sequence)
    elif flavour == "numpy":
        made = type(getattr(like, "bit_generator", like))(sequence).state
    else:
        made = _legacy(sequence)
    return {"flavour": flavour, "state": made}


def _feed(sink: Any, value: Any) -> None:
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            sink.update(f"{key}:".encode())
            _feed(sink, value[key])
    elif isinstance(value, torch.Tensor) or hasattr(value, "tolist"):
        _feed(sink, value.tolist())
    elif isinstance(value, list | tuple):
        sink.update(b"[")
        for item in value:
            _feed(sink, item)
        sink.update(b"]")
    else:
        sink.update(f"{value!r},".encode())


def _twister(sequence: Any) -> Any:
    """The words of a Mersenne Twister, not all of which may be zero."""
    words = sequence.generate_state(_WORDS)
    words[0] |= _TOP_BIT
    return words


def _torch(sequence: Any, device: torch.device) -> torch.Tensor:
    """A generator's state on a device: from a seed of 64 bits, and on the CPU with all words of its twister anew."""
    seed = int(sequence.generate_state(1, "uint64")[0])
    state = torch.Generator(device=device).manual_seed(seed).get_state().cpu()
    window = state[_TORCH_TWISTER : _TORCH_TWISTER + 8 * _WORDS]
    if device.type == "cpu" and window.numel() == 8 * _WORDS:
        window.view(torch.int64).copy_(torch.from_numpy(_twister(sequence).astype("int64")))
    return state


def _legacy(sequence: Any) -> dict[str, Any]:
    """The state of numpy's RandomState."""
    words = _twister(sequence)
    state = {"key": words, "pos": _WORDS}
    return {"bit_generator": "MT19937", "state": state, "has_gauss": 0, "gauss": 0.0}


def _python(sequence: Any) -> tuple[Any, ...]:
    """What random.getstate() gives."""
    return _PYTHON_VERSION, (*map(int, _twister(sequence)), _WORDS), None
