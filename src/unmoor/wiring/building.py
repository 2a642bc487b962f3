"""A user's function by its name: `train:build` is the function build of the module train, as it would be imported.

`train.py:build` is that of a file, whose `if __name__ == "__main__"` part does not run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

from unmoor.errors import UsageError

__all__ = ["build_name", "function_of", "name_elsewhere"]


def function_of(build: str | Callable[..., Any]) -> Callable[..., Any]:
    """The function that `build` names, or `build` itself where it is one.

    The module is looked up as from the current directory, as `python -m` does. Raises UsageError, naming what was
    found instead, where there is no such module or function; errors inside the module pass through.
    """
    if not isinstance(build, str):
        if not callable(build):
            raise UsageError(f"{build!r} is no function that builds a run", remedy='Pass it, or "module:function".')
        return build
    module, colon, function = build.rpartition(":")
    if not (colon and module and function):
        raise UsageError(f"{build!r} does not name a function", remedy='Write "module:function", such as train:build.')
    found: Any = _of_file(module, build) if module.endswith(".py") else _imported(module, build)
    for name in function.split("."):
        if not hasattr(found, name):
            near = ", ".join(sorted(key for key, value in vars(found).items() if callable(value) and key[0] != "_")[:8])
            raise UsageError(
                f"module {module} has no function {name!r}", remedy=f"It has {near}." if near else "It has none at all."
            )
        found = getattr(found, name)
    if not callable(found):
        raise UsageError(f"{build} is {type(found).__name__}, no function that builds a run")
    result: Callable[..., Any] = found
    return result


def _imported(module: str, build: str) -> Any:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise
        raise UsageError(
            f"there is no module {error.name!r} to build the run with",
            remedy=f"{build} is imported from the current directory, {here}, or from what is installed.",
        ) from error


def _of_file(file: str, build: str) -> Any:
    """The module of a file, under its own name, which is imported once; its folder is where it imports from."""
    path = os.path.abspath(file)
    name = os.path.splitext(os.path.basename(path))[0]
    known = sys.modules.get(name)
    if known is not None and os.path.abspath(getattr(known, "__file__", None) or "") == path:
        return known
    if not os.path.isfile(path):
        raise UsageError(f"there is no file {file} to build the run with", remedy=f"{build} was asked for.")
    spec = spec_from_file_location(name if known is None else f"__{name}__", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{file} cannot be imported", remedy="Name a Python file or a module.")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    if os.path.dirname(path) not in sys.path:
        sys.path.insert(0, os.path.dirname(path))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module


def build_name(build: str | Callable[..., Any]) -> str:
    """How a build function is called in commands and reports: `module:function`."""
    if isinstance(build, str):
        return build
    module = getattr(build, "__module__", "?")
    if module == "__main__":
        module = os.path.basename(getattr(sys.modules["__main__"], "__file__", None) or module)
    return f"{module}:{getattr(build, '__qualname__', type(build).__name__)}"


def name_elsewhere(build: str | Callable[..., Any], what: str = "the build function") -> str:
    """The name under which another process finds a function; that of the main script by its file.

    Raises UsageError for one that no other process can import: a lambda, a function inside of another, one that was
    typed into an interpreter.
    """
    if isinstance(build, str):
        function_of(build)
        return build
    function_of(build)
    module, name = getattr(build, "__module__", None), getattr(build, "__qualname__", "")
    if module == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None)
        module = os.path.abspath(file) if file and file.endswith(".py") and os.path.exists(file) else None
    if not module or not name or "<" in name:
        raise UsageError(
            f"{what} {name or type(build).__name__} cannot be imported by a fresh process",
            remedy='Define it by `def` at the top of a module or script, and pass it or its name, "module:function".',
        )
    return f"{module}:{name}"
