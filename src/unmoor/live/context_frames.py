"""The frames of a traceback, and the expression in each that was running: what an error leaves behind to be read.

A frame is the user's, PyTorch's (modules, functionals, optimizers: code with names of its own for what it is given), or
plumbing, which is passed over: dispatch, autograd, wrappers, the standard library, this package.
"""

from __future__ import annotations

import ast
import dis
import linecache
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from threading import Lock
from types import FrameType, TracebackType
from typing import Any, Final

from unmoor.values.mismatch import SourceLine

__all__ = ["Source", "Step", "parsed", "source_line", "steps_of", "user_steps"]

_RAISES: Final = frozenset(dis.opmap[name] for name in ("RAISE_VARARGS", "RERAISE") if name in dis.opmap)
_PLUMBING: Final = frozenset({"autograd", "overrides", "utils", "fx", "compiler", "library", "cuda", "accelerator"})
_DATA: Final = ["utils", "data"]
_PARSING: Final = Lock()
_TRIES: Final = 3
_OURS: Final = frozenset({"unmoor.live.built", "unmoor.live.proving_loop"})
"""Files of this package that take a user's step: what stands there is read as a user's code is."""


@dataclass(frozen=True, slots=True)
class Step:
    """One frame of a traceback, as it was when the error passed; `lasti` is -1 where only its line is known."""

    frame: FrameType
    line: int
    lasti: int

    @property
    def module(self) -> str:
        """The name of the module whose code it is."""
        return str(self.frame.f_globals.get("__name__", ""))

    @property
    def is_torch(self) -> bool:
        """Whether the code is PyTorch's."""
        return self.module.partition(".")[0] == "torch"

    @property
    def is_user(self) -> bool:
        """Whether the code is the user's, or of a library that is not PyTorch."""
        return not self.is_torch and not self.is_plumbing

    @property
    def is_plumbing(self) -> bool:
        """Whether the frame only hands on what it was given."""
        first, *rest = self.module.split(".")
        if first == "torch":
            return not rest or (rest[:2] != _DATA and (rest[0] in _PLUMBING or _private(rest)))
        if first == "unmoor":
            return self.module not in _OURS
        return first in sys.stdlib_module_names or self.frame.f_code.co_filename.startswith("<frozen")

    @property
    def raises(self) -> bool:
        """Whether the frame was at a statement that raises, not in a call."""
        return self.lasti >= 0 and self.frame.f_code.co_code[self.lasti] in _RAISES

    def value(self, name: str) -> Any:
        """A local variable, None where there is none."""
        return self.frame.f_locals.get(name)


def _private(parts: list[str]) -> bool:
    return any(part.startswith("_") for part in parts)


def steps_of(traceback: TracebackType | None) -> list[Step]:
    """The frames of a traceback, the outermost first."""
    steps = []
    while traceback is not None:
        steps.append(Step(traceback.tb_frame, traceback.tb_lineno, traceback.tb_lasti))
        traceback = traceback.tb_next
    return steps


def user_steps(steps: list[Step]) -> list[Step]:
    """Those frames that are the user's own."""
    return [step for step in steps if step.is_user]


def source_line(step: Step) -> SourceLine:
    """The line that a frame was at; the whole of a statement is on its first line where it runs over several."""
    name = step.frame.f_code.co_filename
    if step.module in _OURS:
        return SourceLine("unmoor's usual step", 0, _text(step))
    return SourceLine(_shown(name), step.line, _text(step))


def _text(step: Step) -> str:
    return linecache.getline(step.frame.f_code.co_filename, step.line, step.frame.f_globals).strip()


def _shown(name: str) -> str:
    """A file as a person at this prompt would name it: relative to where they are, if it lies beneath."""
    here = os.getcwd() + os.sep
    return name[len(here) :] if name.startswith(here) else name


def parsed(text: str) -> ast.Module | None:
    """The syntax tree of a text, None where it has none. Threads that fail at once take turns.

    Python 3.11 counts the depth of all trees that are being built in one number (python/cpython issue 106905).
    """
    for _ in range(_TRIES):
        with _PARSING:
            try:
                return ast.parse(text)
            except (SyntaxError, ValueError):
                return None
            except SystemError:  # a thread that is not ours was building a tree as well
                continue
    return None


@dataclass(slots=True)
class Source:
    """The syntax tree of the file that a frame runs, and the way from its position back to the node."""

    step: Step
    tree: ast.Module | None = None
    text: list[str] = field(default_factory=list)
    _parents: dict[ast.AST, ast.AST] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.text = linecache.getlines(self.step.frame.f_code.co_filename, self.step.frame.f_globals)
        self.tree = parsed("".join(self.text))

    def running(self) -> ast.AST | None:
        """The node that was being evaluated: an expression, or a statement that stores. None without a source."""
        if self.tree is None:
            return None
        exact = self._at_position()
        return exact if exact is not None else self.statement()

    def statement(self) -> ast.stmt | None:
        """The smallest statement at the frame's line."""
        return min(self._statements(), key=_extent, default=None)

    def function(self) -> ast.AST | None:
        """The function that the frame runs, or the module."""
        code = self.step.frame.f_code
        found = [
            node
            for node in ast.walk(self.tree or ast.Module([], []))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name == code.co_name
            and _first_line(node) <= code.co_firstlineno <= node.lineno
        ]
        return found[-1] if found else self.tree

    def _statements(self) -> Iterator[ast.stmt]:
        for node in ast.walk(self.tree) if self.tree is not None else ():
            if isinstance(node, ast.stmt) and node.lineno <= self.step.line <= (node.end_lineno or node.lineno):
                yield node

    def _at_position(self) -> ast.AST | None:
        """By the position that the byte code keeps of its source (Python 3.11 on)."""
        positions = getattr(self.step.frame.f_code, "co_positions", None)
        if positions is None or self.step.lasti < 0:
            return None
        spot = next(islice(positions(), self.step.lasti // 2, None), None)
        if spot is None or None in spot:
            return None
        found = [node for node in ast.walk(self.tree or ast.Module([], [])) if _position(node) == spot]
        if not found:
            return None
        node = next((n for n in found if isinstance(n, ast.expr)), found[0])
        stored = isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)
        return (self.statement() or node) if stored else node


def _position(node: ast.AST) -> tuple[int, int, int, int] | None:
    if not isinstance(node, ast.expr | ast.stmt):
        return None
    return (node.lineno, node.end_lineno or 0, node.col_offset, node.end_col_offset or 0)


def _extent(node: ast.stmt) -> tuple[int, int]:
    """Smaller for a statement that lies inside of another."""
    return ((node.end_lineno or node.lineno) - node.lineno, -node.col_offset)


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
