"""Runs the code blocks of a page in order, in a folder of its own, and holds what they print against the page.

* ```` ```python ```` is executed; one namespace a page. With a title it is that file, written and not executed.
* A ```` ```text ```` block right behind one is what it printed, or the error that it raised.
* ```` ```console ```` holds commands behind `$ ` and what they print, both streams, 80 columns wide.
* `value  # 1000` behind an expression is held against the value.

`...` stands for anything, seconds are any seconds, runs of blanks are one. `cuda`, `cuda:0` and `cuda:1` are the
simulated accelerator, in what is run and in what comes out; other tags are of devices that no test machine has.

`python -m tests.docs.running PAGE...` writes what was printed into the pages where it differs.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from unmoor import cli
from unmoor.errors import UnmoorError

from .blocks import Block, blocks_of

__all__ = ["ROOT", "Fault", "agree", "run_page"]

ROOT = Path(__file__).parents[2]
_RAISED = re.compile(r"^(unmoor\.)?[A-Z]\w*: ")
_NOTHING = object()
_SHELL = re.compile(r"[|<>;&$*`]")


@dataclass
class Fault:
    """A block that does not do what the page says."""

    place: str
    message: str
    wanted: str = ""
    got: str = ""

    def __str__(self) -> str:
        both = f"\n--- the page says\n{self.wanted}\n--- what came\n{self.got}" if self.wanted or self.got else ""
        return f"{self.place}: {self.message}{both}"


@dataclass
class _Run:
    """A page on its way. `changes` are first line, number of lines, and what should stand there."""

    page: Path
    folder: Path
    names: dict[str, Any]
    faults: list[Fault] = field(default_factory=list)
    changes: list[tuple[Block, list[str]]] = field(default_factory=list)

    def place(self, block: Block) -> str:
        return f"{self.page.relative_to(ROOT)}:{block.first}"

    def python(self, block: Block, result: Block | None) -> None:
        """Execute a block, and hold its output against `result`."""
        out, raised = _Written(), None
        with contextlib.redirect_stdout(out):
            try:
                for statement in ast.parse("\n" * (block.first - 1) + simulated(block.code), str(self.page)).body:
                    self.statement(statement, block)
            except Exception as error:  # noqa: BLE001 (any error is a fault of the page, or what it shows)
                raised = error
        if raised is not None and (result is None or not _RAISED.match(result.code)):
            trace = "".join(traceback.format_exception(raised))
            self.faults.append(Fault(self.place(block), f"raised\n{trace}"))
            return
        printed = out.text + ("" if raised is None else _told(raised))
        if result is not None:
            self.compare(result, result.code, printed)
        elif printed.strip() and not block.hidden:
            self.faults.append(Fault(self.place(block), "printed what the page does not show", "", printed))

    def statement(self, statement: ast.stmt, block: Block) -> None:
        """Execute one statement; the value of an expression is held against the literal in its comment."""
        comment = block.lines[(statement.end_lineno or 0) - block.first].partition("  # ")[2]
        wanted = _literal(comment)
        if not isinstance(statement, ast.Expr) or wanted is _NOTHING:
            exec(compile(ast.Module([statement], []), str(self.page), "exec", dont_inherit=True), self.names)
            return
        got = eval(compile(ast.Expression(statement.value), str(self.page), "eval", dont_inherit=True), self.names)
        if real(repr(got)) != repr(wanted):
            self.faults.append(Fault(f"{self.page.name}:{statement.lineno}", "", repr(wanted), repr(got)))

    def console(self, block: Block) -> None:
        """Run the commands of a block one after the other."""
        lines: list[str] = []
        differs = False
        for command, wanted in _commands(block):
            got = self.command(simulated(command)).rstrip("\n")
            lines.append(f"$ {command}")
            if not block.hidden and not agree(wanted, got):
                differs = True
                lines += real(got).split("\n") if got else []
                self.faults.append(Fault(f"{self.place(block)}: $ {command}", "", wanted, real(got)))
            else:
                lines += wanted.split("\n") if wanted else []
        if differs and not any("Traceback (most recent call last)" in line for line in lines):
            self.changes.append((block, lines))

    def command(self, text: str) -> str:
        """What a command prints on both streams. `unmoor` runs in this process, anything else in a shell."""
        words = shlex.split(text)
        if words[0] == "unmoor" and not _SHELL.search(text):
            out = _Written()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                code = cli.main(words[1:])
            self.names["exit_code"] = code
            return out.text
        if text == "echo $?":
            return str(self.names.get("exit_code"))
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {**os.environ, "PATH": path}
        done = subprocess.run(text, shell=True, env=environment, capture_output=True, text=True, check=False)
        self.names["exit_code"] = done.returncode
        return done.stdout + done.stderr

    def compare(self, block: Block, wanted: str, got: str) -> None:
        """Hold the text of a block against what was printed."""
        if not agree(wanted, got):
            self.faults.append(Fault(self.place(block), "", wanted, real(got)))
            self.changes.append((block, real(got).rstrip("\n").split("\n")))


def _literal(comment: str) -> Any:
    try:
        return ast.literal_eval(comment.strip()) if comment.strip() else _NOTHING
    except (ValueError, SyntaxError):
        return _NOTHING


class _Written(io.StringIO):
    """Takes what is printed, as a terminal that shows UTF-8 would."""

    encoding = "utf-8"  # type: ignore[assignment]

    @property
    def text(self) -> str:
        return self.getvalue()


def _told(error: BaseException) -> str:
    """An error as the last line of a traceback has it."""
    head = "unmoor." if isinstance(error, UnmoorError) else ""
    text = error.args[0] if isinstance(error, KeyError) and len(str(error)) > 60 else error
    return f"{head}{type(error).__name__}: {text}"


def _commands(block: Block) -> Iterator[tuple[str, str]]:
    command, output = "", list[str]()
    for line in block.lines:
        if line.startswith("$ "):
            if command:
                yield command, "\n".join(output)
            command, output = line[2:], []
        else:
            output.append(line)
    if command:
        yield command, "\n".join(output)


def simulated(text: str) -> str:
    """What is run where a page says cuda."""
    text = re.sub(r"torch\.cuda\b", "torch.sim", text)
    return re.sub(r"\bcuda(:[01])?(?![:\w])", lambda found: f"sim{found[1] or ''}", text)


def real(text: str) -> str:
    """What the page says where the simulated accelerator was met."""
    text = text.replace("wrapper_sim_", "wrapper_CUDA_").replace("torch.sim", "torch.cuda").replace("SIM", "CUDA")
    return re.sub(r"\bsim(:\d)?\b", lambda found: f"cuda{found[1] or ''}", text)


def agree(wanted: str, got: str) -> bool:
    r"""Whether a page's output is what came out.

    >>> agree("a ... c in 0.1 s", "a b  c in 2.5 s"), agree("a", "b"), agree("a\n...\nd", "a\nb\nc\nd")
    (True, False, True)
    """
    pattern = re.escape(_normal(wanted)).replace(re.escape("..."), ".*?")
    return re.fullmatch(pattern, _normal(real(got)), re.DOTALL) is not None


def _normal(text: str) -> str:
    text = re.sub(r"\x1b\[[\d;]*m", "", text)
    text = re.sub(r"\b\d+(\.\d+)? ?m?s\b", "# s", text)
    lines = [
        re.sub(r"(?<=\S)[ \t]+", " ", line.rstrip().replace("\t", "    ")) for line in text.strip("\n").split("\n")
    ]
    return "\n".join(lines)


def run_page(page: Path, folder: Path) -> _Run:
    """Run all blocks of a page in `folder`."""
    main = ModuleType("__main__")
    run = _Run(page, folder, main.__dict__)
    blocks = list(blocks_of(page.read_text()))
    with _inside(folder, main):
        for number, block in enumerate(blocks):
            following = blocks[number + 1] if number + 1 < len(blocks) else None
            if block.tag == "python" and block.title:
                Path(block.title).parent.mkdir(parents=True, exist_ok=True)
                Path(block.title).write_text(simulated(block.code) + "\n")
            elif block.tag == "python":
                shows = following is not None and following.follows and following.tag == "text" and not block.hidden
                run.python(block, following if shows else None)
            elif block.tag == "console":
                run.console(block)
    return run


@contextlib.contextmanager
def _inside(folder: Path, main: ModuleType) -> Iterator[None]:
    """The page as the main module, its folder as the current one; what it changed of the process is put back."""
    import random

    import numpy as np
    import torch

    before, path, modules = os.getcwd(), list(sys.path), set(sys.modules)
    streams = random.getstate(), np.random.get_state()
    columns, real_main = os.environ.get("COLUMNS"), sys.modules["__main__"]
    sys.modules["__main__"] = main
    os.environ["COLUMNS"] = "80"
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        sys.modules["__main__"] = real_main
        os.chdir(before)
        sys.path[:] = path
        random.setstate(streams[0])
        np.random.set_state(streams[1])
        os.environ.pop("COLUMNS") if columns is None else os.environ.update(COLUMNS=columns)
        for name in set(sys.modules) - modules:
            if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


def _rewrite(page: Path, changes: list[tuple[Block, list[str]]]) -> None:
    lines = page.read_text().split("\n")
    for block, printed in reversed(changes):
        dotted = [line for line in block.lines if "..." in line.strip(".")]
        new = [next((old for old in dotted if agree(old, line)), line) for line in printed]
        lines[block.first - 1 : block.first - 1 + len(block.lines)] = [f"{block.indent}{x}".rstrip() for x in new]
    page.write_text("\n".join(lines))


if __name__ == "__main__":
    from tests.accelerator import install

    install()
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as temporary:
            ended = run_page(Path(name).resolve(), Path(temporary))
        print(*ended.faults, sep="\n\n")
        _rewrite(ended.page, ended.changes)
