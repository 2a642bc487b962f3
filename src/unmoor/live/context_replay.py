"""Would the operation have worked had all its tensors been on one device? It is asked of torch, on the meta device.

Only what is torch's own is called, with stand-ins that have no data, so nothing of the run can change. If the operation
fails there too, its error has another cause than the devices.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType
from typing import Any, Final

import torch
from torch import nn

from .context_frames import Source, Step
from .context_look import MISSING, look

__all__ = ["works_on_one_device"]

_BINARY: Final[dict[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.MatMult: operator.matmul,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
_IN_PLACE: Final[dict[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.iadd,
    ast.Sub: operator.isub,
    ast.Mult: operator.imul,
    ast.Div: operator.itruediv,
    ast.MatMult: operator.imatmul,
    ast.BitAnd: operator.iand,
    ast.BitOr: operator.ior,
}
_COMPARE: Final[dict[type, Callable[[Any, Any], Any]]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_UNARY: Final[dict[type, Callable[[Any], Any]]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}
_LEAVE: Final = frozenset(
    "item tolist numpy backward register_hook requires_grad_ data_ptr untyped_storage storage apply_ map_ "
    "share_memory_ pin_memory record_stream set_ __dlpack__ retain_grad".split()
)
"""Methods of a tensor that do more than compute, or need data."""

_MOVES: Final = frozenset({"to", "cuda", "cpu", "xpu", "npu", "hpu"})
_HOMES: Final = ("torch.functional", "torch.nn.functional", "torch.special", "torch.fft", "torch.linalg")


class _UnknownError(Exception):
    """The expression holds something that may not be run."""


def works_on_one_device(source: Source) -> bool | None:
    """Whether the frame's running expression works where all tensors are on one device; None where that is unknown."""
    node = source.running()
    if node is None:
        return None
    with torch.no_grad(), torch.device("meta"):
        try:
            _Replay(source.step).run(node)
        except (_UnknownError, NotImplementedError, ImportError):
            return None
        except Exception:  # noqa: BLE001 (whatever torch or Python say: it does not work)
            return False
    return True


class _Replay:
    """Evaluates an expression of a frame over stand-ins."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._twins: dict[int, torch.Tensor] = {}

    def run(self, node: ast.AST) -> Any:
        """The value of an expression, or what a statement stores."""
        if isinstance(node, ast.Return | ast.Expr | ast.Starred | ast.keyword) and node.value is not None:
            return self.run(node.value)
        if isinstance(node, ast.Assign):
            return self._assign(node)
        if isinstance(node, ast.AugAssign):
            return self._apply(_IN_PLACE, node.op, self.run(node.target), self.run(node.value))
        value = look(node, self._step, exact=True)
        return self._twin(value) if value is not MISSING else self._compute(node)

    def _compute(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.BinOp):
            return self._apply(_BINARY, node.op, self.run(node.left), self.run(node.right))
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._apply(_COMPARE, node.ops[0], self.run(node.left), self.run(node.comparators[0]))
        if isinstance(node, ast.UnaryOp):
            return self._apply(_UNARY, node.op, self.run(node.operand))
        if isinstance(node, ast.Subscript):
            return self.run(node.value)[self.run(node.slice)]
        if isinstance(node, ast.Slice):
            return slice(*(None if part is None else self.run(part) for part in (node.lower, node.upper, node.step)))
        if isinstance(node, ast.Tuple | ast.List):
            parts = [self.run(part) for part in node.elts]
            return tuple(parts) if isinstance(node, ast.Tuple) else parts
        if isinstance(node, ast.Attribute):
            return self._attribute(self.run(node.value), node.attr)
        raise _UnknownError

    def _apply(self, table: dict[type, Callable[..., Any]], op: ast.AST, *values: Any) -> Any:
        function = table.get(type(op))
        if function is None:
            raise _UnknownError
        return function(*values)

    def _assign(self, node: ast.Assign) -> Any:
        """`x[i] = y` is replayed; an assignment to an attribute does what its object wants."""
        target = node.targets[0]
        if len(node.targets) != 1 or not isinstance(target, ast.Subscript):
            raise _UnknownError
        self.run(target.value)[self.run(target.slice)] = self.run(node.value)
        return None

    def _attribute(self, value: Any, name: str) -> Any:
        if isinstance(value, torch.Tensor) and name in ("T", "mT", "H", "mH", "data", "real", "imag", "shape", "dtype"):
            return getattr(value, name)
        raise _UnknownError

    def _call(self, node: ast.Call) -> Any:
        if any(isinstance(arg, ast.Starred) for arg in node.args):
            raise _UnknownError
        function = self._function(node.func)
        arguments = [self.run(arg) for arg in node.args]
        keywords = {one.arg: self.run(one.value) for one in node.keywords if one.arg is not None}
        if len(keywords) != len(node.keywords):
            raise _UnknownError
        if "device" in keywords:
            keywords["device"] = "meta"
        return function(*arguments, **keywords)

    def _function(self, node: ast.expr) -> Callable[..., Any]:
        known = look(node, self._step, exact=True)
        if known is MISSING and isinstance(node, ast.Attribute):
            return self._method(self.run(node.value), node.attr)
        if _is_torchs(known):
            function: Callable[..., Any] = known
            return function
        raise _UnknownError

    def _method(self, value: Any, name: str) -> Callable[..., Any]:
        if not isinstance(value, torch.Tensor) or name in _LEAVE:
            raise _UnknownError
        if name in _MOVES:
            return lambda *_, **__: value
        method: Callable[..., Any] = getattr(value, name)
        return method

    def _twin(self, value: Any) -> Any:
        """A value with a stand-in for each tensor."""
        if isinstance(value, torch.Tensor):
            return self._twins.setdefault(id(value), _stand_in(value))
        if isinstance(value, nn.Module):
            raise _UnknownError
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            return type(value)(self._twin(item) for item in value)
        if isinstance(value, dict):
            return {key: self._twin(item) for key, item in value.items()}
        if isinstance(value, torch.device):
            return torch.device("meta")
        if isinstance(value, torch.Generator):
            return None
        return value


def _stand_in(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise _UnknownError
    return torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device="meta")


def _is_torchs(function: Any) -> bool:
    """Whether calling it with stand-ins can touch nothing but them."""
    if isinstance(function, BuiltinFunctionType):
        return str(getattr(function, "__module__", None) or type(function.__self__).__module__).startswith("torch")
    return isinstance(function, FunctionType) and function.__module__ in _HOMES
