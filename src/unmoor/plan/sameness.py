"""Whether two inert trees say the same but for where their storages live: the proof of a relocation. Pure.

Containers in the order of their items, types as they are, floats by their bits; each pair of containers once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from struct import pack
from typing import Any, Final

from unmoor.values.nodes import Opaque, Storage, TensorNode
from unmoor.values.text import key_text

__all__ = ["first_difference"]

_PLAIN: Final = frozenset({str, int, bool, bytes, type(None)})
_SEQUENCES: Final = (list, tuple)
_SETS: Final = (set, frozenset)
_SHOWN: Final = 60

Device = Callable[[Storage], str]
"""What the tag of a storage should have become."""

Pair = tuple[Any, Any, tuple[Any, ...]]


def first_difference(old: Any, new: Any, device: Device) -> str:
    """Where `new` says another thing than `old` with other device tags, and which; "" where nowhere."""
    left: list[Pair] = [(old, new, ())]
    seen: set[tuple[int, int]] = set()
    while left:
        mine, theirs, keys = left.pop()
        kind = type(mine)
        if kind is not type(theirs):
            return f"{_name(keys)} was a {kind.__name__} and is a {type(theirs).__name__}"
        if kind in _PLAIN:
            if mine != theirs:
                return f"{_name(keys)} was {_short(mine)} and is {_short(theirs)}"
            continue
        if (id(mine), id(theirs)) in seen:
            continue
        seen.add((id(mine), id(theirs)))
        parts = _parts(mine, theirs, keys, device)
        if parts is None:
            return f"{_name(keys)} was {_short(mine)} and is {_short(theirs)}"
        left += parts
    return ""


def _parts(mine: Any, theirs: Any, keys: tuple[Any, ...], device: Device) -> list[Pair] | None:
    """What two values of one type are made of, pair by pair; None where they differ by themselves."""
    if isinstance(mine, TensorNode):
        return _tensors(mine, theirs, keys, device)
    if isinstance(mine, Storage):
        return [] if _moved(mine, theirs, device) else None
    if isinstance(mine, Mapping):
        return _mappings(mine, theirs, keys)
    if isinstance(mine, _SEQUENCES):
        same = len(mine) == len(theirs)
        return [(a, b, (*keys, i)) for i, (a, b) in enumerate(zip(mine, theirs, strict=True))] if same else None
    if isinstance(mine, _SETS):
        return [] if sorted(map(repr, mine)) == sorted(map(repr, theirs)) else None
    if isinstance(mine, float | complex):
        return [] if _bits(mine) == _bits(theirs) else None
    if is_dataclass(mine):
        return list(_fields(mine, theirs, keys))
    return [] if mine == theirs else None


def _tensors(mine: TensorNode, theirs: TensorNode, keys: tuple[Any, ...], device: Device) -> list[Pair] | None:
    same = (
        mine.offset == theirs.offset
        and mine.shape == theirs.shape
        and mine.stride == theirs.stride
        and mine.dtype == theirs.dtype
        and mine.requires_grad == theirs.requires_grad
        and mine.parameter == theirs.parameter
        and mine.bits == theirs.bits
        and (mine.storage is None) == (theirs.storage is None)
    )
    if same and mine.storage is not None and theirs.storage is not None:
        own = mine.device == mine.storage.device or mine.device == theirs.device
        same = own and _moved(mine.storage, theirs.storage, device)
    if not same:
        return None
    return [] if mine.quantizer is theirs.quantizer else [(mine.quantizer, theirs.quantizer, keys)]


def _moved(mine: Storage, theirs: Storage, device: Device) -> bool:
    """Whether a storage is the same one, on the device that it was to be on."""
    return (
        mine.key == theirs.key
        and mine.nbytes == theirs.nbytes
        and mine.dtype == theirs.dtype
        and mine.crc32 == theirs.crc32
        and mine.byteorder == theirs.byteorder
        and theirs.device == device(mine)
    )


def _mappings(mine: Mapping[Any, Any], theirs: Mapping[Any, Any], keys: tuple[Any, ...]) -> list[Pair] | None:
    if len(mine) != len(theirs):
        return None
    pairs: list[Pair] = []
    for (a, one), (b, other) in zip(mine.items(), theirs.items(), strict=True):
        if type(a) is not str or a != b:
            pairs.append((a, b, (*keys, "key")))
        pairs.append((one, other, (*keys, a)))
    return pairs


def _fields(mine: Any, theirs: Any, keys: tuple[Any, ...]) -> Iterator[Pair]:
    inner = (*keys, mine.name) if isinstance(mine, Opaque) else keys
    return ((getattr(mine, f.name), getattr(theirs, f.name), (*inner, f.name)) for f in fields(mine))


def _bits(value: complex) -> bytes:
    return pack("<d", value) if isinstance(value, float) else pack("<dd", value.real, value.imag)


def _name(keys: tuple[Any, ...]) -> str:
    return key_text(keys) or "the whole"


def _short(value: Any) -> str:
    text = repr(value) if type(value) in _PLAIN or isinstance(value, float) else f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
