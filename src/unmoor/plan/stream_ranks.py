"""Random streams and ranks: whose saved state a rank takes, where none is its own, and on which device. Pure.

A rank that was there when a checkpoint was saved takes its own states, exactly. One that was not:

* a stream whose state was the same on all ranks that saved (two or more) is meant to be the same on all: it is taken
  as it is. So is a generator that the caller named in a run of one process: a sampler's has to be the same everywhere.
* any other is derived: numpy's SeedSequence(entropy, spawn_key=key), where `entropy` is the SHA-256 of rank 0's state
  of that stream and `key` is (rank, kind of stream, which one), see `spawn_key`. The same file gives the same states at
  every try; those of two ranks, or of two streams, are independent; how many ranks there are now has no influence.

Device streams: a process draws on its own device, whose index is another where it moves. The state of the rank's own
device goes to the rank's own device now, whatever its index; the two change places, all others keep their index.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from unmoor.values.nodes import NumpyArray, TensorNode
from unmoor.values.target import Stream

__all__ = ["KINDS", "SavedState", "alike", "placed", "same_everywhere", "spawn_key"]

KINDS: Final = ("torch-cpu", "numpy", "python", "torch-device", "generator")
"""The kinds of streams in the order of their numbers."""


@dataclass(frozen=True, slots=True)
class SavedState:
    """One saved state: which stream it belongs to and where it stands.

    `index` is the device's, `own` tells that this was the device of the process, None that it is not known.
    """

    kind: str
    name: str
    index: int
    keys: tuple[Any, ...]
    node: Any
    own: bool | None = None


def placed(states: Sequence[SavedState], stream: Stream) -> list[tuple[int, SavedState]]:
    """The index at which each state belongs now: that of the process's own device goes to its own device."""
    home = next((state.index for state in states if state.own), stream.own)
    moves = {home: stream.own, stream.own: home}
    return [(moves.get(state.index, state.index), state) for state in states]


def spawn_key(rank: int, stream: Stream, index: int) -> tuple[int, ...]:
    """The key under which the state of a stream is derived for a rank that did not exist.

    Rank, number of the kind, and which of that kind: 0 for the process's own device, 1 + index for another, the CRC-32
    of its name for a generator.

    >>> spawn_key(2, Stream("numpy", "numpy"), 0), spawn_key(2, Stream("torch-device", "cuda", 8, own=5), 5)
    ((2, 1, 0), (2, 3, 0))
    """
    which = 0
    if stream.kind == "torch-device":
        which = 0 if index == stream.own else 1 + index
    elif stream.kind == "generator":
        which = zlib.crc32(stream.name.encode())
    return rank, KINDS.index(stream.kind), which


def same_everywhere(stream: Stream, everyone: Sequence[Sequence[SavedState]]) -> bool:
    """Whether a rank that did not exist takes a state as it is. `everyone` are the stream's by rank that saved."""
    if len(everyone) == 1:
        return stream.kind == "generator"
    own = [_own(states) for states in everyone]
    return all(state is not None and own[0] is not None and alike(own[0].node, state.node) for state in own)


def _own(states: Sequence[SavedState]) -> SavedState | None:
    """The state that counts: that of the process's own device, of several."""
    return next((state for state in states if state.own), states[0] if states else None)


def alike(one: Any, other: Any) -> bool:
    """Whether two saved values are the same, as far as can be told without reading tensor data."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, TensorNode):
        return _same_bytes(one, other)
    if isinstance(one, NumpyArray):
        return (one.dtype, one.shape, one.data) == (other.dtype, other.shape, other.data)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    return repr(one) == repr(other)


def _same_bytes(one: TensorNode, other: TensorNode) -> bool:
    a, b = one.storage, other.storage
    if a is None or b is None or a.crc32 is None:
        return False
    window = (one.offset, one.shape, one.stride, one.dtype) == (other.offset, other.shape, other.stride, other.dtype)
    return window and (a.crc32, a.nbytes) == (b.crc32, b.nbytes)
