"""What an expression of a frame stood for, looked up without running anything of the user's.

Names, attributes that are stored (never properties), items of built-in containers. What only a call could tell is not
known: the operands of the call stand for it.
"""

from __future__ import annotations

import ast
import builtins
import inspect
from collections import UserDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from itertools import islice
from types import BuiltinMethodType, FunctionType, MemberDescriptorType, MethodDescriptorType, ModuleType
from typing import Any, Final, TypeGuard

import torch
from torch import nn

from .context_frames import Source, Step

__all__ = ["MISSING", "Operand", "is_factory", "items_of", "look", "operands"]

MISSING: Final = object()
"""What `look` gives for an expression that only running it could tell."""

_SAME: Final = frozenset({"T", "mT", "H", "mH", "data", "real", "imag"})
"""Attributes of a tensor that lie where it lies."""

_FACTORIES: Final = frozenset(
    "arange as_tensor asarray bartlett_window blackman_window empty empty_strided eye from_numpy full hamming_window "
    "hann_window kaiser_window linspace logspace ones rand randint randn randperm range scalar_tensor tensor "
    "tril_indices triu_indices zeros Tensor FloatTensor LongTensor BoolTensor IntTensor".split()
)
_MOST: Final = 2000
"""Leaves of a container that are looked at."""


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """A tensor, or a module, that an operation was given.

    `text` is its expression. `direct` tells that the operation took it as it is: not what a call made of it. `device`
    is set for a tensor that a call within the expression gave, which is gone: then `value` is None, `node` is the call.
    """

    text: str
    value: Any
    direct: bool
    node: ast.AST
    device: str = ""


def look(node: ast.AST, step: Step, *, exact: bool = False) -> Any:
    """What the expression stood for, MISSING where that is not known without running it.

    A transposed tensor is looked up as the tensor, which lies where it lies, unless `exact` is asked for.
    """
    if isinstance(node, ast.Name):
        return _name(node.id, step)
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Attribute):
        value = look(node.value, step, exact=exact)
        return MISSING if exact and isinstance(value, torch.Tensor) else _attribute(value, node.attr)
    if isinstance(node, ast.Subscript):
        return _item(look(node.value, step, exact=exact), look(node.slice, step, exact=exact))
    if isinstance(node, ast.List | ast.Tuple):
        values = [look(item, step, exact=exact) for item in node.elts]
        return MISSING if any(value is MISSING for value in values) else values
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        return -node.operand.value if isinstance(node.operand.value, int | float) else MISSING
    return MISSING


def _name(name: str, step: Step) -> Any:
    for scope in (step.frame.f_locals, step.frame.f_globals, vars(builtins)):
        if name in scope:
            return scope[name]
    return MISSING


def _attribute(value: Any, name: str) -> Any:
    if value is MISSING:
        return MISSING
    if isinstance(value, torch.Tensor):
        if name in _SAME:
            return value
        return value.grad if name == "grad" and value.is_leaf else MISSING
    if isinstance(value, ModuleType):
        return getattr(value, name, MISSING)
    tables = (value._parameters, value._buffers, value._modules) if isinstance(value, nn.Module) else ()
    for table in tables:
        if name in table:
            return table[name]
    return _stored_attribute(value, name)


def _stored_attribute(value: Any, name: str) -> Any:
    """An attribute that an object keeps, or a method; never what a property would have to compute."""
    own = getattr(value, "__dict__", {})
    if isinstance(own, Mapping) and name in own:
        return own[name]
    found = inspect.getattr_static(value, name, MISSING)
    if isinstance(found, MemberDescriptorType | FunctionType | MethodDescriptorType | classmethod | staticmethod):
        return getattr(value, name, MISSING)
    if isinstance(value, tuple) and name in getattr(value, "_fields", ()):
        return getattr(value, name)
    return MISSING if isinstance(found, property) or hasattr(found, "__get__") else found


def _item(value: Any, key: Any) -> Any:
    if value is MISSING or key is MISSING:
        return MISSING
    if isinstance(value, nn.Sequential | nn.ModuleList) and isinstance(key, int):
        value = list(value._modules.values())
    elif isinstance(value, nn.ModuleDict):
        value = value._modules
    if not isinstance(value, dict | list | tuple | UserDict):
        return MISSING
    try:
        return value[key]
    except (LookupError, TypeError):
        return MISSING


def operands(source: Source) -> list[Operand]:
    """The tensors and modules that the running expression of a frame was given, in the order of the source."""
    node = source.running()
    if node is None:
        return []
    found: dict[tuple[str, int], Operand] = {}
    for operand in _collect(node, source.step, direct=True, outermost=True):
        found.setdefault((operand.text, id(operand.value)), operand)
    return [*found.values()]


def _collect(node: ast.AST, step: Step, *, direct: bool, outermost: bool = False) -> Iterator[Operand]:
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield from _collect(node.value, step, direct=direct)
        return
    value = look(node, step) if isinstance(node, ast.expr) else MISSING
    if value is not MISSING:
        for path, leaf in items_of(value, most=_MOST):
            if not isinstance(leaf, torch.optim.Optimizer):
                yield Operand(ast.unparse(node) + path, leaf, direct, node)
    elif isinstance(node, ast.Call):
        yield from _of_call(node, step, direct=direct, outermost=outermost)
    else:
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.expr | ast.keyword | ast.comprehension):
                yield from _collect(part, step, direct=direct and not isinstance(part, ast.comprehension))


def _of_call(node: ast.Call, step: Step, *, direct: bool, outermost: bool) -> Iterator[Operand]:
    """What a call was given; what it gives instead, where that is known of it and it is a part of something larger."""
    made = _made_on(node, step)
    if made and not outermost:
        yield Operand(ast.unparse(node), None, direct, node, made)
        return
    receiver = [node.func.value] if isinstance(node.func, ast.Attribute) else []
    callee = look(node.func, step)
    if isinstance(callee, nn.Module):
        yield Operand(ast.unparse(node.func), callee, direct, node.func)
    passes = outermost or _keeps_device(node, receiver, step)
    for part in (*receiver, *node.args, *(keyword.value for keyword in node.keywords)):
        yield from _collect(part, step, direct=direct and passes)


def _keeps_device(node: ast.Call, receiver: list[ast.expr], step: Step) -> bool:
    """Whether a method's result lies where the tensor lies whose method it is."""
    if not (receiver and isinstance(node.func, ast.Attribute)):
        return False
    name = node.func.attr
    return isinstance(look(receiver[0], step), torch.Tensor) and name not in ("to", "cuda", "cpu", "item", "tolist")


def _made_on(node: ast.Call, step: Step) -> str:
    """The device of what a call gives: torch's default where it makes a tensor, a module's where that is called."""
    if is_factory(node, step):
        return str(torch.get_default_device())
    if _calls_factory(node, step):
        return _told_device(node, step)
    callee = look(node.func, step)
    if not isinstance(callee, nn.Module):
        return ""
    devices = {str(parameter.device) for parameter in callee.parameters()}
    return devices.pop() if len(devices) == 1 else ""


def is_factory(node: ast.AST, step: Step) -> bool:
    """Whether the node calls one of torch's functions that make a tensor, without saying on which device."""
    named = isinstance(node, ast.Call) and any(keyword.arg in ("device", None) for keyword in node.keywords)
    return not named and _calls_factory(node, step)


def _told_device(node: ast.Call, step: Step) -> str:
    """The device that a call names, "" where that has no index, which torch alone knows, or is not known."""
    value = next((look(keyword.value, step) for keyword in node.keywords if keyword.arg == "device"), MISSING)
    text = str(value) if isinstance(value, str | torch.device) else ""
    return text if text == "cpu" or ":" in text else ""


def _calls_factory(node: ast.AST, step: Step) -> TypeGuard[ast.Call]:
    """Whether the node calls one of torch's functions that make a tensor."""
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in ("as_tensor", "asarray") and any(isinstance(look(arg, step), torch.Tensor) for arg in node.args):
        return False
    made = look(node.func, step)
    return name in _FACTORIES and made is not MISSING and made is getattr(torch, name, None)


def items_of(value: Any, *, most: int, depth: int = 5) -> Iterator[tuple[str, Any]]:
    """The tensors, modules and optimizers in a value, each after the Python that reaches it: ("['labels']", tensor).

    Containers are walked, and objects that keep their values as attributes; modules are not.
    """
    todo: list[tuple[str, Any, int]] = [("", value, depth)]
    seen: set[int] = set()
    while todo and most:
        path, current, left = todo.pop(0)
        most -= 1
        if isinstance(current, torch.Tensor | nn.Module | torch.optim.Optimizer):
            yield path, current
        elif left and id(current) not in seen:
            seen.add(id(current))
            todo += [(path + step, item, left - 1) for step, item in islice(_children(current), most)]


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | UserDict):
        yield from ((f"[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from ((f".{name}", getattr(value, name)) for name in value._fields)
    elif isinstance(value, list | tuple):
        yield from ((f"[{i}]", item) for i, item in enumerate(value))
    elif is_dataclass(value) and not isinstance(value, type):
        yield from ((f".{one.name}", value.__dict__[one.name]) for one in fields(value) if _stored(value, one.name))
    elif _is_plain_object(value):
        yield from ((f".{name}", item) for name, item in [*vars(value).items()] if isinstance(name, str))


def _stored(value: Any, name: str) -> bool:
    return name in getattr(value, "__dict__", {})


def _is_plain_object(value: Any) -> bool:
    """An instance of a class of the user's, which may keep tensors as attributes."""
    if isinstance(value, type | ModuleType | FunctionType | BuiltinMethodType | torch.optim.Optimizer):
        return False
    home = type(value).__module__.partition(".")[0]
    return isinstance(getattr(value, "__dict__", None), dict) and home not in ("torch", "numpy", "builtins")
