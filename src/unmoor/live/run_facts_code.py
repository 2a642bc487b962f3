"""What the code of a forward method says without being run: the names it reads, and whether it moves tensors.

Reads byte code only. What cannot be read (a scripted module, a C function) is told as such.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple

from torch import nn

__all__ = ["Reading", "argument_names", "read_forward", "reads_name", "tensors_of_function"]

_MOVES: Final = frozenset({"to", "cuda", "cpu", "xpu", "npu", "hpu", "type_as", "to_empty"})
_HELPERS: Final = frozenset({"to_device", "send_to_device", "move_to_device", "move_data_to_device", "device_put"})
_DTYPES: Final = frozenset(
    "dtype float32 float16 bfloat16 float64 int64 int32 bool float half double long torch".split()
)


class Reading(NamedTuple):
    """What a forward does: names it reads, names of its arguments that it moves ("*" for all), whether it moves at all.

    `opaque` tells that its code could not be read.
    """

    names: frozenset[str]
    moved: frozenset[str]
    moves: bool
    opaque: bool


def read_forward(module: nn.Module) -> Reading:
    """The forward of a module, and the methods of its class that it calls."""
    cls: Any = type(module)
    own = module.__dict__.get("forward")
    return _read(cls, own) if own is None else _read.__wrapped__(cls, own)


@functools.lru_cache(maxsize=1024)
def _read(cls: type, own: Any) -> Reading:
    forward = own or getattr(cls, "forward", None)
    code = getattr(_function(forward), "__code__", None)
    if code is None:
        return Reading(frozenset(), frozenset(), False, True)
    codes = list(_reached(cls, code, set()))
    names = frozenset(name for one in codes for name in one.co_names)
    moved = frozenset(_moved_arguments(code)) | ({"*"} if names & _HELPERS else frozenset())
    return Reading(names, moved, bool(moved) or any(_moves(one) for one in codes), False)


def _function(value: Any) -> Any:
    while True:
        if hasattr(value, "__wrapped__"):
            value = value.__wrapped__
        elif isinstance(value, functools.partial):
            value = value.func
        else:
            return getattr(value, "__func__", value)


def _reached(cls: type, code: CodeType, seen: set[CodeType]) -> Iterator[CodeType]:
    """A piece of code, what is defined within it, and the methods of the class whose names it reads."""
    if code in seen:
        return
    seen.add(code)
    yield code
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    for name in code.co_names:
        method = getattr(cls, name, None)
        method = None if method is getattr(nn.Module, name, None) else _function(method)
        method = method.fget if isinstance(method, property) else method
        inner += [method.__code__] if isinstance(method, FunctionType) else []
    for one in inner:
        yield from _reached(cls, one, seen)


def _moves(code: CodeType) -> bool:
    return bool(list(_calls(code))) or bool(_HELPERS & set(code.co_names))


def _moved_arguments(code: CodeType) -> Iterator[str]:
    """The arguments of which a piece of code asks `.to(...)` and the like."""
    arguments = set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    for owner in _calls(code):
        if owner in arguments:
            yield owner


def _calls(code: CodeType) -> Iterator[str]:
    """The local name that each call of `.to(...)` and the like is made on, "" for others; changes of dtype left out."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in _SILENT]
    for i, step in enumerate(steps):
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD") and step.argval in _MOVES and i > 0:
            rest = []
            for later in steps[i + 1 :]:
                if later.opname.startswith(("CALL", "STORE", "RETURN")):
                    break
                rest.append(later.argval)
            if step.argval != "to" or not _of_dtype(rest):
                yield _local(steps[i - 1])


_SILENT: Final = frozenset({"CACHE", "PRECALL", "PUSH_NULL", "EXTENDED_ARG", "NOP", "RESUME"})


def _of_dtype(arguments: list[Any]) -> bool:
    words = {word for value in arguments for word in (value if isinstance(value, tuple) else (value,))}
    return bool(words & _DTYPES) and "device" not in words


def _local(step: dis.Instruction) -> str:
    if not step.opname.startswith("LOAD_FAST"):
        return ""
    value = step.argval
    return str(value[-1] if isinstance(value, tuple) else value)


def argument_names(module: nn.Module) -> tuple[tuple[str, ...], bool]:
    """What forward takes by position in order, then by keyword alone; and whether it takes any keyword."""
    code = getattr(
        _function(module.__dict__.get("forward") or getattr(type(module), "forward", None)), "__code__", None
    )
    if code is None:
        return (), True
    number = code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames[:number]
    first = 1 if names[:1] == ("self",) else 0
    return tuple(names[first:]), bool(code.co_flags & 0x08)


def reads_name(reading: Reading, name: str) -> str:
    """How forward uses an attribute: "used" as it is, "moved" where it moves tensors too, "idle" where it does not."""
    if reading.opaque or (name in reading.names and reading.moves):
        return "moved"
    return "used" if name in reading.names else "idle"


def tensors_of_function(function: Any) -> Iterator[tuple[str, Any]]:
    """What a function that is no module carries with it, by name: closure, defaults, partial's arguments, globals."""
    seen: set[int] = set()
    todo = [function]
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, functools.partial):
            yield from ((str(i), value) for i, value in enumerate(one.args))
            yield from one.keywords.items()
            todo.append(one.func)
        elif (owner := getattr(one, "__self__", None)) is not None and hasattr(one, "__func__"):
            todo.append(one.__func__)
            yield from getattr(owner, "__dict__", {}).items() if not isinstance(owner, nn.Module) else ()
        elif isinstance(one, FunctionType):
            yield from _carried(one)
        elif callable(one) and not isinstance(one, type):
            yield from getattr(one, "__dict__", {}).items()


def _carried(function: FunctionType) -> Iterator[tuple[str, Any]]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue  # a cell that nothing was put into yet
    defaults = function.__defaults__ or ()
    yield from zip(code.co_varnames[code.co_argcount - len(defaults) :], defaults, strict=False)
    yield from (function.__kwdefaults__ or {}).items()
    yield from ((name, function.__globals__[name]) for name in code.co_names if name in function.__globals__)
