"""Builders for numpy's arrays and scalars, kept as data: a dtype in numpy's own words and the raw bytes.

numpy pickles through numpy.core.multiarray (before 2.0) or numpy._core.multiarray, and `_frombuffer` with protocol 5.
Structured dtypes keep their raw bytes alone. Must not know numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Final

from unmoor.values.nodes import NumpyArray, NumpyScalar, Opaque

from .machine import Machine, Rule

__all__ = ["NUMPY_BUILDS", "NUMPY_RULES"]

_Args = tuple[Any, ...]
_MAX_DIMENSIONS: Final = 64
_FORMATS: Final = {
    "b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q",
    "f2": "e", "f4": "f", "f8": "d", "c8": "ff", "c16": "dd", "M8": "q", "m8": "q",
}  # fmt: skip


def _dtype_text(dtype: Any) -> tuple[str, int] | None:
    """A pickled dtype as numpy writes it (`<f4`, `|b1`, `<U3`, `<M8[D]`, `|O`), and its bytes per element."""
    if type(dtype) is not Opaque or dtype.name != "numpy.dtype" or not dtype.args or type(dtype.args[0]) is not str:
        return None
    base, order = dtype.args[0], _state_part(dtype, 1)
    kind, digits = base[:1], base[1:]
    if kind not in tuple("biufcSUVOMm") or not digits.isascii() or not (digits or "0").isdigit() or len(digits) > 9:
        return None
    if order not in ("<", ">", "="):
        order = "|"
    if kind == "O":
        return "|O", 0
    if kind in ("M", "m"):
        return f"{order}{kind}8{_unit(_state_part(dtype, 8))}", 8
    return f"{order}{base}", int(digits or 0) * (4 if kind == "U" else 1)


def _state_part(dtype: Opaque, at: int) -> Any:
    state = dtype.state
    return state[at] if type(state) is tuple and len(state) > at else None


def _unit(metadata: Any) -> str:
    """`[D]` or `[25s]`: the unit of a date or a duration, which numpy pickles as (event, (unit, number, ...))."""
    inner = metadata[1] if type(metadata) is tuple and len(metadata) == 2 else None
    if type(inner) is not tuple or len(inner) < 2:
        return ""
    unit, number = inner[:2]
    if type(unit) is not bytes or not unit.isalpha() or type(number) is not int or not 0 < number < 1 << 31:
        return ""
    return f"[{number if number != 1 else ''}{unit.decode()}]"


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
    if not args or type(args[0]) is not Opaque or args[0].name != "numpy.ndarray" or args[1:2] != ((0,),):
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


_FUNCTIONS: Final = {
    "multiarray._reconstruct": _array, "multiarray.scalar": _scalar, "numeric._frombuffer": _from_buffer,
}  # fmt: skip

NUMPY_RULES: Final[dict[str, Rule]] = {
    f"numpy.{core}.{name}": rule for core in ("core", "_core") for name, rule in _FUNCTIONS.items()
}

NUMPY_BUILDS: Final[dict[type, Callable[[Machine, Any, Any], None]]] = {NumpyArray: _array_state}
