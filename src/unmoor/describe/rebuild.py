"""Builders for what torch pickles: tensors as windows into storages, and torch's small values.

Each rule mirrors one function of torch/_utils.py, torch/_tensor.py or torch/jit/_pickle.py (2.13) and builds a node in
its place. Arguments that such a function would refuse make the file corrupt. Must not know torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from unmoor.values.dtypes import BY_STORAGE, DTYPES
from unmoor.values.nodes import CompositeTensor, NumpyArray, Opaque, Storage, TensorNode, TorchValue

from .arrays import NUMPY_BUILDS, NUMPY_RULES
from .local_shards import SHARDED_TENSOR, local_shards
from .machine import Machine, Rule
from .plain import PLAIN_BUILDS, PLAIN_RULES
from .sizes import LIMIT, shape_of, whole_numbers, windows

__all__ = ["BUILDS", "CONSTANTS", "HINTS", "RULES", "STORAGES", "View", "storage_parts"]

_Args = tuple[Any, ...]
_NO_BITS: Final[frozenset[str]] = frozenset()
_BITS: Final = ("conj", "neg")
_PARAMETERS: Final = frozenset({"torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer", "torch.nn.Parameter"})
_SCHEMES: Final = ("per_tensor_affine", "per_tensor_symmetric", "per_channel_affine", "per_channel_symmetric",
                   "per_channel_affine_float_qparams")  # fmt: skip
_UNTYPED: Final = ("UntypedStorage", "_UntypedStorage")
_FORMATS: Final = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
_SHELLS: Final = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8))
_SPARSE: Final = {
    "sparse_coo": ("indices", "values"),
    "sparse_csr": ("crow_indices", "col_indices", "values"),
    "sparse_bsr": ("crow_indices", "col_indices", "values"),
    "sparse_csc": ("ccol_indices", "row_indices", "values"),
    "sparse_bsc": ("ccol_indices", "row_indices", "values"),
}


@dataclass(frozen=True, slots=True)
class View:
    """A storage that is a window into another, as torch wrote them before 0.4: from `offset` elements on."""

    storage: Storage
    offset: int


_STORAGE_DTYPES: Final = {
    f"torch.{place}{name}": BY_STORAGE[name].name if name in BY_STORAGE else "uint8"
    for place in ("", "cuda.", "storage.")
    for name in (*BY_STORAGE, *_UNTYPED)
}

STORAGES: Final = frozenset(_STORAGE_DTYPES) | {"torch.storage.TypedStorage"}
"""The names of torch's storage classes."""

HINTS: Final = frozenset({"torch.nested._internal.nested_tensor.NestedTensor", "torch._dynamo.decorators._DimRange"})
"""Classes beside the parts of a jagged tensor that add nothing to them: what it is, what torch.compile made of it."""


def storage_dtype(kind: Any) -> str | None:
    """The element type that a pickled storage class stands for; None for what is no storage class."""
    if type(kind) is not Opaque or kind.how != "global":
        return None
    return _STORAGE_DTYPES.get(kind.name)


def storage_parts(m: Machine, pid: Any, fields: int) -> tuple[str, str, str, int]:
    """dtype, key, device tag and number of elements of a persistent id ("storage", class, key, tag, number, ...)."""
    if type(pid) is not tuple or len(pid) != fields or pid[0] not in ("storage", b"storage"):
        raise m.corrupt("holds a persistent id that is no storage")
    _, kind, key, tag, numel, *_ = pid
    dtype = storage_dtype(kind)
    if dtype is None or type(numel) is not int or not 0 <= numel < LIMIT:
        raise m.corrupt("holds a persistent id whose parts are none")
    return dtype, key if type(key) is str else _word(m, key), tag if type(tag) is str else _word(m, tag), numel


def _word(m: Machine, value: Any) -> str:
    """Text that Python 2 wrote as bytes."""
    if type(value) is not bytes:
        raise m.corrupt("holds a persistent id whose parts are none")
    return value.decode("ascii", "replace")


def _dtype(m: Machine, value: Any) -> str:
    if type(value) is not TorchValue or value.kind != "dtype" or value.value not in DTYPES:
        raise m.corrupt("gives a tensor a dtype that is none")
    return str(value.value)


def _tag(m: Machine, value: Any) -> str:
    if type(value) is TorchValue and value.kind == "device":
        value = value.value
    if type(value) is not str:
        raise m.corrupt("gives a tensor a device that is none")
    return value


def _strided(m: Machine, args: _Args, dtype: str | None, grad: Any, metadata: Any = None) -> TensorNode | None:
    """A window into a storage; None where the storage is an object that only torch's own code could build."""
    storage, offset, size, stride = args[:4]
    if type(storage) is Opaque:
        return None
    if type(storage) is View:
        offset = offset + storage.offset if type(offset) is int else None
        storage = storage.storage
    if type(storage) is not Storage or type(offset) is not int or not -LIMIT <= offset < LIMIT:
        raise m.corrupt("rebuilds a tensor from what is no storage and offset")
    shape, strides = windows(m, size, stride)
    bits = frozenset(bit for bit in _BITS if metadata.get(bit)) if type(metadata) is dict else _NO_BITS
    m.left -= 4
    return TensorNode(
        storage, offset, shape, strides, dtype or storage.dtype, storage.device, grad is True, False, bits
    )


def _need(m: Machine, args: _Args, what: str, *counts: int) -> None:
    if len(args) not in counts:
        raise m.corrupt(f"calls {what} with {len(args)} arguments")


def _tensor(m: Machine, args: _Args) -> Any:
    _need(m, args, "_rebuild_tensor", 4)
    return _strided(m, args, None, None)


def _tensor_v2(m: Machine, args: _Args) -> Any:
    if len(args) not in (6, 7):
        _need(m, args, "_rebuild_tensor_v2", 6, 7)
    return _strided(m, args, None, args[4], args[6] if len(args) > 6 else None)


def _tensor_v3(m: Machine, args: _Args) -> Any:
    _need(m, args, "_rebuild_tensor_v3", 7, 8)
    return _strided(m, args, _dtype(m, args[6]), args[4], args[7] if len(args) > 7 else None)


def _parameter(m: Machine, args: _Args) -> Any:
    data = args[0] if args else None
    if type(data) is TensorNode:
        m.charge(4)
        return TensorNode(data.storage, data.offset, data.shape, data.stride, data.dtype, data.device,
                          args[1] is True if len(args) > 1 else True, True, data.bits, data.quantizer)  # fmt: skip
    if type(data) is CompositeTensor:
        m.charge(4)
        return replace(data, parameter=True, requires_grad=len(args) < 2 or args[1] is True)
    return None


def _variable(m: Machine, args: _Args) -> Any:
    """A Variable of torch before 0.4: its tensor; a BUILD tells requires_grad."""
    made = _parameter(m, args)
    return made if made is None else replace(made, parameter=False, requires_grad=False)


def _old_tensor(dtype: str) -> Rule:
    def rule(m: Machine, args: _Args) -> Any:
        m.charge(4)
        return None if args else TensorNode(None, 0, (0,), (1,), dtype, "cpu")

    return rule


def _tensor_state(m: Machine, node: Any, state: Any) -> None:
    """Old states of a tensor: (storage, offset, size, stride), or (requires_grad, volatile, hooks) of a Variable.

    The node is not published yet, and the memo already knows it: it is completed in place.
    """
    m.phrases = None  # they take new tensors for like the old ones, as these were made
    if type(state) is tuple and len(state) == 4 and type(state[0]) in (Storage, View):
        new = _strided(m, state, None, None)
        for name in ("storage", "offset", "shape", "stride", "dtype", "device"):
            object.__setattr__(node, name, getattr(new, name))
    elif type(state) is tuple and state and type(state[0]) is bool:
        object.__setattr__(node, "requires_grad", state[0])
    else:
        m.note("left-out", "attributes of a tensor are left out")


def _sparse(m: Machine, args: _Args) -> Any:
    _need(m, args, "_rebuild_sparse_tensor", 2)
    layout, data = args
    names = _SPARSE.get(layout.value) if type(layout) is TorchValue and layout.kind == "layout" else None
    if names is None or type(data) is not tuple or len(data) <= len(names):
        raise m.corrupt("rebuilds a sparse tensor from parts that are none")
    parts = dict(zip(names, data, strict=False))
    if any(type(part) is not TensorNode for part in parts.values()):
        raise m.corrupt("rebuilds a sparse tensor from parts that are no tensors")
    coalesced = data[3] if layout.value == "sparse_coo" and len(data) > 3 else None
    detail = {} if coalesced is None else {"is_coalesced": coalesced is True}
    m.charge(8)
    return CompositeTensor(layout.value, shape_of(m, data[len(names)]), parts["values"].dtype, parts, detail)


def _nested(m: Machine, args: _Args) -> Any:
    _need(m, args, "_rebuild_nested_tensor", 4)
    parts = {name: part for name, part in zip(("values", "sizes", "strides", "offsets"), args, strict=True)
             if type(part) is TensorNode}  # fmt: skip
    if "values" not in parts or "sizes" not in parts:
        raise m.corrupt("rebuilds a nested tensor from parts that are no tensors")
    m.charge(8)
    count = parts["sizes"].shape[0] if parts["sizes"].shape else 0
    return CompositeTensor("nested", (count,), parts["values"].dtype, parts)


def _jagged(m: Machine, args: _Args) -> Any:
    """A nested tensor of layout jagged: its values, the offsets at which its rows begin, and which size is ragged."""
    given = args[0] if len(args) == 1 and type(args[0]) is dict else {}
    parts = {name: part for name in ("values", "offsets", "lengths") if type(part := given.get(name)) is TensorNode}
    ragged = given.get("_ragged_idx")
    if "values" not in parts or "offsets" not in parts or type(ragged) is not int:
        return None
    m.charge(8)
    rows, sizes = parts["offsets"].numel - 1, list(parts["values"].shape)
    sizes[ragged - 1 : ragged] = [-1]
    shape = (rows, *sizes)
    grad = given.get("requires_grad") is True
    return CompositeTensor("jagged", shape, parts["values"].dtype, parts, {"ragged_idx": ragged}, grad)


def _quantized(m: Machine, args: _Args) -> Any:
    _need(m, args, "_rebuild_qtensor", 7)
    numbers = args[4]
    scheme = numbers[0] if type(numbers) is tuple and numbers else None
    if type(scheme) is not TorchValue or scheme.kind != "qscheme" or len(numbers) not in (3, 4):
        raise m.corrupt("rebuilds a quantized tensor without a scheme")
    node = _strided(m, args, None, args[5])
    return None if node is None else replace(node, quantizer=(scheme.value, *numbers[1:]))


def _meta(m: Machine, args: _Args) -> Any:
    _need(m, args, "_rebuild_meta_tensor_no_storage", 4)
    m.charge(4)
    shape, strides = windows(m, args[1], args[2])
    return TensorNode(None, 0, shape, strides, _dtype(m, args[0]), "meta", args[3] is True)


def _from_cpu(m: Machine, args: _Args) -> Any:
    _need(m, args, "_rebuild_device_tensor_from_cpu_tensor", 4)
    data = args[0]
    if type(data) is not TensorNode or data.dtype != _dtype(m, args[1]):
        return None
    m.charge(4)
    return replace(data, device=_tag(m, args[2]), requires_grad=args[3] is True)


def _from_numpy(m: Machine, args: _Args) -> Any:
    """A tensor of a device without storages, kept as a numpy array inside the pickle: no bytes of it to point at."""
    _need(m, args, "_rebuild_device_tensor_from_numpy", 4)
    array = args[0]
    if type(array) is not NumpyArray:
        return None
    m.charge(8)
    detail = {"array": array, "device": _tag(m, args[2])}
    return CompositeTensor("numpy", array.shape, _dtype(m, args[1]), {}, detail, args[3] is True)


def _wrapper(m: Machine, args: _Args) -> Any:
    _need(m, args, "_rebuild_wrapper_subclass", 8)
    cls, dtype, size, _, _, layout, device, grad = args
    name = layout.value if type(layout) is TorchValue else "strided"
    detail = {"class": _class_name(cls), "device": _tag(m, device), "wraps": name}
    m.charge(8)
    return CompositeTensor("subclass", shape_of(m, size), _dtype(m, dtype), {}, detail, grad is True)


def _class_name(value: Any) -> str:
    return value.name if type(value) is Opaque else type(value).__name__


def _from_type(m: Machine, args: _Args) -> Any:
    """A tensor of a class of its own: its tensor, the class noted, parts that a wrapper keeps as attributes."""
    _need(m, args, "_rebuild_from_type_v2", 4)
    function, cls, inner, state = args
    made, name = m.call(function, inner), _class_name(cls)
    if type(made) not in (TensorNode, CompositeTensor):
        return None
    if type(made) is CompositeTensor and made.layout == "jagged":
        return made
    if name == SHARDED_TENSOR and type(made) is CompositeTensor:
        shards = local_shards(state)
        m.charge(8 * len(shards))
        children = {str(number): part for number, part in enumerate(shards.values())}
        return replace(made, layout="sharded", children=children, detail={**made.detail, "starts": tuple(shards)})
    if name in _PARAMETERS:
        made = replace(made, parameter=True)
    elif name != "torch.Tensor":
        m.note("tensor-subclass", f"a tensor of class {name} is read as a plain tensor")
    attributes = state[0] if type(state) is tuple and state else state
    parts = attributes if type(attributes) is dict else {}
    if type(made) is CompositeTensor and made.layout == "subclass":
        children = {str(key): part for key, part in parts.items() if type(part) is TensorNode}
        m.charge(len(parts))
        return replace(made, children=children)
    if any("dynamo" not in str(key) and key != "_specialize_on" for key in parts):
        m.note("left-out", "attributes of a tensor are left out")
    return made


def _size(m: Machine, args: _Args) -> Any:
    m.charge(1)
    return (
        TorchValue("size", whole_numbers(m, args[0], "size"))
        if len(args) == 1
        else TorchValue("size", ())
        if not args
        else None
    )


def _device(m: Machine, args: _Args) -> Any:
    known = 1 <= len(args) <= 2 and type(args[0]) is str and all(type(part) is int for part in args[1:])
    m.charge(1)
    return TorchValue("device", ":".join(map(str, args))) if known else None


def _layout(m: Machine, args: _Args) -> Any:
    m.charge(1)
    known = len(args) == 1 and type(args[0]) is str and args[0].startswith("torch.")
    return TorchValue("layout", args[0].removeprefix("torch.")) if known else None


def _first(m: Machine, args: _Args) -> Any:  # noqa: ARG001 - a rule has this form
    return args[0] if args and type(args[0]) in (list, dict, tuple) else None


_FUNCTIONS: Final[dict[str, Rule]] = {
    "_rebuild_tensor": _tensor, "_rebuild_tensor_v2": _tensor_v2, "_rebuild_tensor_v3": _tensor_v3,
    "_rebuild_parameter": _parameter, "_rebuild_parameter_with_state": _parameter,
    "_rebuild_sparse_tensor": _sparse, "_rebuild_nested_tensor": _nested, "_rebuild_qtensor": _quantized,
    "_rebuild_meta_tensor_no_storage": _meta, "_rebuild_wrapper_subclass": _wrapper,
    "_rebuild_device_tensor_from_cpu_tensor": _from_cpu, "_rebuild_device_tensor_from_numpy": _from_numpy,
    "_rebuild_xla_tensor": _from_numpy,
}  # fmt: skip

_OLD_TENSORS: Final = {
    f"torch.{place}{row.storage.removesuffix('Storage')}Tensor": _old_tensor(row.name)
    for row in DTYPES.values() if row.storage for place in ("", "cuda.")
}  # fmt: skip

RULES: Final[dict[str, Rule]] = {
    **PLAIN_RULES,
    **NUMPY_RULES,
    **_OLD_TENSORS,
    **{f"torch._utils.{name}": rule for name, rule in _FUNCTIONS.items()},
    **{f"{module}._rebuild_from_type{version}": _from_type for module in ("torch._tensor", "torch.tensor")
       for version in ("", "_v2")},
    **dict.fromkeys(_PARAMETERS, _parameter),
    "torch.autograd.variable.Variable": _variable,
    "torch.nested._internal.nested_tensor._rebuild_njt": _jagged,
    "torch.Size": _size,
    "torch.device": _device,
    "torch.serialization._get_layout": _layout,
    **{f"torch.jit._pickle.build_{kind}list": _first for kind in ("int", "double", "bool", "tensor")},
    "torch.jit._pickle.restore_type_tag": _first,
}  # fmt: skip

CONSTANTS: Final[dict[str, Any]] = {
    **{f"torch.{name}": TorchValue("dtype", name) for name in (*DTYPES, *_SHELLS)},
    **{f"torch.{name}": TorchValue("qscheme", name) for name in _SCHEMES},
    **{f"torch.{name}": TorchValue("memory_format", name) for name in _FORMATS},
}

BUILDS: Final[dict[type, Callable[[Machine, Any, Any], None]]] = {
    **PLAIN_BUILDS, **NUMPY_BUILDS, TensorNode: _tensor_state,
}  # fmt: skip
