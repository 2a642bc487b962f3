"""Live tensors that are made of others (sparse, nested, quantized), and those that no file can hold.

Their strided parts bear the names that describe gives the same parts in a file. Knows no file format.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import torch

from unmoor.values.dtypes import DTYPES

__all__ = ["copies_by_itself", "dtype_name", "is_jagged", "layout_of", "strided_parts", "unsaveable"]

_STRIDED: Final = torch.strided

_COMPRESSED: Final = {
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


@lru_cache(maxsize=128)
def dtype_name(dtype: torch.dtype) -> str:
    """A dtype as values name it: `float32`."""
    return str(dtype).removeprefix("torch.")


def is_jagged(tensor: torch.Tensor) -> bool:
    """Whether this is torch's own nested tensor of layout jagged, which is a subclass."""
    return type(tensor).__module__ == "torch.nested._internal.nested_tensor"


def layout_of(tensor: torch.Tensor) -> str:
    """What a tensor is: strided (plain numbers in one storage), sparse_coo, ..., nested, jagged, quantized, packed."""
    if tensor.layout != _STRIDED:
        return str(tensor.layout).removeprefix("torch.")
    if tensor.is_quantized:
        return "packed" if DTYPES[str(tensor.dtype).removeprefix("torch.")].packing > 1 else "quantized"
    return "nested" if tensor.is_nested else "strided"


def copies_by_itself(tensor: torch.Tensor | None) -> bool:
    """Whether torch's own copy_ replaces the values of such a tensor, where bytes cannot be streamed into it."""
    if tensor is None or (tensor.layout == _STRIDED and not tensor.is_quantized):
        return False
    return layout_of(tensor) in ("sparse_coo", "quantized")


def strided_parts(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """The strided tensors that hold its data, by name; "" is the tensor itself where it is strided."""
    if tensor.layout is _STRIDED and not tensor.is_quantized and not tensor.is_nested:
        return {"": tensor}
    if tensor.layout == torch.sparse_coo:
        return {"indices": tensor._indices(), "values": tensor._values()}
    if tensor.layout in _COMPRESSED:
        return {name: getattr(tensor, name)() for name in _COMPRESSED[tensor.layout]}
    if is_jagged(tensor):
        return _jagged_parts(tensor)
    if tensor.is_nested:
        return _nested_parts(tensor)
    if tensor.is_quantized and tensor.qscheme() not in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return {"": tensor, "scales": tensor.q_per_channel_scales(), "zero_points": tensor.q_per_channel_zero_points()}
    return {"": tensor}


def _jagged_parts(tensor: Any) -> dict[str, torch.Tensor]:
    lengths = tensor.lengths()
    parts = {"values": tensor._values, "offsets": tensor.offsets()}
    return parts if lengths is None else {**parts, "lengths": lengths}


def _nested_parts(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    return {
        "values": tensor.values(),
        "sizes": tensor._nested_tensor_size(),
        "strides": tensor._nested_tensor_strides(),
        "offsets": tensor._nested_tensor_storage_offsets(),
    }


def unsaveable(tensor: torch.Tensor) -> str:
    """Why torch.load could not read such a tensor back without running code; "" where it can."""
    if tensor.device.type == "meta":
        return "on the meta device, it holds no data"
    if str(tensor.dtype).removeprefix("torch.") not in DTYPES:
        return f"a tensor of {tensor.dtype}, which torch itself can neither save nor load; save its view(torch.uint8)"
    if is_jagged(tensor) and type(tensor) not in getattr(torch.serialization, "get_safe_globals", list)():
        return f"a nested tensor of layout jagged, which torch {torch.__version__} does not load by its safe default"
    return ""
