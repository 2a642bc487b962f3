"""What all commands have in common: the lazy table of them, arguments that complete, examples in their help."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeVar

import click

__all__ = ["LazyGroup", "as_written", "examples", "function_argument", "json_option", "path_argument"]

F = TypeVar("F", bound=Callable[..., Any])


class LazyGroup(click.Group):
    """A group whose commands are imported when they are run: `table` is name -> (module, one line of help).

    The command of a module is its attribute `command`.
    """

    def __init__(self, *args: Any, table: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names in the order of the table: of what one does at midnight, look first, change last."""
        del ctx
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command itself, imported."""
        del ctx
        if cmd_name not in self._table:
            return None
        command: click.Command = import_module(self._table[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without importing one."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self._table.items()])


def as_written(title: str, lines: Sequence[str]) -> str:
    """Lines that click prints as they are: a backspace on a line of its own says so."""
    return "\n".join(["\b", title, *(f"  {line}" for line in lines)])


def examples(*lines: str) -> str:
    """The epilog of a command's help."""
    return as_written("Example:" if len(lines) == 1 else "Examples:", lines)


def path_argument(name: str, **options: Any) -> Callable[[F], F]:
    """An argument that is a file or folder, which shells complete; whether it exists is for the reader to say."""
    return click.argument(name, type=_Path(), **options)


class _Path(click.Path):
    """A path as it was given: click asks the system of it, which knows no path with a zero byte."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path itself. Fails for what can be none."""
        if isinstance(value, str) and "\0" in value:
            self.fail(f"{value!r} is no path", param, ctx)
        return super().convert(value, param, ctx)


def function_argument(name: str, **options: Any) -> Callable[[F], F]:
    """An argument `module:function` that builds a run."""
    return click.argument(name, metavar="MODULE:FUNCTION", **options)


def json_option(what: str) -> Callable[[F], F]:
    """`--json`, as every command has it."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print a JSON document for programs: {what}.")
