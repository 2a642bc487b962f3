"""Builders for what the standard library and numpy pickle: plain values, never a call.

Each rule gets the machine and the pickled arguments and answers the value, or None where the arguments are not of the
one form it knows: the object then stays opaque. Copies are charged, sizes come from bytes that are there.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from struct import Struct
from typing import Any, Final

from unmoor.values.nodes import NumpyArray, NumpyScalar, Opaque

from .machine import Machine, Rule

__all__ = ["PLAIN_BUILDS", "PLAIN_RULES"]

_Args = tuple[Any, ...]
_MAX_DIMENSIONS: Final = 64
_LATIN: Final = ("latin1", "latin-1")
_FORMATS: Final = {
    "b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q",
    "f2": "e", "f4": "f", "f8": "d", "c8": "ff", "c16": "dd", "M8": "q", "m8": "q",
}  # fmt: skip


def _pairs(value: Any) -> list[Any] | None:
    """`[(k, v), ...]` or a dict as one flat list; None for anything else."""
    if type(value) in (dict, OrderedDict):
        return [part for pair in value.items() for part in pair]
    if type(value) in (list, tuple) and all(type(pair) in (list, tuple) and len(pair) == 2 for pair in value):
        return [part for pair in value for part in pair]
    return None


def _filled(m: Machine, target: Any, args: _Args) -> Any:
    if len(args) > 1:
        return None
    pairs = _pairs(args[0]) if args else []
    if pairs is None:
        return None
    m.charge(3 + len(pairs))
    m.put(target, pairs)
    return target


def _ordered_dict(m: Machine, args: _Args) -> Any:
    if not args:
        m.charge(8)
        return OrderedDict()
    return _filled(m, OrderedDict(), args)


def _dict(m: Machine, args: _Args) -> Any:
    return _filled(m, {}, args)


def _counter(m: Machine, args: _Args) -> Any:
    known = not args or type(args[0]) in (dict, OrderedDict)
    return _filled(m, Counter(), args) if known else None


def _default_dict(m: Machine, args: _Args) -> Any:
    """A plain dict: the factory would be code, and a dict that answers to missing keys hides mistakes."""
    value = _filled(m, {}, args[1:])
    if value is not None:
        m.note("collections.defaultdict")
    return value


def _items(args: _Args) -> list[Any] | None:
    if not args:
        return []
    known = len(args) == 1 and type(args[0]) in (list, tuple)
    return list(args[0]) if known else None


def _set(m: Machine, args: _Args) -> Any:
    items = _items(args)
    if items is None:
        return None
    m.charge(4 + len(items))
    value: set[Any] = set()
    m.extend(value, items)
    return value


def _frozenset(m: Machine, args: _Args) -> Any:
    value = _set(m, args)
    return None if value is None else frozenset(value)


def _list(m: Machine, args: _Args) -> Any:
    m.charge(1 + (len(args[0]) if args and type(args[0]) in (list, tuple) else 0))
    return _items(args)


def _tuple(m: Machine, args: _Args) -> Any:
    items = _list(m, args)
    return None if items is None else tuple(items)


def _complex(m: Machine, args: _Args) -> Any:
    m.charge(1)
    known = 1 <= len(args) <= 2 and all(type(part) is float for part in args)
    return complex(*args) if known else None


def _slice(m: Machine, args: _Args) -> Any:
    m.charge(1)
    known = 1 <= len(args) <= 3 and all(part is None or type(part) is int for part in args)
    return slice(*args) if known else None


def _range(m: Machine, args: _Args) -> Any:
    m.charge(2)
    known = 1 <= len(args) <= 3 and all(type(part) is int for part in args) and args[2:] != (0,)
    return range(*args) if known else None


def _encode(m: Machine, args: _Args) -> Any:
    """Protocol 2 has no bytes: it writes them as latin-1 text and a call of _codecs.encode."""
    if len(args) != 2 or type(args[0]) is not str or args[1] not in _LATIN:
        return None
    m.charge(1 + len(args[0]) // 64)
    try:
        return args[0].encode("latin-1")
    except UnicodeEncodeError:
        raise m.corrupt("holds bytes as text that are none") from None


def _bytes(m: Machine, args: _Args) -> Any:
    return b"" if not args else _encode(m, args)


def _bytearray(m: Machine, args: _Args) -> Any:
    if args and type(args[0]) is bytes and len(args) == 1:
        m.charge(1 + len(args[0]) // 64)
        return bytearray(args[0])
    data = _bytes(m, args)
    return None if data is None else bytearray(data)


def _reconstructor(m: Machine, args: _Args) -> Any:
    """Copyreg's way to make an object of protocol 0 and 1: (class, base, value of the base)."""
    if len(args) != 3 or not all(type(part) is Opaque and part.how == "global" for part in args[:2]):
        return None
    cls, base, value = args
    made = m.call(cls, (), "new")
    if type(made) is not Opaque or base.name == "builtins.object":
        return made
    pairs = _pairs(value) if base.name == "builtins.dict" else None
    if pairs is not None:
        m.charge(len(pairs))
        m.put(made, pairs)
    elif base.name == "builtins.list" and type(value) is list:
        m.charge(len(value))
        m.extend(made, list(value))
    else:
        made.args = (value,)
    return made


def _new_object(m: Machine, args: _Args) -> Any:
    return m.call(args[0], args[1:], "new") if args else None


def _dtype_text(dtype: Any) -> tuple[str, int] | None:
    """The text numpy itself writes for a pickled dtype (`<f4`, `|b1`, `<U3`, `<M8[D]`, `|O`) and its bytes per element."""
    if type(dtype) is not Opaque or dtype.name != "numpy.dtype" or not dtype.args or type(dtype.args[0]) is not str:
        return None
    base: str = dtype.args[0]
    state: _Args = dtype.state if type(dtype.state) is tuple else ()
    kind, digits = base[:1], base[1:]
    if kind not in tuple("biufcSUVOMm") or not digits.isascii() or not (digits or "0").isdigit() or len(digits) > 9:
        return None
    order = state[1] if len(state) > 1 and state[1] in ("<", ">", "|", "=") else "|"
    if kind in ("O", "M", "m"):
        unit = _unit(state[8]) if len(state) > 8 and kind != "O" else ""
        return ("|O", 0) if kind == "O" else (f"{order}{kind}8{unit}", 8)
    return f"{order}{base}", int(digits or 0) * (4 if kind == "U" else 1)


def _unit(metadata: Any) -> str:
    inner = metadata[1] if type(metadata) is tuple and len(metadata) == 2 else ()
    known = type(inner) is tuple and len(inner) >= 2 and type(inner[0]) is bytes and type(inner[1]) is int
    if not known or not inner[0].isalpha() or not 0 < inner[1] < 1 << 31:
        return ""
    return f"[{inner[1] if inner[1] != 1 else ''}{inner[0].decode()}]"


def _raw(value: Any) -> bytes | None:
    """The bytes of an array; Python 2 wrote them as a str, which the reader took for text where it could."""
    if type(value) is str:
        return value.encode("utf-8", "surrogatepass")
    return bytes(value) if type(value) in (bytes, bytearray) else None


def _scalar(m: Machine, args: _Args) -> Any:
    if len(args) != 2:
        return None
    text, data = _dtype_text(args[0]), _raw(args[1])
    if text is None or data is None:
        return None
    m.charge(3 + len(data) // 64)
    value = _scalar_value(text[0], data) if text[1] == len(data) else None
    return None if value is None else NumpyScalar(text[0], value)


def _scalar_value(dtype: str, data: bytes) -> Any:
    order, kind, base = dtype[0], dtype[1], dtype[1:].partition("[")[0]
    if kind == "S":
        return data.rstrip(b"\0")
    if kind == "U":
        try:
            return data.decode("utf-32-be" if order == ">" else "utf-32-le").rstrip("\0")
        except UnicodeDecodeError:
            return None
    if base not in _FORMATS:
        return data
    parts = Struct((">" if order == ">" else "<") + _FORMATS[base]).unpack(data)
    return complex(*parts) if kind == "c" else parts[0]


def _array(m: Machine, args: _Args) -> Any:
    """`_reconstruct(ndarray, (0,), b"b")`: an empty array that a BUILD fills."""
    if not args or type(args[0]) is not Opaque or args[0].name != "numpy.ndarray":
        return None
    m.charge(4)
    return NumpyArray("|u1", (0,), fortran=False, data=b"")


def _array_state(m: Machine, array: Any, state: Any) -> None:
    """Fill an array that no one but the memo has seen yet; the node is frozen once the file is read."""
    if type(state) is not tuple or len(state) not in (4, 5):
        raise m.corrupt("gives an array a state that is none")
    shape, dtype, fortran, data = state[-4:]
    _fill(m, array, shape, dtype, data, fortran=fortran is True or fortran == 1)


def _from_buffer(m: Machine, args: _Args) -> Any:
    if len(args) != 4:
        return None
    data, dtype, shape, order = args
    m.charge(4)
    array = NumpyArray("|u1", (0,), fortran=False, data=b"")
    _fill(m, array, shape, dtype, data, fortran=order == "F")
    return array


def _fill(m: Machine, array: NumpyArray, shape: Any, dtype: Any, data: Any, *, fortran: bool) -> None:
    text = _dtype_text(dtype)
    known = type(shape) is tuple and len(shape) <= _MAX_DIMENSIONS and all(type(n) is int and n >= 0 for n in shape)
    if text is None or not known:
        raise m.corrupt("gives an array a dtype or a shape that is none")
    count = 1
    for size in shape:
        count *= size
    values, raw = (tuple(data), b"") if type(data) is list else (None, _raw(data))
    m.charge(len(values) if values is not None else len(raw or b"") // 64)
    held = len(values) if values is not None else len(raw or b"")
    if raw is None or held != count * (text[1] if values is None else 1):
        raise m.corrupt("gives an array data of another size than its shape takes")
    for name, value in (("dtype", text[0]), ("shape", shape), ("fortran", fortran), ("data", raw), ("values", values)):
        object.__setattr__(array, name, value)


def _metadata(m: Machine, target: Any, state: Any) -> None:
    """The `_metadata` that a state dict carries; any other attribute could shadow a method and is left out."""
    known = state if type(state) in (dict, OrderedDict) else {}
    if "_metadata" in known:
        target._metadata = known["_metadata"]
    if len(known) > ("_metadata" in known) or known is not state:
        m.note("attributes of an OrderedDict")


_NUMPY: Final = {
    "multiarray._reconstruct": _array, "multiarray.scalar": _scalar, "numeric._frombuffer": _from_buffer,
}  # fmt: skip

PLAIN_RULES: Final[dict[str, Rule]] = {
    "collections.OrderedDict": _ordered_dict,
    "collections.Counter": _counter,
    "collections.defaultdict": _default_dict,
    "builtins.set": _set, "builtins.frozenset": _frozenset, "builtins.list": _list, "builtins.tuple": _tuple,
    "builtins.dict": _dict, "builtins.complex": _complex, "builtins.slice": _slice, "builtins.range": _range,
    "builtins.bytes": _bytes, "builtins.bytearray": _bytearray,
    "_codecs.encode": _encode,
    "copyreg._reconstructor": _reconstructor, "copyreg.__newobj__": _new_object,
    **{f"numpy.{core}.{name}": rule for core in ("core", "_core") for name, rule in _NUMPY.items()},
}  # fmt: skip

PLAIN_BUILDS: Final[dict[type, Callable[[Machine, Any, Any], None]]] = {
    OrderedDict: _metadata, NumpyArray: _array_state,
}  # fmt: skip
