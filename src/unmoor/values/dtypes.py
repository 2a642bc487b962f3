"""Every element type this package knows, one row each.

Must not know torch: rows are names and sizes. A test walks the table against the installed torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["BY_SAFETENSORS", "BY_STORAGE", "DTYPES", "DType", "dtype_bytes", "is_exact_cast", "nbytes_of"]


@dataclass(frozen=True, slots=True)
class DType:
    """One element type: torch's name, bytes per element, class of number, and the names other formats use.

    `mantissa` and `exponent` are the bits of a floating type (sign excluded), or the value bits of an integer type
    (exponent 0). They decide which casts are exact. `packing` counts the elements of a tensor that share one element of
    its storage: more than one where torch packs numbers of less than a byte and keeps the shape of the numbers.
    """

    name: str
    itemsize: int
    family: str
    mantissa: int
    exponent: int
    storage: str
    safetensors: str
    numpy: str
    packing: int = 1


_ROWS: Final = (
    DType("float64", 8, "float", 52, 11, "DoubleStorage", "F64", "f8"),
    DType("float32", 4, "float", 23, 8, "FloatStorage", "F32", "f4"),
    DType("float16", 2, "float", 10, 5, "HalfStorage", "F16", "f2"),
    DType("bfloat16", 2, "float", 7, 8, "BFloat16Storage", "BF16", ""),
    DType("int64", 8, "signed", 63, 0, "LongStorage", "I64", "i8"),
    DType("int32", 4, "signed", 31, 0, "IntStorage", "I32", "i4"),
    DType("int16", 2, "signed", 15, 0, "ShortStorage", "I16", "i2"),
    DType("int8", 1, "signed", 7, 0, "CharStorage", "I8", "i1"),
    DType("uint64", 8, "unsigned", 64, 0, "", "U64", "u8"),
    DType("uint32", 4, "unsigned", 32, 0, "", "U32", "u4"),
    DType("uint16", 2, "unsigned", 16, 0, "", "U16", "u2"),
    DType("uint8", 1, "unsigned", 8, 0, "ByteStorage", "U8", "u1"),
    DType("bool", 1, "bool", 1, 0, "BoolStorage", "BOOL", "b1"),
    DType("complex128", 16, "complex", 52, 11, "ComplexDoubleStorage", "", "c16"),
    DType("complex64", 8, "complex", 23, 8, "ComplexFloatStorage", "C64", "c8"),
    DType("complex32", 4, "complex", 10, 5, "", "", ""),
    DType("float8_e4m3fn", 1, "float8", 3, 4, "", "F8_E4M3", ""),
    DType("float8_e5m2", 1, "float8", 2, 5, "", "F8_E5M2", ""),
    DType("float8_e4m3fnuz", 1, "float8", 3, 4, "", "F8_E4M3FNUZ", ""),
    DType("float8_e5m2fnuz", 1, "float8", 2, 5, "", "F8_E5M2FNUZ", ""),
    DType("float8_e8m0fnu", 1, "float8", 0, 8, "", "F8_E8M0", ""),
    DType("float4_e2m1fn_x2", 1, "packed", 0, 0, "", "F4", ""),
    DType("bits8", 1, "packed", 0, 0, "", "", ""),
    DType("bits16", 2, "packed", 0, 0, "", "", ""),
    DType("bits1x8", 1, "packed", 0, 0, "", "", ""),
    DType("bits2x4", 1, "packed", 0, 0, "", "", ""),
    DType("bits4x2", 1, "packed", 0, 0, "", "", ""),
    DType("qint8", 1, "quantized", 0, 0, "QInt8Storage", "", ""),
    DType("quint8", 1, "quantized", 0, 0, "QUInt8Storage", "", ""),
    DType("qint32", 4, "quantized", 0, 0, "QInt32Storage", "", ""),
    DType("quint4x2", 1, "quantized", 0, 0, "QUInt4x2Storage", "", "", packing=2),
    DType("quint2x4", 1, "quantized", 0, 0, "QUInt2x4Storage", "", "", packing=4),
)

DTYPES: Final[dict[str, DType]] = {row.name: row for row in _ROWS}
BY_STORAGE: Final[dict[str, DType]] = {row.storage: row for row in _ROWS if row.storage}
BY_SAFETENSORS: Final[dict[str, DType]] = {row.safetensors: row for row in _ROWS if row.safetensors}


def dtype_bytes(name: str) -> int:
    """Bytes that one element of dtype `name` takes in a storage; KeyError for a name the table lacks."""
    return DTYPES[name].itemsize


def nbytes_of(name: str, elements: int) -> int:
    """Bytes that the first `elements` elements of dtype `name` take in a storage.

    >>> nbytes_of("float32", 3), nbytes_of("quint4x2", 3)
    (12, 2)
    """
    row = DTYPES[name]
    return -(-elements // row.packing) * row.itemsize


def is_exact_cast(source: str, target: str) -> bool:
    """Whether every value of dtype `source` survives a cast to dtype `target` unchanged.

    >>> is_exact_cast("bfloat16", "float32"), is_exact_cast("float32", "bfloat16")
    (True, False)
    """
    if source == target:
        return True
    a, b = DTYPES[source], DTYPES[target]
    if a.family in ("quantized", "packed", "float8") or b.family in ("quantized", "packed", "float8"):
        return False
    if a.family == "bool":
        return True
    wider = b.mantissa >= a.mantissa and b.exponent >= a.exponent
    if a.family in ("float", "complex"):
        return wider and b.family in (("float", "complex") if a.family == "float" else ("complex",))
    if b.family in ("float", "complex"):
        return b.mantissa + 1 >= a.mantissa
    return b.mantissa >= a.mantissa and (a.family == "unsigned" or b.family == "signed")
