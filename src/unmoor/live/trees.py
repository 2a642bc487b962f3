"""Between inert trees and live values, both ways.

Inert to live (`Realizer`): plain values as they are, torch's small values and numpy's data as the real things, tensors
by whatever the caller supplies, objects that need code left inert. Aliases stay aliases; cycles are kept.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from unmoor.errors import CorruptFile, UnsupportedFile
from unmoor.values.nodes import CompositeTensor, NumpyArray, NumpyScalar, Opaque, TensorNode, TorchValue
from unmoor.values.target import Slot

__all__ = ["Realizer", "numpy_array", "quantized"]


class Realizer:
    """Turns inert values into live ones; one instance keeps what is shared within one file shared.

    `tensor` makes the live tensor of a TensorNode, `composite` that of a CompositeTensor where it is not to be made of
    its parts. `slots` are tensors that stand for Slots. `arrays` are ids of tensor nodes that come back as numpy
    arrays.
    """

    def __init__(
        self,
        *,
        tensor: Callable[[TensorNode], Any] | None = None,
        composite: Callable[[CompositeTensor], Any] | None = None,
        slots: Mapping[str, torch.Tensor] | None = None,
        arrays: Collection[int] = (),
    ) -> None:
        self._tensor, self._compose = tensor, composite
        self._slots = slots if slots is not None else {}
        self._arrays = arrays
        self._done: dict[int, Any] = {}
        self._keep: list[Any] = []
        self._open: list[Callable[[], None]] = []

    def __call__(self, value: Any) -> Any:
        """The live value of an inert one."""
        made = self._make(value)
        while self._open:
            self._open.pop()()
        return made

    def _make(self, value: Any) -> Any:
        """The live value; what a container, made here, holds is put into it later, so that depth costs no stack."""
        if value is None or (
            isinstance(value, bool | int | float | str | complex) and not isinstance(value, TorchValue)
        ):
            return value
        if id(value) in self._done:
            return self._done[id(value)]
        self._keep.append(value)
        return self._convert(value)

    def _remember(self, value: Any, made: Any) -> Any:
        self._done[id(value)] = made
        return made

    def _convert(self, value: Any) -> Any:
        if isinstance(value, dict):
            return self._mapping(value)
        if isinstance(value, list):
            made: list[Any] = self._remember(value, [])
            self._open.append(lambda: made.extend(map(self._make, value)))
            return made
        if isinstance(value, tuple):
            return self._remember(value, tuple(map(self._make, value)))
        if isinstance(value, Slot):
            tensor = self._slots[value.id]
            return tensor.numpy() if value.array else tensor
        if isinstance(value, TensorNode):
            if self._tensor is None:
                raise UnsupportedFile("a tensor stands where only plain values can")
            made_tensor = self._tensor(value)
            return self._remember(value, made_tensor.numpy() if id(value) in self._arrays else made_tensor)
        return self._remember(value, self._leaf(value))

    def _mapping(self, value: dict[Any, Any]) -> Any:
        made: Any = OrderedDict() if isinstance(value, OrderedDict) else Counter() if isinstance(value, Counter) else {}
        self._remember(value, made)

        def fill() -> None:
            for key, item in value.items():
                made[self._make(key)] = self._make(item)
            metadata = getattr(value, "_metadata", None)
            if metadata is not None and isinstance(made, OrderedDict):
                made._metadata = self._make(metadata)  # type: ignore[attr-defined]

        self._open.append(fill)
        return made

    def _leaf(self, value: Any) -> Any:
        if isinstance(value, TorchValue):
            return _torch_value(value)
        if isinstance(value, NumpyScalar):
            return _numpy_scalar(value)
        if isinstance(value, NumpyArray):
            return numpy_array(value)
        if isinstance(value, CompositeTensor):
            return self._composite(value)
        if isinstance(value, set | frozenset):
            return type(value)(map(self._make, value))
        return self._opaque(value) if isinstance(value, Opaque) else value

    def _opaque(self, value: Opaque) -> Opaque:
        """The same stand-in with live tensors inside; still not built."""
        made: Opaque = self._remember(value, Opaque(value.name, how=value.how))

        def fill() -> None:
            made.args = self._make(value.args)
            if value.kwargs is not None:
                made.kwargs = {key: self._make(item) for key, item in value.kwargs.items()}
            made.state = self._make(value.state)
            made.items = self._make(value.items)
            made.entries = self._make(value.entries)

        self._open.append(fill)
        return made

    def _composite(self, value: CompositeTensor) -> Any:
        if self._compose is not None:
            return self._compose(value)
        parts = {name: self._make(node) for name, node in value.children.items()}
        tensor = _compose(value, parts, self._make(value.detail.get("quantizer")))
        if value.parameter:
            return torch.nn.Parameter(tensor, value.requires_grad)
        return tensor.requires_grad_(value.requires_grad) if value.requires_grad else tensor


def _compose(value: CompositeTensor, parts: dict[str, torch.Tensor], quantizer: Any) -> torch.Tensor:
    shape = value.shape
    if value.layout.startswith("sparse_"):
        made = _sparse(value, parts)
    elif value.layout == "nested":
        made = torch._nested_view_from_buffer(*(parts[name] for name in ("values", "sizes", "strides", "offsets")))
    elif value.layout == "jagged":
        made = _jagged(value, parts)
    elif value.layout == "quantized":
        window = (0, shape, value.detail["stride"])
        made = quantized(parts["bytes"].untyped_storage(), value.dtype, window, quantizer)
    else:
        raise UnsupportedFile(
            f"a tensor of layout {value.layout} cannot be built without code from the file",
            remedy="Trust the class it needs by name: unmoor.load(path, trust=[...]).",
        )
    return made


def _sparse(value: CompositeTensor, parts: dict[str, torch.Tensor]) -> torch.Tensor:
    """A sparse tensor whose indices lie in its shape: torch reads and writes through others anywhere in memory."""
    how: dict[str, Any] = {"check_invariants": parts["values"].device.type != "meta"}
    try:
        if value.layout == "sparse_coo":
            coalesced = value.detail.get("is_coalesced")
            return torch.sparse_coo_tensor(
                parts["indices"], parts["values"], value.shape, is_coalesced=coalesced, **how
            )
        rows = value.layout in ("sparse_csr", "sparse_bsr")
        compressed, plain = ("crow_indices", "col_indices") if rows else ("ccol_indices", "row_indices")
        layout = getattr(torch, value.layout)
        return torch.sparse_compressed_tensor(
            parts[compressed], parts[plain], parts["values"], value.shape, layout=layout, **how
        )
    except (RuntimeError, IndexError) as error:
        raise CorruptFile(
            f"a {value.layout.replace('_', ' ')} tensor of shape {tuple(value.shape)} is none: "
            f"{str(error).splitlines()[0][:200]}"
        ) from None


def _jagged(value: CompositeTensor, parts: dict[str, torch.Tensor]) -> torch.Tensor:
    made: torch.Tensor = torch.nested.nested_tensor_from_jagged(
        parts["values"], parts["offsets"], parts.get("lengths"), jagged_dim=value.detail["ragged_idx"]
    )
    return made


def quantized(
    storage: torch.UntypedStorage, dtype: str, window: tuple[int, Sequence[int], Sequence[int]], numbers: Sequence[Any]
) -> torch.Tensor:
    """A quantized tensor over `storage`. `window` is its offset, shape and stride; `numbers` the scheme and its own."""
    scheme, *given = numbers
    typed = torch.storage.TypedStorage(wrap_storage=storage, dtype=getattr(torch, dtype), _internal=True)  # type: ignore[no-untyped-call]
    made: torch.Tensor = torch._utils._rebuild_qtensor(  # type: ignore[no-untyped-call]
        typed, *window, (getattr(torch, scheme), *given), False, OrderedDict()
    )
    return made


def _torch_value(value: TorchValue) -> Any:
    if value.kind == "size":
        return torch.Size(value.value)
    if value.kind == "device":
        try:
            return torch.device(value.value)
        except RuntimeError:  # of a kind or a number that this torch has not
            return value
    return getattr(torch, str(value.value), value)


def _numpy_scalar(value: NumpyScalar) -> Any:
    import numpy as np

    dtype = _numpy_dtype(value.dtype)
    if dtype is None:
        return value
    if type(value.value) is bytes and dtype.kind != "S":
        return np.frombuffer(value.value, dtype)[0]
    if dtype.kind in "Mm":
        return np.int64(value.value).view(dtype.newbyteorder("="))
    return dtype.type(value.value)


def _numpy_dtype(text: str) -> Any:
    """The dtype of that name; None for one that numpy has not, or not on this machine (a long double)."""
    import numpy as np

    try:
        dtype = np.dtype(text)
    except TypeError:
        return None
    return dtype if dtype.itemsize else None


def numpy_array(value: NumpyArray) -> Any:
    """A fresh, writable numpy array of the same dtype, shape and memory order; as it is where numpy lacks its dtype."""
    import numpy as np

    dtype = _numpy_dtype(value.dtype)
    if dtype is None:
        return value
    if value.values is not None:
        array = np.empty(len(value.values), dtype=object)
        array[:] = value.values
    else:
        array = np.frombuffer(bytearray(value.data), dtype=dtype)
    return array.reshape(value.shape, order="F" if value.fortran else "C")
