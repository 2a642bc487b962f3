"""The leaves of an inert tree by key path, and whether two of them say the same. Pure.

Containers of one kind are alike: a tuple and a list, a dict and an OrderedDict, a number and numpy's scalar of it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from unmoor.errors import HostileFile
from unmoor.values.difference import Leaf, ValueDifference
from unmoor.values.dtypes import DTYPES, nbytes_of
from unmoor.values.nodes import (
    CompositeTensor,
    NumpyArray,
    NumpyScalar,
    Opaque,
    Span,
    Storage,
    TensorNode,
    TorchValue,
    kind_of,
)
from unmoor.values.strides import contiguous
from unmoor.values.text import format_shape

__all__ = [
    "MEMORY",
    "QUANTIZER",
    "Keys",
    "flatten",
    "in_memory",
    "leaf_of",
    "number_leaf",
    "value_difference",
    "value_text",
]

Keys = tuple[str, ...]

QUANTIZER: Final = "quantizer."
"""What the keys of a quantized tensor's numbers begin with, below those of the tensor."""

MEMORY: Final = "\0memory"
"""The file of a span whose bytes are in the tree itself: numpy arrays, numbers that the other side holds as tensors."""

_FREE: Final = 2_000_000
_EACH: Final = 32
"""Keys that may lead to the leaves, beside so many for each value of each container: honest ones are met once."""

_DEEPEST: Final = 1000
_LONG: Final = 60
_BEFORE: Final = 12
"""How much of two long texts is shown before the place where they part."""

_NUMPY: Final = {row.numpy: row.name for row in DTYPES.values() if row.numpy}


def flatten(tree: Any, path: str, *, without: Collection[int] = ()) -> dict[Keys, Any]:
    """Every leaf of `tree` by its key path, in the order of the file; subtrees whose ids are in `without` left out.

    Raises HostileFile where values refer to each other so often that there is no end.
    """
    found: dict[Keys, Any] = {}
    entered: set[int] = set()
    stack: list[tuple[Keys, Any]] = [((), tree)]
    left = _FREE
    while stack:
        keys, value = stack.pop()
        if id(value) in without:
            continue
        again = id(value) in entered
        if again and isinstance(value, Opaque):
            continue
        inside = list(_children(value))
        if not inside:
            found[_unique(keys, found)] = value
            continue
        if not again:
            entered.add(id(value))
            left += _EACH * len(inside)
        left -= len(inside) * (2 + len(keys))
        if left < 0 or len(keys) >= _DEEPEST:
            raise HostileFile(f"{path} holds values that refer to each other without end", path=path)
        stack += [((*keys, key), item) for key, item in reversed(inside)]
    return found


def _unique(keys: Keys, found: Mapping[Keys, Any]) -> Keys:
    """Two keys of different kinds may have one text (1 and "1")."""
    while keys in found:
        keys = (*keys[:-1], f"{keys[-1]}'") if keys else ("'",)
    return keys


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((str(key), item) for key, item in value.items())
    elif isinstance(value, list | tuple):
        yield from ((str(i), item) for i, item in enumerate(value))
    elif isinstance(value, CompositeTensor):
        yield "layout", f"{value.layout} of {format_shape(value.shape)}{_ragged(value)}"
        yield from value.children.items()
        yield from ((f"numbers.{i}", part) for i, part in enumerate(value.detail.get("quantizer") or ()))
    elif isinstance(value, Opaque):
        yield "class", value.name
        yield from _children(list(value.args))
        states = value.state if isinstance(value.state, tuple) and len(value.state) == 2 else (value.state,)
        for state in states:
            yield from (
                _children(state) if isinstance(state, Mapping) else [("state", state)] if state is not None else []
            )
        yield from (value.kwargs or {}).items()
        yield from _children(value.items)
        yield from ((str(key), item) for key, item in value.entries)
    elif isinstance(value, TensorNode) and value.quantizer is not None:
        yield "", _alone(value)
        yield from ((f"{QUANTIZER}{i}", part) for i, part in enumerate(value.quantizer))
    elif isinstance(value, NumpyArray) and value.values is not None:
        yield from ((str(i), item) for i, item in enumerate(value.values))


def _ragged(value: CompositeTensor) -> str:
    return f", ragged along {value.detail['ragged_idx']}" if "ragged_idx" in value.detail else ""


def _alone(node: TensorNode) -> TensorNode:
    """A quantized tensor without its numbers, which are leaves of their own."""
    return TensorNode(node.storage, node.offset, node.shape, node.stride, node.dtype, node.device, bits=node.bits)


def leaf_of(path: str, role: str, value: Any) -> Leaf | None:
    """A tensor, or an array of numbers, as a leaf; None for any other value."""
    if isinstance(value, NumpyArray):
        dtype = _NUMPY.get(value.dtype[1:] if value.dtype[:1] in "<>|=" else value.dtype)
        if dtype is None or value.values is not None:
            return None
        return Leaf(path, role, value.shape, dtype, "cpu", nbytes_of(dtype, math.prod(value.shape)), value)
    if isinstance(value, TensorNode):
        nbytes = nbytes_of(value.dtype, value.numel)
        return Leaf(path, role, value.shape, value.dtype, value.device, nbytes, value)
    return None


def number_leaf(path: str, role: str, value: Any) -> Leaf | None:
    """A plain number as a tensor without dimensions, to be held against one."""
    value = value.value if isinstance(value, NumpyScalar) else value
    dtype = {bool: "bool", int: "int64", float: "float64"}.get(type(value))
    if dtype is None or (dtype == "int64" and not -(1 << 63) <= value < 1 << 63):
        return None
    return Leaf(path, role, (), dtype, "cpu", DTYPES[dtype].itemsize, value)


def in_memory(value: Any, number: int) -> tuple[TensorNode, bytes] | None:
    """A numpy array or a number as a tensor in the memory file `number`, and its bytes; None for a tensor of a file."""
    if isinstance(value, TensorNode):
        return None
    if isinstance(value, NumpyArray):
        order = "big" if value.dtype[:1] == ">" else "little"
        stride = contiguous(value.shape)
        if value.fortran:
            stride = tuple(reversed(contiguous(tuple(reversed(value.shape)))))
        dtype, shape, data = _NUMPY[value.dtype.lstrip("<>|=")], value.shape, value.data
    else:
        value = value.value if isinstance(value, NumpyScalar) else value
        order, stride, shape = "little", (), ()
        dtype = {bool: "bool", int: "int64", float: "float64"}[type(value)]
        data = struct.pack({"bool": "<?", "int64": "<q", "float64": "<d"}[dtype], value)
    file = f"{MEMORY}{number}"
    storage = Storage(file, dtype, len(data), "cpu", Span(0, len(data), file), None, order)
    return TensorNode(storage, 0, shape, stride, dtype, "cpu"), data


def value_difference(path: str, role: str, a: Any, b: Any) -> ValueDifference | None:
    """How two plain values differ; None where they say the same."""
    if _same(a, b):
        return None
    return ValueDifference(path, "changed", *_told_apart(a, b), role)


def _told_apart(a: Any, b: Any) -> tuple[str, str]:
    """The texts of two values that differ, which differ too."""
    text, other = value_text(a), value_text(b)
    if text != other:
        return text, other
    if type(a) is not type(b):
        return f"{kind_of(a)} {text}", f"{kind_of(b)} {other}"
    if not isinstance(a, str | bytes):
        return text, f"{other}, another"
    first = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    begin = max(0, first - _BEFORE)
    text, other = (f"{value[begin : begin + _LONG]!r} at {begin:,}" for value in (a, b))
    return text, other


def _same(a: Any, b: Any) -> bool:
    a, b = (value.value if isinstance(value, NumpyScalar) else value for value in (a, b))
    if isinstance(a, bool) or isinstance(b, bool):
        return type(a) is type(b) and bool(a == b)
    if isinstance(a, int | float | complex) and isinstance(b, int | float | complex):
        return bool(a == b) or (a != a and b != b)
    if isinstance(a, Mapping | list | tuple) and isinstance(b, Mapping | list | tuple):
        return isinstance(a, Mapping) == isinstance(b, Mapping)  # both are empty: others are not leaves
    return type(a) is type(b) and bool(a == b)


def value_text(value: Any) -> str:
    """A leaf in few words."""
    if isinstance(value, NumpyScalar):
        return value_text(value.value)
    if isinstance(value, str | bytes):
        text = repr(value[: _LONG + 1])
        return text if len(value) <= _LONG else f"{text[:_LONG]}... ({len(value):,} long)"
    if isinstance(value, TorchValue):
        return str(value.value)
    if isinstance(value, TensorNode | CompositeTensor):
        return f"a tensor {format_shape(value.shape)} {value.dtype}"
    if isinstance(value, NumpyArray):
        return f"an array {format_shape(value.shape)} {value.dtype}"
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(map(value_text, value)))[:_LONG] + "}"
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an int of {value.bit_length()} bits"
    if value is None or isinstance(value, bool | int | float | complex | dict | list | tuple):
        return repr(value)[:_LONG]
    return str(value)[:_LONG] if not isinstance(value, Opaque) else kind_of(value)
