"""Words on a stream: encodings, widths, colours, closed pipes. Nothing here decides what is said.

Colour repeats what the words say, and only on a terminal.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from unmoor.errors import UnmoorError
from unmoor.version import __version__

from .exits import MACHINE, exit_code, lacks_torch

if TYPE_CHECKING:
    from unmoor.report.layout import Line

__all__ = ["own_streams", "page", "say", "say_document", "say_lines", "tell", "wants_colour"]

_TONES: Final[dict[str, dict[str, Any]]] = {
    "headline": {"bold": True},
    "danger": {"fg": "red", "bold": True},
    "error": {"fg": "red"},
    "warning": {"fg": "yellow"},
    "hint": {"dim": True},
}


def say_lines(lines: Sequence[Line]) -> None:
    """Lines of a report on stdout, painted by their tones where the terminal shows colours."""
    colour = wants_colour(sys.stdout)
    say("\n".join(click.style(x.text, **_TONES[x.tone]) if colour and x.tone else x.text for x in lines))


def say_document(document: Mapping[str, Any]) -> None:
    """A JSON document on stdout: what `--json` prints."""
    from unmoor.report.documents import document_text

    say(document_text(document))


def say(text: str) -> None:
    """Write to stdout. A reader that has closed the pipe (`| head`) has what it wanted: that is no error."""
    try:
        click.echo(_encodable(text, sys.stdout), color=wants_colour(sys.stdout))
        sys.stdout.flush()
    except OSError as error:
        if error.errno != errno.EPIPE and not (os.name == "nt" and error.errno == errno.EINVAL):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def own_streams() -> Iterator[None]:
    """While a user's function runs: what it prints goes to stderr, and it finds no command line but its own, empty."""
    arguments = sys.argv
    sys.argv = arguments[:1]
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.argv = arguments


def tell(error: BaseException) -> None:
    """An error on stderr: what failed and what to do, no traceback unless the fault is ours."""
    if isinstance(error, click.ClickException):
        error.show()
    elif isinstance(error, click.Abort | KeyboardInterrupt):
        click.echo("unmoor: interrupted", err=True)
    elif isinstance(error, UnmoorError):
        _tell_text(f"unmoor.{type(error).__name__}:", str(error))
    elif lacks_torch(error):
        _tell_text("unmoor:", 'this command needs PyTorch: pip install "unmoor[torch]"')
    elif exit_code(error) == MACHINE:
        _tell_text(f"unmoor: {type(error).__name__}:", str(error) or "out of memory")
    else:
        from traceback import format_exception

        click.echo("".join(format_exception(error)), err=True, nl=False)
        _tell_text("unmoor:", f"this is a fault in unmoor {__version__}; please report the lines above")


def _tell_text(head: str, text: str) -> None:
    from unmoor.report.layout import plain

    lines = [plain(line) for line in f"{head} {text}".split("\n")]
    lines = [part for line in lines for part in _folded(line)] if sys.stderr.isatty() else lines
    colour = wants_colour(sys.stderr)
    words = "\n".join(lines)
    words = click.style(head, fg="red", bold=True) + words[len(head) :] if colour else words
    click.echo(_encodable(words, sys.stderr), err=True, color=colour)


def _folded(line: str) -> list[str]:
    """A line as several that fit the terminal, what follows the first indented below it."""
    from unmoor.report.layout import Page

    bare = line.lstrip(" ")
    indent = line[: len(line) - len(bare)]
    return Page(*page(sys.stderr)).wrap(bare, first=indent, rest=f"{indent}  ") if len(line) > 40 else [line]


def wants_colour(stream: TextIO) -> bool:
    """Whether to paint: on a terminal, unless NO_COLOR (https://no-color.org) or a terminal without colours says no."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def page(stream: TextIO) -> tuple[int, str]:
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
