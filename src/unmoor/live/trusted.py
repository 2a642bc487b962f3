"""The only place that may run code from a file, and only for the classes that the caller named.

A pickle is read by Python's own unpickler with a closed door: torch's tensors and plain containers, and what was
trusted by name. Everything else becomes an inert stand-in. Functions that no checkpoint needs stay shut even when
named.
"""

from __future__ import annotations

import copyreg
import functools
import io
import pickle
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, Final

import torch

from unmoor.errors import TrustError
from unmoor.values.dangers import is_dangerous
from unmoor.values.nodes import Opaque

__all__ = ["BUILT", "EVERYTHING", "Unpickler", "trusted_names"]

EVERYTHING: Final = "everything in this file"

_SAFE: Final = frozenset(
    """
    collections.OrderedDict collections.Counter collections.defaultdict builtins.set builtins.frozenset builtins.dict
    builtins.list builtins.tuple builtins.slice builtins.complex builtins.bytearray builtins.range builtins.int
    builtins.float builtins.str builtins.bytes builtins.bool __builtin__.set __builtin__.frozenset __builtin__.dict
    __builtin__.list __builtin__.slice __builtin__.complex __builtin__.bytearray __builtin__.xrange _codecs.encode
    torch._utils._rebuild_tensor torch._utils._rebuild_tensor_v2 torch._utils._rebuild_tensor_v3
    torch._utils._rebuild_parameter torch._utils._rebuild_qtensor torch._utils._rebuild_sparse_tensor
    torch._utils._rebuild_nested_tensor torch._utils._rebuild_meta_tensor_no_storage
    torch._utils._rebuild_device_tensor_from_numpy torch._utils._rebuild_device_tensor_from_cpu_tensor
    torch._utils._rebuild_parameter_with_state torch._tensor._rebuild_from_type_v2 torch.serialization._get_layout
    torch.Size torch.device torch.Tensor torch.nn.parameter.Parameter torch.nn.parameter.Buffer
    torch.storage.UntypedStorage torch.storage.TypedStorage numpy.dtype numpy.ndarray
    numpy.core.multiarray._reconstruct numpy._core.multiarray._reconstruct numpy.core.multiarray.scalar
    numpy._core.multiarray.scalar numpy.core.numeric._frombuffer numpy._core.numeric._frombuffer
    """.split()
)
"""What reading a tensor or a plain container takes; none of it runs anything that the file chooses."""

_SIZED: Final = ("Storage", "ndarray", "multiarray._reconstruct", "torch.Tensor", "OrderedDict")

BUILT: Final = frozenset(
    [f"builtins.{kind}" for kind in "set frozenset dict list tuple bytearray range int float str bytes".split()]
    + [name for name in _SAFE if name.endswith(_SIZED)]
    + ["collections.Counter", "collections.defaultdict"]
)
"""Of these, what takes as much memory as its arguments say: called as no pickler does, it could take all there is."""


def trusted_names(trust: Any, named: Collection[str]) -> dict[str, Any]:
    """`trust` as "module.name" -> the class given, or None where only the name was given.

    `named` are the globals that the file names; the literal "everything in this file" trusts those. Raises TrustError
    for names that no caller may trust, and for things that are neither classes nor names.
    """
    if isinstance(trust, str):
        if trust != EVERYTHING:
            raise TrustError(
                f"trust={trust!r} is neither a list of classes nor the words {EVERYTHING!r}",
                remedy=f"Pass trust=[SomeClass, 'module.Other'], or trust={EVERYTHING!r} for a file of your own.",
            )
        return dict.fromkeys(name for name in named if not is_dangerous(name))
    found = dict(_trusted_name(item) for item in trust)
    refused = [name for name in found if is_dangerous(name)]
    if refused:
        raise TrustError(
            f"trust= names {', '.join(refused)}, which can run anything a file asks for",
            remedy="No checkpoint needs it. Load without it: the tensors around it still load.",
        )
    return found


def _trusted_name(item: Any) -> tuple[str, Any]:
    if isinstance(item, str) and "." in item:
        return item, None
    module, name = getattr(item, "__module__", None), getattr(item, "__qualname__", None)
    if callable(item) and isinstance(module, str) and isinstance(name, str):
        return f"{module}.{name}", item
    raise TrustError(f"trust= holds {item!r}", remedy="Name classes: trust=[SomeClass, 'module.Other'].")


class _Standin(Opaque):
    """An Opaque that takes what an unpickler does to an object."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        self.items.append(item)

    def extend(self, items: Any) -> None:
        self.items.extend(items)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.entries.append((key, value))


def _inert(name: str) -> type:
    """A class that makes a stand-in in the place of any object of class or function `name`."""

    def build(_cls: type, *args: Any, **kwargs: Any) -> _Standin:
        return _Standin(name, args=args, kwargs=kwargs or None)

    return type(name.rpartition(".")[2], (), {"__new__": build, "__module__": name.rpartition(".")[0]})


class Unpickler(pickle.Unpickler):
    """Reads one pickle with the door closed to all but `trusted`. `storage` gives the storage of a persistent id."""

    def __init__(
        self, data: bytes, *, trusted: Mapping[str, Any], storage: Callable[[Any], Any], encoding: str
    ) -> None:
        super().__init__(io.BytesIO(data), encoding=encoding)
        self._trusted, self._storage = trusted, storage

    def persistent_load(self, pid: Any) -> Any:
        """The storage that a persistent id names."""
        return self._storage(pid)

    def find_class(self, module: str, name: str) -> Any:
        """The object of a name that is safe or trusted; an inert class for any other."""
        full = f"{module}.{name}"
        if full in ("copy_reg._reconstructor", "copyreg._reconstructor"):
            return _reconstruct
        if full in self._trusted and not is_dangerous(full):
            given = self._trusted[full]
            return given if given is not None else _resolve(module, name)
        if full in _SAFE or _is_torch_constant(module, name):
            return _resolve(module, name)
        return _inert(full)


def _is_torch_constant(module: str, name: str) -> bool:
    if module not in ("torch", "torch.storage", "torch.cuda") or "." in name:
        return False
    value = getattr(torch, name, None)
    return isinstance(value, torch.dtype | torch.layout | torch.memory_format) or name.endswith("Storage")


def _resolve(module: str, name: str) -> Any:
    home = {"__builtin__": "builtins"}.get(module, module)
    try:
        value: Any = import_module(home)
        for part in {"xrange": "range"}.get(name, name).split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError) as error:
        raise TrustError(
            f"{module}.{name} was trusted, and cannot be imported here: {error}",
            remedy="Install the package that defines it, or leave it out of trust= to get an inert value.",
        ) from error
    leads = _own_name(value)
    if isinstance(value, ModuleType) or is_dangerous(leads):
        raise TrustError(
            f"{module}.{name} leads to {leads}, which no checkpoint needs",
            remedy="Leave it out of trust= to get an inert value.",
        )
    return value


def _own_name(value: Any) -> str:
    """The name that an object gives itself, wherever it was found."""
    if isinstance(value, ModuleType):
        return f"the module {value.__name__}"
    value = value.func if isinstance(value, functools.partial) else value
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"


def _reconstruct(cls: Any, base: Any, state: Any) -> Any:
    """Python's copyreg._reconstructor, for classes that were let in; a stand-in for those that were not."""
    made = cls.__new__(cls)
    if isinstance(made, _Standin):
        return _Standin(made.name, args=(state,) if state is not None else ())
    return copyreg._reconstructor(cls, base, state)  # type: ignore[attr-defined]
