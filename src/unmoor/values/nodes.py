"""What an inert reading of a file is made of, beside plain Python values.

A tree is dict, OrderedDict, list, tuple, set, frozenset, str, bytes, numbers, bool, None, dates and times of the
standard library, and the nodes below.
Nothing here can run code from a file or hold tensor data. Must not know torch or numpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from .quick import quickly_made

__all__ = [
    "Chunk",
    "CompositeTensor",
    "NumpyArray",
    "NumpyScalar",
    "Opaque",
    "Span",
    "Storage",
    "TensorNode",
    "TorchValue",
    "deflated",
    "inflated",
    "kind_of",
]


@quickly_made
@dataclass(frozen=True, slots=True)
class Span:
    """Where bytes lie: `nbytes` bytes from `offset` in `file` ("" is the described file itself).

    Bytes that are deflated there have a file of their own, named by `inflated`, in which they lie as they are.
    """

    offset: int
    nbytes: int
    file: str = ""

    @property
    def end(self) -> int:
        """The offset just past the last byte."""
        return self.offset + self.nbytes


def inflated(file: str, offset: int, stored: int, nbytes: int) -> str:
    """The name of what `stored` deflated bytes from `offset` of `file` hold: no real file can bear it."""
    return f"{file}\0{offset}\0{stored}\0{nbytes}"


def deflated(file: str) -> tuple[str, int, int, int] | None:
    """File, offset, stored bytes and inflated bytes of a name that `inflated` made; None for a real file.

    >>> deflated(inflated("a.pt", 64, 10, 99)), deflated("a.pt")
    (('a.pt', 64, 10, 99), None)
    """
    name, *numbers = file.split("\0")
    if len(numbers) != 3:
        return None
    offset, stored, nbytes = map(int, numbers)
    return name, offset, stored, nbytes


@quickly_made
@dataclass(frozen=True, slots=True)
class Storage:
    """One run of tensor data that one or more tensors look into.

    `device` is the tag as it stands in the file. `span` is None where the file holds no bytes for it (meta tensors,
    damaged files). `crc32` is None where the file holds no checksum of it. `dtype` is the element type under which it
    was pickled ("uint8" for an untyped storage).

    A storage with `chunks` has no bytes of its own: it stands for one whole tensor of `shape`, laid out without gaps,
    whose boxes lie in other storages. The boxes are proved to fill it, each element once.
    """

    key: str
    dtype: str
    nbytes: int
    device: str
    span: Span | None
    crc32: int | None
    byteorder: str = "little"
    shape: tuple[int, ...] = ()
    chunks: tuple[Chunk, ...] = ()

    def sources(self) -> tuple[Storage, ...]:
        """The storages that hold its bytes: itself, or those of its chunks."""
        if not self.chunks:
            return (self,)
        return tuple(chunk.node.storage for chunk in self.chunks if chunk.node.storage is not None)


@quickly_made
@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """A box of a tensor: the values of `node` are `tensor[start : start + node.shape]`, dimension by dimension."""

    start: tuple[int, ...]
    node: TensorNode


@quickly_made
@dataclass(frozen=True, slots=True, eq=False)
class TensorNode:
    """A strided tensor as pickled: a window of `shape` and `stride` (elements) from element `offset` of a storage.

    `storage` is None for a tensor without data (meta). `parameter` tells an nn.Parameter. `bits` holds "conj" and
    "neg" where the tensor is a lazy conjugate or negation of its storage. `quantizer` holds the scheme and its numbers
    for a quantized tensor.
    """

    storage: Storage | None
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str
    requires_grad: bool = False
    parameter: bool = False
    bits: frozenset[str] = frozenset()
    quantizer: tuple[Any, ...] | None = None

    @property
    def numel(self) -> int:
        """The number of elements."""
        n = 1
        for size in self.shape:
            n *= size
        return n


@dataclass(frozen=True, slots=True, eq=False)
class CompositeTensor:
    """A tensor made of others: sparse, nested, or a subclass. `children` are its strided parts by name."""

    layout: str
    shape: tuple[int, ...]
    dtype: str
    children: Mapping[str, Any]
    detail: Mapping[str, Any] = field(default_factory=dict)
    requires_grad: bool = False
    parameter: bool = False


@dataclass(frozen=True, slots=True)
class NumpyArray:
    """A numpy array kept as data: `dtype` is numpy's own string (`<f4`), `data` the raw bytes.

    `values` holds the elements instead where the dtype is object.
    """

    dtype: str
    shape: tuple[int, ...]
    fortran: bool
    data: bytes
    values: tuple[Any, ...] | None = None


@dataclass(frozen=True, slots=True)
class NumpyScalar:
    """A numpy scalar: its dtype string and its value as a plain Python number, string or bytes."""

    dtype: str
    value: Any


@dataclass(frozen=True, slots=True)
class TorchValue:
    """A small value of torch itself. `kind` is size, device, dtype, layout, memory_format, qscheme or generator_state.

    `value` is a tuple of ints for size, else the name as text ("cuda:7", "float32", "strided", ...).
    """

    kind: str
    value: Any


@dataclass(slots=True, eq=False)
class Opaque:
    """Stands for an object that would need code to exist: its class or function, its arguments, its state.

    `name` is "module.name". `how` is global (the class or function itself), reduce (called with args) or new
    (cls.__new__ with args). `items` are elements appended to it, `entries` pairs set on it.
    """

    name: str
    args: tuple[Any, ...] = ()
    state: Any = None
    how: str = "reduce"
    kwargs: Mapping[str, Any] | None = None
    items: list[Any] = field(default_factory=list)
    entries: list[tuple[Any, Any]] = field(default_factory=list)

    def __repr__(self) -> str:
        if self.how == "global":
            return f"<{self.name}, not imported>"
        words = [_short(a) for a in self.args]
        words += [f"{key}={_short(value)}" for key, value in (self.kwargs or {}).items()]
        words += _partial(self.state) if self.name == "functools.partial" else []
        if isinstance(self.state, dict):
            words += [f"{key}={_short(value)}" for key, value in self.state.items()]
        more = ["..."] if len(words) > _SHOWN else []
        return f"<{self.name}({', '.join([*words[:_SHOWN], *more])}), not built>"

    def to_json(self) -> dict[str, Any]:
        """The stand-in as plain JSON values: what is no plain value itself is told in words."""
        return {
            "name": self.name,
            "how": self.how,
            "args": [_short(value) for value in self.args],
            "kwargs": {key: _short(value) for key, value in (self.kwargs or {}).items()},
            "state": {str(k): _short(v) for k, v in self.state.items()}
            if isinstance(self.state, dict)
            else _short(self.state),
            "items": [_short(value) for value in self.items],
            "entries": [[_short(key), _short(value)] for key, value in self.entries],
        }


def _partial(state: Any) -> list[str]:
    """The arguments that a functools.partial holds, which it pickles as (function, arguments, keywords, attributes)."""
    if type(state) is not tuple or len(state) != 4 or type(state[1]) is not tuple or type(state[2]) is not dict:
        return []
    return [*map(_short, state[1]), *(f"{key}={_short(value)}" for key, value in state[2].items())]


def kind_of(value: Any) -> str:
    """What a value of a tree is, for people.

    >>> kind_of([]), kind_of(5), kind_of(None)
    ('a list', 'an int', 'None')
    """
    if isinstance(value, TensorNode | CompositeTensor):
        return "a tensor"
    name = value.name if isinstance(value, Opaque) else "None" if value is None else type(value).__name__
    return name if value is None else f"an {name}" if name[0].lower() in "aeiou" else f"a {name}"


_SHOWN: Final = 6
_LONG: Final = 60


def _short(value: Any) -> str:
    if isinstance(value, str):
        return repr(value if len(value) <= _LONG else value[:_LONG] + "...")
    if isinstance(value, bytes | bytearray):
        return f"<{len(value)} bytes>"
    if value is None or isinstance(value, bool | float):
        return repr(value)
    if isinstance(value, int):
        return repr(value) if value.bit_length() < 128 else f"<int of {value.bit_length()} bits>"
    if isinstance(value, Opaque):
        return f"<{value.name}>"
    return f"<{type(value).__name__}>"
