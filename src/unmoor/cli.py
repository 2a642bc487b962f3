"""The command line: arguments, printing, exit codes. The only file that prints.

Nothing here decides what is said: text comes from `report`, facts from the verbs in `api`. Colour repeats what the
words say, and only on a terminal.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from .errors import FileError, FitError, MachineError, UnmoorError, UsageError
from .version import __version__

if TYPE_CHECKING:
    from .report.layout import Line
    from .values.finding import Finding

__all__ = ["EXIT_CODES", "exit_code", "main"]

FINE: Final = 0
FINDINGS: Final = 1
USAGE: Final = 2
FILE: Final = 3
FIT: Final = 4
MACHINE: Final = 5
DANGER: Final = 6
INTERNAL: Final = 70
INTERRUPTED: Final = 130

EXIT_CODES: Final[dict[int, str]] = {
    FINE: "fine",
    FINDINGS: "read, and something in it will fail: see the lines marked error",
    USAGE: "the command was called wrong; no file was read",
    FILE: "the file is broken, hostile, or no checkpoint",
    FIT: "file and live run do not fit together; nothing was changed",
    MACHINE: "the machine failed: disk, memory, permissions, or no PyTorch",
    DANGER: "the file would run code that no checkpoint needs; nothing of it was run",
    INTERNAL: "a fault in unmoor itself",
    INTERRUPTED: "interrupted",
}
"""Every exit code and what it means; `unmoor --help` prints this table."""

_FAULTS: Final = ((UsageError, USAGE), (FileError, FILE), (FitError, FIT), (MachineError, MACHINE))


def exit_code(error: BaseException) -> int:
    """The exit code for an error that ends a command: whose fault it is."""
    if isinstance(error, click.ClickException):
        return USAGE
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return INTERRUPTED
    for kind, code in _FAULTS:
        if isinstance(error, kind):
            return code
    return MACHINE if isinstance(error, OSError | MemoryError) or _lacks_torch(error) else INTERNAL


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. `arguments` are those of the process where none are given."""
    sys.stdout, sys.stderr = sys.stdout or StringIO(), sys.stderr or StringIO()  # a process may have been given neither
    try:
        code = commands.main(arguments, prog_name="unmoor", standalone_mode=False)
    except (click.ClickException, click.Abort, KeyboardInterrupt, Exception) as error:  # noqa: BLE001 (every error ends in a documented code)
        _tell(error)
        return exit_code(error)
    return code if isinstance(code, int) else FINE


def _as_written(title: str, lines: Sequence[str]) -> str:
    """Lines that click prints as they are: a backspace on a line of its own says so."""
    return "\n".join(["\b", title, *(f"  {line}" for line in lines)])


_EPILOG: Final = "\n\n".join(
    (
        _as_written("Example:", ["unmoor inspect run/step_1000.pt"]),
        _as_written("Exit codes:", [f"{code:<3}  {text}" for code, text in EXIT_CODES.items()]),
    )
)

_INSPECT_EXAMPLES: Final = (
    "unmoor inspect run/step_1000.pt",
    "unmoor inspect theirs.ckpt --all | grep running_mean",
    "unmoor inspect theirs.ckpt --json | jq .devices",
)


@click.group(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="unmoor %(version)s")
def commands() -> None:
    """Carry a PyTorch training run from one device to another, exactly."""


@commands.command(
    short_help="Say what a checkpoint holds, where it was, and if it is safe.",
    epilog=_as_written("Examples:", _INSPECT_EXAMPLES),
)
@click.argument("path")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON document for programs, every tensor in it.")
@click.option("--all", "all_tensors", is_flag=True, help="List every tensor by its whole name.")
def inspect(path: str, *, as_json: bool, all_tensors: bool) -> int:
    """Say what a checkpoint holds, on which devices it was, and whether it is safe.

    Runs nothing from the file, reads no tensor data and needs no PyTorch.
    """
    from . import api

    catalog = api.describe(path)
    if as_json:
        from .report.documents import catalog_document, document_text

        _print(document_text(catalog_document(catalog)))
    else:
        from .report.inspect import inspect_lines

        width, ellipsis = _page(sys.stdout)
        _print_lines(inspect_lines(catalog, width=width, all_tensors=all_tensors, ellipsis=ellipsis))
    return _verdict(catalog.findings)


@commands.command(
    short_help="Resume a published run here, and prove it exact.", epilog=_as_written("Example:", ["unmoor demo"])
)
def demo() -> int:
    """Resume a published run (CHGNet, saved on cuda:7) on this machine and prove it exact. Needs torch and chgnet."""
    from .demo import run

    if not sys.stdout.isatty():
        return run(_print)
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    with console.status("training here, as the run would have gone on there"):
        return run(console.print)


def _verdict(findings: Sequence[Finding]) -> int:
    severities = {finding.severity for finding in findings}
    return DANGER if "danger" in severities else FINDINGS if "error" in severities else FINE


_TONES: Final[dict[str, dict[str, Any]]] = {
    "headline": {"bold": True},
    "danger": {"fg": "red", "bold": True},
    "error": {"fg": "red"},
    "warning": {"fg": "yellow"},
    "hint": {"dim": True},
}


def _print_lines(lines: Sequence[Line]) -> None:
    colour = _wants_colour(sys.stdout)
    _print("\n".join(click.style(x.text, **_TONES[x.tone]) if colour and x.tone else x.text for x in lines))


def _print(text: str) -> None:
    """Write to stdout. A reader that has closed the pipe (`| head`) has what it wanted: that is no error."""
    try:
        click.echo(_encodable(text, sys.stdout), color=_wants_colour(sys.stdout))
        sys.stdout.flush()
    except OSError as error:
        if error.errno != errno.EPIPE and not (os.name == "nt" and error.errno == errno.EINVAL):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tell(error: BaseException) -> None:
    """An error on stderr: what failed and what to do, no traceback unless the fault is ours."""
    if isinstance(error, click.ClickException):
        error.show()
    elif isinstance(error, click.Abort | KeyboardInterrupt):
        click.echo("unmoor: interrupted", err=True)
    elif isinstance(error, UnmoorError):
        _tell_text(f"unmoor.{type(error).__name__}:", str(error))
    elif _lacks_torch(error):
        _tell_text("unmoor:", 'this command needs PyTorch: pip install "unmoor[torch]"')
    elif exit_code(error) == MACHINE:
        _tell_text(f"unmoor: {type(error).__name__}:", str(error) or "out of memory")
    else:
        from traceback import format_exception

        click.echo("".join(format_exception(error)), err=True, nl=False)
        _tell_text("unmoor:", f"this is a fault in unmoor {__version__}; please report the lines above")


def _tell_text(head: str, text: str) -> None:
    from .report.layout import plain

    colour = _wants_colour(sys.stderr)
    head = click.style(head, fg="red", bold=True) if colour else head
    lines = "\n".join(plain(line) for line in text.split("\n"))
    click.echo(_encodable(f"{head} {lines}", sys.stderr), err=True, color=colour)


def _lacks_torch(error: BaseException) -> bool:
    return isinstance(error, ModuleNotFoundError) and error.name == "torch"


def _wants_colour(stream: TextIO) -> bool:
    """Whether to paint: on a terminal, unless NO_COLOR (https://no-color.org) or a terminal without colours says no."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _page(stream: TextIO) -> tuple[int, str]:
    """The width to write for, and the mark for what was left out that the stream can show."""
    return max(_columns(stream), 40), "…" if _encodable("…", stream) == "…" else "..."


def _columns(stream: TextIO) -> int:
    told = os.environ.get("COLUMNS", "")
    if told.isdigit() and int(told):
        return int(told)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _encodable(text: str, stream: TextIO) -> str:
    """`text` with what the stream's encoding lacks as escapes."""
    encoding = stream.encoding or "ascii"
    return text.encode(encoding, "backslashreplace").decode(encoding)
