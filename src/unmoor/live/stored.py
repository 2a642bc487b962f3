"""A described tree as the pickle that torch.load reads: its tensors stay in their file until their bytes are written.

The opcodes are those of `pickling`. Device tags are those of the file: no device of another machine is needed. Every
call mirrors one function of torch/_utils.py (2.13) and what `describe.rebuild` reads.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import torch

from unmoor.values.dtypes import DTYPES, nbytes_of
from unmoor.values.nodes import CompositeTensor, Storage, TensorNode

from .pickling import StorageBlob, StorageRef

__all__ = ["Extent", "Reducer", "pickle_legacy", "pickle_stored", "strided_nodes", "unwritable"]

_ALIGN: Final = 16
_SPARSE: Final = ("sparse_coo", "sparse_csr", "sparse_bsr", "sparse_csc", "sparse_bsc")
_IDS: Final[Mapping[str, tuple[None, ...]]] = {"zip": (), "legacy": (None,)}
"""What ends a storage's id: in a legacy stream, the window into another storage that it is, none here.

torch loads no untyped storage from such a stream: bytes stand in.
"""
_NESTED: Final = ("values", "sizes", "strides", "offsets")


@dataclass(slots=True)
class Extent:
    """Bytes `start` to `end` of a storage of another file: those that its tensors reach."""

    storage: Storage
    start: int
    end: int
    dtypes: set[str] = field(default_factory=set)

    @property
    def nbytes(self) -> int:
        """How many they are."""
        return self.end - self.start


def unwritable(node: TensorNode | CompositeTensor) -> str:
    """Why a described tensor cannot be written again without code of its own; "" where it can."""
    if isinstance(node, CompositeTensor) and node.layout not in (*_SPARSE, "nested"):
        return f"a tensor of layout {node.layout}"
    missing = [part.dtype for part in strided_nodes(node).values() if not hasattr(torch, part.dtype)]
    return f"a tensor of dtype {missing[0]}, which torch {torch.__version__} lacks" if missing else ""


def strided_nodes(node: TensorNode | CompositeTensor) -> dict[str, TensorNode]:
    """The strided tensors that hold its data, by the names that `describe` gives them; "" is the tensor itself."""
    if isinstance(node, CompositeTensor):
        return {name: part for name, part in node.children.items() if isinstance(part, TensorNode)}
    numbers = zip(("scales", "zero_points"), node.quantizer[1:3] if node.quantizer else (), strict=False)
    return {"": node, **{name: part for name, part in numbers if isinstance(part, TensorNode)}}


def pickle_stored(
    tree: Any, nodes: Iterable[TensorNode | CompositeTensor], *, foreign: bool = False
) -> tuple[bytes, dict[str, Extent | StorageBlob]]:
    """The pickle of a tree whose tensors are `nodes`, and by key what each storage in it holds.

    Live tensors in the tree (made of numpy arrays) are written from memory. Stand-ins for objects are an error, but for
    a `foreign` tree, which names their classes as its file did.
    """
    pickled, reducer = _pickled(tree, nodes, foreign=foreign, form="zip")
    return pickled, reducer.used


def pickle_legacy(
    tree: Any, nodes: Iterable[TensorNode | CompositeTensor]
) -> tuple[bytes, list[tuple[str, int, Extent | StorageBlob]]]:
    """The same for a legacy stream: key, number of elements and content of each storage, in the order of their keys."""
    pickled, reducer = _pickled(tree, nodes, foreign=False, form="legacy")
    return pickled, [(key, reducer.numels[key], reducer.used[key]) for key in sorted(reducer.used)]


def _pickled(
    tree: Any, nodes: Iterable[TensorNode | CompositeTensor], *, foreign: bool, form: Literal["zip", "legacy"]
) -> tuple[bytes, Reducer]:
    sink = io.BytesIO()
    reducer = Reducer(_extents(nodes), _IDS[form])
    if foreign:
        from .foreign import ForeignPickler

        ForeignPickler(sink, reducer).dump(tree)
    else:
        _Pickler(sink, reducer).dump(tree)
    return sink.getvalue(), reducer


def _extents(nodes: Iterable[TensorNode | CompositeTensor]) -> dict[str, Extent]:
    found: dict[str, Extent] = {}
    for node in nodes:
        for part in strided_nodes(node).values():
            storage = part.storage
            if storage is None:
                continue
            low, high = _reach(part)
            entry = found.setdefault(storage.key, Extent(storage, low, high))
            entry.start, entry.end = min(entry.start, low - low % _ALIGN), max(entry.end, high)
            entry.dtypes.add(part.dtype)
    for entry in found.values():
        entry.start -= entry.start % _ALIGN
    return found


def _reach(node: TensorNode) -> tuple[int, int]:
    first = nbytes_of(node.dtype, node.offset)
    if 0 in node.shape:
        return first, first
    last = node.offset + sum((size - 1) * step for size, step in zip(node.shape, node.stride, strict=True))
    return first, nbytes_of(node.dtype, last + 1)


class _Pickler(pickle.Pickler):
    """The pickler of trees that hold nothing but tensors and plain values."""

    def __init__(self, sink: io.BytesIO, reducer: Reducer) -> None:
        super().__init__(sink, protocol=2)
        self._reducer = reducer

    def persistent_id(self, obj: Any) -> Any:
        """The id of a storage; None for everything else."""
        return self._reducer.persistent_id(obj)

    def reducer_override(self, obj: Any) -> Any:
        """Tensors by the call that rebuilds them; the rest as pickle does."""
        return self._reducer.reducer_override(obj)


class Reducer:
    """Says how a pickler writes described tensors: as the calls that rebuild them, with storages by persistent id."""

    def __init__(self, extents: Mapping[str, Extent], tail: tuple[None, ...] = ()) -> None:
        self._extents, self._tail = extents, tail
        self._untyped: Any = torch.ByteStorage if tail else torch.UntypedStorage
        self._keys: dict[str, str] = {}
        self.used: dict[str, Extent | StorageBlob] = {}
        self.numels: dict[str, int] = {}

    def persistent_id(self, obj: Any) -> Any:
        """The id of a storage; None for everything else."""
        if isinstance(obj, StorageRef):
            self.numels[obj.key] = obj.numel
            return ("storage", obj.type, obj.key, obj.location, obj.numel, *self._tail)
        return None

    def reducer_override(self, obj: Any) -> Any:
        """Tensors by the call that rebuilds them; the rest as pickle does."""
        if isinstance(obj, TensorNode | CompositeTensor):
            return _parameter(obj) if obj.parameter else self._rebuilt(obj)
        return self._live(obj) if type(obj) is torch.Tensor else NotImplemented

    def _rebuilt(self, node: TensorNode | CompositeTensor) -> Any:
        if isinstance(node, CompositeTensor):
            return _composite(node)
        if node.storage is None:
            facts = (_dtype(node.dtype), node.shape, node.stride, node.requires_grad)
            return torch._utils._rebuild_meta_tensor_no_storage, facts
        ref, offset, typed = self._window(node, node.storage)
        where = (ref, offset, node.shape, node.stride)
        if node.quantizer is not None:
            numbers = (_dtype(node.quantizer[0]), *node.quantizer[1:])
            return torch._utils._rebuild_qtensor, (*where, numbers, node.requires_grad, OrderedDict())
        metadata = (dict.fromkeys(sorted(node.bits), True),) if node.bits else ()
        if typed:
            return torch._utils._rebuild_tensor_v2, (*where, node.requires_grad, OrderedDict(), *metadata)
        arguments = (*where, node.requires_grad, OrderedDict(), _dtype(node.dtype), *metadata)
        return torch._utils._rebuild_tensor_v3, arguments

    def _window(self, node: TensorNode, storage: Storage) -> tuple[StorageRef, int, bool]:
        """The storage of a tensor as it is written, its offset in there, and whether its class tells the dtype."""
        extent = self._extents[storage.key]
        if storage.key not in self._keys:
            self._keys[storage.key] = str(len(self.used))
            self.used[self._keys[storage.key]] = extent
        row = DTYPES[node.dtype]
        offset = node.offset - extent.start // row.itemsize * row.packing
        if 0 in node.shape:
            offset = max(0, min(offset, extent.nbytes // row.itemsize))
        typed = len(extent.dtypes) == 1 and extent.nbytes % row.itemsize == 0 and bool(row.storage)
        kind = getattr(torch, row.storage) if typed else self._untyped
        numel = extent.nbytes // row.itemsize if typed else extent.nbytes
        return StorageRef(kind, self._keys[storage.key], storage.device, numel), offset, typed

    def _live(self, tensor: torch.Tensor) -> Any:
        tensor = tensor.contiguous()
        key, nbytes = str(len(self.used)), tensor.numel() * tensor.itemsize
        first = int(tensor.storage_offset()) * tensor.itemsize
        self.used[key] = StorageBlob(tensor.untyped_storage(), first, nbytes)
        row = DTYPES[str(tensor.dtype).removeprefix("torch.")]
        kind, numel = (getattr(torch, row.storage), tensor.numel()) if row.storage else (self._untyped, nbytes)
        rest: Any = (StorageRef(kind, key, "cpu", numel), 0, tuple(tensor.shape), tensor.stride(), False, OrderedDict())
        if row.storage:
            return torch._utils._rebuild_tensor_v2, rest
        return torch._utils._rebuild_tensor_v3, (*rest, tensor.dtype)


def _dtype(name: str) -> Any:
    return getattr(torch, name)


def _parameter(node: TensorNode | CompositeTensor) -> Any:
    data = replace(node, parameter=False, requires_grad=False)
    return torch._utils._rebuild_parameter, (data, node.requires_grad, OrderedDict())


def _composite(node: CompositeTensor) -> Any:
    parts = node.children
    if node.layout == "nested":
        return torch._utils._rebuild_nested_tensor, tuple(parts[name] for name in _NESTED)
    whole = (*parts.values(), torch.Size(node.shape))
    if node.layout == "sparse_coo" and "is_coalesced" in node.detail:
        whole = (*whole, node.detail["is_coalesced"])
    return torch._utils._rebuild_sparse_tensor, (getattr(torch, node.layout), whole)
