"""What every command has: a line in the list, an example, --json where it has a result, and an import of its own."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from unmoor import cli

NO_DOCUMENT = {"demo", "completion"}
"""Commands that print no value: a show, and a script for the shell."""


def command(name: str) -> click.Command:
    """A command by its name."""
    found = cli.commands.get_command(click.Context(cli.commands), name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help_with_an_example(name):
    """`--help` names the command as it is called, what it does, and an example that begins with it."""
    text = CliRunner().invoke(cli.commands, [name, "--help"], prog_name="unmoor").output
    assert text.startswith(f"Usage: unmoor {name}")
    assert f"unmoor {name}" in text.split("Options:")[1]
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("name", sorted(set(cli.COMMANDS) - NO_DOCUMENT))
def test_every_command_with_a_result_prints_json(name):
    """`--json` is everywhere where there is a result."""
    assert "--json" in {option for parameter in command(name).params for option in parameter.opts}


def test_the_list_of_commands_imports_none():
    """`unmoor --help` and `unmoor inspect` start without what other commands need."""
    program = (
        "import sys, unmoor.cli as cli\n"
        "cli.main(['--help'])\n"
        "print(sorted(m for m in sys.modules if m.startswith('unmoor.cli.') or m in ('torch', 'rich', 'plotly')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    frame = ["exits", "output", "shape"]
    assert done.stdout.splitlines()[-1] == str([f"unmoor.cli.{name}" for name in frame])


def test_the_list_names_every_command_and_its_help():
    """`unmoor --help` has a line for each command of the table, in 80 columns."""
    text = CliRunner().invoke(cli.commands, ["--help"], prog_name="unmoor").output
    assert all(f"  {name} " in text for name in cli.COMMANDS)
    assert max(map(len, text.splitlines())) <= 80


def test_a_wrong_name_is_refused_and_the_near_one_is_named(capsys):
    """`unmoor inspekt` is a wrong call: code 2, and no file is read."""
    assert cli.main(["inspekt", "run.pt"]) == 2
    assert "No such command 'inspekt'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["inspect", "verify", "diff", "convert", "relocate"])
def test_a_path_with_a_zero_byte_is_a_wrong_call(name, capsys):
    """No system has such paths: code 2, and no traceback."""
    paths = ["a\0.pt"] * (2 if name in ("diff", "convert") else 1)
    assert cli.main([name, *paths]) == 2
    assert "is no path" in capsys.readouterr().err
