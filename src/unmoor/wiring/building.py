"""A user's function by its name: `train:build` is the function build of the module train, as it would be imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from unmoor.errors import UsageError

__all__ = ["build_name", "function_of"]


def function_of(build: str | Callable[..., Any]) -> Callable[..., Any]:
    """The function that `build` names, or `build` itself where it is one.

    The module is looked up as from the current directory, as `python -m` does. Raises UsageError, naming what was
    found instead, where there is no such module or function; errors inside the module pass through.
    """
    if not isinstance(build, str):
        if not callable(build):
            raise UsageError(f"{build!r} is no function that builds a run", remedy='Pass it, or "module:function".')
        return build
    module, colon, function = build.partition(":")
    if not (colon and module and function):
        raise UsageError(f"{build!r} does not name a function", remedy='Write "module:function", such as train:build.')
    found: Any = _imported(module, build)
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


def build_name(build: str | Callable[..., Any]) -> str:
    """How a build function is called in commands and reports: `module:function`."""
    if isinstance(build, str):
        return build
    return f"{getattr(build, '__module__', '?')}:{getattr(build, '__qualname__', type(build).__name__)}"
