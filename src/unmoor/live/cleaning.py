"""A tree as torch's safe loading accepts it: what a save makes of values that a caller passed.

Numpy data becomes tensors and numbers, noted so that it comes back as numpy; anything that would need code to exist is
refused, all of it at once.
"""

from __future__ import annotations

import codecs
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from unmoor.errors import UsageError
from unmoor.values.dtypes import DTYPES
from unmoor.values.nodes import CompositeTensor, Opaque, Storage, TensorNode
from unmoor.values.plan import Change
from unmoor.values.text import count, key_text

from .held import Held
from .layouts import is_jagged, unsaveable
from .shards import is_ordinary, whole

if TYPE_CHECKING:
    from .content import Content

__all__ = ["Cleaner", "depth_refused"]

_TORCH_LEAVES: Final = (torch.Size, torch.device, torch.dtype)


class _NoBytes(bytes):
    """b"" as torch's safe loading takes it. Pickle calls a class for it; for all other bytes it encodes a text."""

    def __reduce_ex__(self, _: Any) -> Any:
        return codecs.encode, ("", "latin1")

    def __copy__(self) -> _NoBytes:
        return self


_NO_BYTES: Final = _NoBytes()
_WIDEST: Final = 8 * 255 - 1
"""Bits of the largest int that torch's safe loading reads."""
_LEAVES: Final = (bool, int, float, str, bytes, _NoBytes, type(None))
_AS_THEY_ARE: Final = frozenset({bool, float, str, type(None), *_TORCH_LEAVES})
_TENSORS: Final = frozenset({torch.Tensor, nn.Parameter, getattr(nn, "Buffer", nn.Parameter)})
_SAVEABLE: Final = frozenset(getattr(torch, name) for name in DTYPES if hasattr(torch, name))

_PLAIN: Final = (
    "Save plain values in their place: vars(args), dataclasses.asdict(value), list(values), obj.state_dict(), "
    "enum.value, str(path)."
)
_EMPTY: Final = "Give them memory and values first: model.to_empty(device=...), then restore or initialise it."


@contextmanager
def depth_refused() -> Iterator[None]:
    """Raise UsageError for a tree that is too deep to be walked."""
    try:
        yield
    except RecursionError:
        raise UsageError(
            "the tree is nested more deeply than Python's own pickle can follow; nothing was written",
            remedy="Save a flatter structure: a list of nodes and the indexes by which they refer to each other.",
        ) from None


class Cleaner:
    """Copies a tree into what torch's safe loading accepts; notes what was converted and what cannot be."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self._refused: list[str] = []
        self._done: dict[int, Any] = {}
        self._keep: list[Any] = []

    def complain(self) -> None:
        """Raise UsageError naming all that was refused."""
        if self._refused:
            raise UsageError(
                f"{count(len(self._refused), 'value')} cannot be saved: reading them back would run code, or they hold "
                "no data",
                details=tuple(self._refused[:20]),
                remedy=_EMPTY if all("(meta)" in line for line in self._refused) else _PLAIN,
            )

    def clean(self, value: Any, keys: tuple[Any, ...]) -> Any:
        """The value that is written in the place of `value`, which stands at `keys`."""
        kind = type(value)
        if kind in _AS_THEY_ARE:
            return value
        if kind in _LEAVES:
            self._refuse_wide(value, keys)
            return _leaf(value)
        if id(value) in self._done:
            self._again(value, keys)
            return self._done[id(value)]
        self._keep.append(value)
        seen = value if is_ordinary(value) else whole(value, key_text(keys))
        if isinstance(seen, Held):
            self._content.held[keys] = seen
            return self._remember(value, seen)
        if isinstance(seen, torch.Tensor):
            return self._remember(value, self._tensor(seen, keys))
        if kind in (dict, OrderedDict, Counter, defaultdict):
            return self._mapping(value, keys)
        if kind is list:
            made: list[Any] = self._remember(value, [])
            made.extend(self.clean(item, (*keys, i)) for i, item in enumerate(value))
            return made
        if kind is tuple:
            return self._remember(value, tuple(self.clean(item, (*keys, i)) for i, item in enumerate(value)))
        if kind in (set, bytearray, complex):
            return set(map(_leaf, value)) if kind is set else value
        return self._remember(value, self._other(value, keys))

    def _remember(self, value: Any, made: Any) -> Any:
        self._done[id(value)] = made
        return made

    def _again(self, value: Any, keys: tuple[Any, ...]) -> None:
        made = self._done[id(value)]
        if isinstance(made, Held):
            self._content.held[keys] = made
        elif isinstance(made, torch.Tensor) and isinstance(value, torch.Tensor):
            self._content.tensors[keys] = made
        elif isinstance(value, TensorNode | CompositeTensor):
            self._content.stored[keys] = value

    def _mapping(self, value: Any, keys: tuple[Any, ...]) -> Any:
        made: Any = {} if isinstance(value, defaultdict) else type(value)()
        self._remember(value, made)
        for key, item in value.items():
            name = key if type(key) is str else self._key(key, keys)
            made[name] = item if type(item) in _AS_THEY_ARE else self.clean(item, (*keys, name))
        if isinstance(value, defaultdict):
            self._tell(keys, "collections.defaultdict", "dict")
        if hasattr(value, "_metadata"):
            made._metadata = value._metadata
        return made

    def _key(self, key: Any, keys: tuple[Any, ...]) -> Any:
        if isinstance(key, tuple) and all(type(part) in _LEAVES for part in key):
            return tuple(map(_leaf, key)) if type(key) is tuple else key
        if type(key) in _LEAVES:
            self._refuse_wide(key, keys)
            return _leaf(key)
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(key, numpy.generic):
            return key.item()
        self._refused.append(f"{key_text(keys) or '(root)'}: a key of type {_name(key)}")
        return repr(key)

    def _refuse_wide(self, value: Any, keys: tuple[Any, ...]) -> None:
        """Torch's safe loading knows no operation for a number of more bytes than one byte counts."""
        if type(value) is int and value.bit_length() > _WIDEST:
            self._refused.append(f"{key_text(keys) or '(root)'}: an int of {value.bit_length():,} bits")

    def _tensor(self, value: torch.Tensor, keys: tuple[Any, ...]) -> torch.Tensor:
        if type(value) not in _TENSORS or value.is_meta or value.dtype not in _SAVEABLE:
            self._refuse_tensor(value, keys)
        self._content.tensors[keys] = value
        return value

    def _refuse_tensor(self, value: torch.Tensor, keys: tuple[Any, ...]) -> None:
        """Note why a tensor cannot be saved, if it cannot."""
        why = unsaveable(value)
        if type(value) not in _TENSORS and not is_jagged(value):
            why = f"a tensor of class {_name(value)}"
        if value.device.type == "meta":
            self._refused.append(f"{key_text(keys)} (meta): it holds no data")
        elif why:
            self._refused.append(f"{key_text(keys)}: {why}")

    def _stored(self, value: TensorNode | CompositeTensor, keys: tuple[Any, ...]) -> TensorNode | CompositeTensor:
        from .stored import unwritable

        why = unwritable(value)
        if why:
            self._refused.append(f"{key_text(keys)}: {why}")
        self._content.stored[keys] = value
        return value

    def _other(self, value: Any, keys: tuple[Any, ...]) -> Any:
        if isinstance(value, _TORCH_LEAVES):
            return value
        if isinstance(value, TensorNode | CompositeTensor):
            return self._stored(value, keys)
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.ndarray):
            return self._array(value, keys)
        if numpy is not None and isinstance(value, numpy.generic) and isinstance(value.item(), _LEAVES):
            self._tell(keys, f"numpy.{value.dtype}", type(value.item()).__name__)
            return value.item()
        self._refused.append(f"{key_text(keys) or '(root)'}: {_name(value)}")
        return None

    def _array(self, value: Any, keys: tuple[Any, ...]) -> Any:
        if hasattr(value, "mask"):
            self._refused.append(f"{key_text(keys)}: {_name(value)}")
            return None
        try:
            tensor = torch.from_numpy(value.astype(value.dtype.newbyteorder("="), order="C"))
        except TypeError:
            self._refused.append(f"{key_text(keys)}: a numpy array of {value.dtype}")
            return None
        self._tell(keys, f"numpy array of {value.dtype}", "a tensor, given back as an array")
        self._content.arrays.append(keys)
        self._content.tensors[keys] = tensor
        return tensor

    def _tell(self, keys: tuple[Any, ...], before: str, after: str) -> None:
        self._content.converted.append(Change("extra", key_text(keys), before, after))


def _leaf(value: Any) -> Any:
    return _NO_BYTES if type(value) is bytes and not value else value


def _name(value: Any) -> str:
    if isinstance(value, Opaque):
        return value.name
    if isinstance(value, Storage):
        return "a storage without a tensor"
    return f"{type(value).__module__}.{type(value).__qualname__}"
