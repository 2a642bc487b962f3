"""A user's function by its name: `train:build` is the function build of the module train, as it would be imported.

`train.py:build` is that of a file, whose `if __name__ == "__main__"` part does not run.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import TYPE_CHECKING, Any

from unmoor.errors import UnmoorError, UsageError
from unmoor.live.built import build_run

if TYPE_CHECKING:
    from unmoor.live.built import Built

__all__ = ["build_name", "called", "function_of", "lines_to", "name_elsewhere"]


def function_of(build: str | Callable[..., Any]) -> Callable[..., Any]:
    """The function that `build` names, or `build` itself where it is one.

    The module is looked up as from the current directory, as `python -m` does. Raises UsageError, naming what was
    found instead, where there is no such module or function, and for a module that fails.
    """
    if not isinstance(build, str):
        if not callable(build):
            raise UsageError(f"{build!r} is no function that builds a run", remedy='Pass it, or "module:function".')
        return build
    module, colon, function = build.rpartition(":")
    if not (colon and module and function):
        raise UsageError(f"{build!r} does not name a function", remedy='Write "module:function", such as train:build.')
    try:
        found: Any = _of_file(module, build) if module.endswith(".py") else _imported(module, build)
    except UnmoorError:
        raise
    except SystemExit as error:
        raise _ended(module, error) from error
    except Exception as error:
        raise _failed(f"{module} cannot be imported", error) from error
    for name in function.split("."):
        if not hasattr(found, name):
            raise UsageError(f"{_shown(module)} has no function {name!r}", remedy=_instead(found, name))
        found = getattr(found, name)
    if not callable(found):
        raise UsageError(f"{build} is {type(found).__name__}, no function that builds a run")
    result: Callable[..., Any] = found
    return result


def _shown(module: str) -> str:
    """A module in words; a script is imported here, so what stands under its `__main__` part is not made."""
    return f"script {module}, imported," if module.endswith(".py") else f"module {module}"


def _instead(found: Any, name: str) -> str:
    """What a module or class has that could have been meant: what is defined there, the most alike first."""
    home = getattr(found, "__name__", "") if isinstance(found, ModuleType) else getattr(found, "__module__", "")
    own = [key for key, value in vars(found).items() if key[0] != "_" and _is_of(value, home)]
    near = [*get_close_matches(name, own, 3), *sorted(own)]
    return f"It has {', '.join(dict.fromkeys(near[:8]))}." if near else "It has none at all."


def _is_of(value: Any, home: str) -> bool:
    return callable(value) and getattr(value, "__module__", home) == home


def called(function: Callable[..., Any], *, device: Any, name: str) -> Built:
    """The run that a function builds. Raises UsageError for one that fails, with its own error as the cause."""
    try:
        return build_run(function, device=device, name=name)
    except UnmoorError:
        raise
    except Exception as error:
        raise _failed(f"{name} could not build the run", error) from error


def _failed(what: str, error: BaseException) -> UsageError:
    text = f"{what}: {type(error).__name__}: {str(error).strip() or 'no message'}"
    return UsageError(text, details=lines_to(error))


def _ended(module: str, error: SystemExit) -> UsageError:
    """A module that ends the program as it is imported, most often by a parser of the command line."""
    return UsageError(
        f"{module} cannot be imported: it ended the program ({_code_of(error)})",
        details=lines_to(error),
        remedy='It finds no arguments of a command line: parse them under `if __name__ == "__main__":`.',
    )


def _code_of(error: SystemExit) -> str:
    return error.code if isinstance(error.code, str) else f"exit code {error.code or 0}"


def lines_to(error: BaseException) -> tuple[str, ...]:
    """The lines of code that led to an error of the user's, without those of this package and of the import system."""
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [
        (os.path.basename(f.filename), f.lineno, f.line or f.name)
        for f in frames
        if not os.path.abspath(f.filename).startswith(ours) and "importlib" not in f.filename
    ]
    if isinstance(error, SyntaxError) and error.filename:
        theirs.append((os.path.basename(error.filename), error.lineno, (error.text or "").strip()))
    return tuple(f"{file}:{line}  {text}" for file, line, text in theirs[:6])


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
    root = _package_root(path)
    if root != os.path.dirname(path):
        if root not in sys.path:
            sys.path.insert(0, root)
        return import_module(os.path.splitext(os.path.relpath(path, root))[0].replace(os.sep, "."))
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


def _package_root(path: str) -> str:
    """The folder that a file is imported from: its own, or the one that holds the package it is in."""
    folder = os.path.dirname(path)
    while os.path.isfile(os.path.join(folder, "__init__.py")) and os.path.basename(folder).isidentifier():
        folder = os.path.dirname(folder)
    return folder


def build_name(build: str | Callable[..., Any]) -> str:
    """How a build function is called in commands and reports: `module:function`."""
    if isinstance(build, str):
        return build
    module = getattr(build, "__module__", "?")
    if module == "__main__":
        module = os.path.basename(getattr(sys.modules["__main__"], "__file__", None) or module)
    return f"{module}:{getattr(build, '__qualname__', type(build).__name__)}"


def _of_main() -> str | None:
    """The name of the main script: of its module where `python -m` ran it, else its file; None where it has none."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name and spec.name != "__main__":
        return str(spec.name)
    file = getattr(main, "__file__", None)
    return os.path.abspath(file) if file and file.endswith(".py") and os.path.exists(file) else None


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
        module = _of_main()
    if not module or not name or "<" in name:
        raise UsageError(
            f"{what} {name or type(build).__name__} cannot be imported by a fresh process",
            remedy='Define it by `def` at the top of a module or script, and pass it or its name, "module:function".',
        )
    return f"{module}:{name}"
